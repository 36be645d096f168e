"""What Codex is configured with for one run: `-c key=value` with the value in TOML.

Secrets stay out of the command line: those of an MCP server's environment are in a script that
starts it, those of its headers in variables.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping

from kapelle.agents.base import AgentRequest
from kapelle.domain.specs import McpServer

_PROVIDER = "kapelle"
# Kapelle tries again itself, and tells the user what it waits for.
_REQUEST_RETRIES = 1
_STREAM_RETRIES = 2
# A server that npx or uvx has to fetch first takes its time.
_MCP_START_S = 60

_DELETE = re.compile("\x7f")


def overrides(request: AgentRequest, key_variable: str | None) -> Iterator[str]:
    """All settings of a run, as key=value."""
    # Otherwise it waits for ever for a server that cannot be reached.
    yield "features.unbounded_connection_retries=false"
    if request.settings.base_url:
        yield f"model_provider={toml(_PROVIDER)}"
        provider = _provider(request.settings.base_url, key_variable)
        yield f"model_providers.{_PROVIDER}={toml(provider)}"
    if request.system_prompt:
        yield f"developer_instructions={toml(request.system_prompt)}"
    variables = {value: name for name, value in mcp_variables(request).items()}
    for name, server in request.mcp_servers.items():
        yield f"mcp_servers.{name}={toml(_mcp_server(request, name, server, variables))}"


def mcp_files(request: AgentRequest) -> dict[str, str]:
    """The scripts that start MCP servers with an environment, by name."""
    return {
        _script(name): "".join(
            [f"export {key}={shlex.quote(value)}\n" for key, value in server.env.items()]
            + [f"exec {shlex.join(server.command)}\n"]
        )
        for name, server in request.mcp_servers.items()
        if server.command and server.env
    }


def mcp_variables(request: AgentRequest) -> dict[str, str]:
    """The variables that hold the headers for MCP servers, one for each different value."""
    values = dict.fromkeys(
        value for server in request.mcp_servers.values() for value in server.headers.values()
    )
    return {f"KAPELLE_MCP_SECRET_{number}": value for number, value in enumerate(values, start=1)}


def toml(value: object) -> str:
    """A value as TOML on one line, whatever characters it has."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, str):
        # JSON writes what lies beyond 16 bits as two halves when it escapes it, which TOML refuses;
        # of what JSON leaves as it is, TOML wants one character escaped.
        clean = value.encode("utf-8", "replace").decode()
        return _DELETE.sub(r"\\u007f", json.dumps(clean, ensure_ascii=False))
    return json.dumps(value)


def _provider(base_url: str, key_variable: str | None) -> dict[str, object]:
    key = {"env_key": key_variable} if key_variable else {}
    return {
        "name": _PROVIDER,
        "base_url": base_url,
        "wire_api": "responses",
        "request_max_retries": _REQUEST_RETRIES,
        "stream_max_retries": _STREAM_RETRIES,
        **key,
    }


def _mcp_server(
    request: AgentRequest, name: str, server: McpServer, variables: Mapping[str, str]
) -> dict[str, object]:
    # Without required, the run goes on without a server that did not start.
    config: dict[str, object] = {"required": True, "startup_timeout_sec": _MCP_START_S}
    if server.url:
        headers = {header: variables[value] for header, value in server.headers.items()}
        return config | {"url": server.url} | ({"env_http_headers": headers} if headers else {})
    if server.env:
        script = str(request.prompt_file.parent / _script(name))
        return config | {"command": "/bin/sh", "args": [script]}
    return config | {"command": server.command[0], "args": server.command[1:]}


def _script(name: str) -> str:
    return f"codex-mcp-{name}.sh"
