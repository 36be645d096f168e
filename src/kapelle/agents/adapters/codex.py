"""Codex CLI: `codex exec --json`, with the prompt by stdin."""

import glob
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping

from kapelle.agents.adapters.codex_events import parse_line
from kapelle.agents.base import (
    Access,
    AgentEvent,
    AgentRequest,
    Capabilities,
    Command,
    Summary,
    Verdict,
)
from kapelle.agents.program import LONGEST_ARGUMENT, ProgramAgent
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

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


_KEYS = ("CODEX_API_KEY", "OPENAI_API_KEY")
_SANDBOXES = ("-s", "--sandbox", "--approve-for-me", "--dangerously-bypass-approvals-and-sandbox")
# What it says on stderr, and only there, when it cannot begin at all.
_LOST_SESSION = re.compile(
    r"thread/(?:resume|fork) failed: (no rollout found\b.*|failed to read thread\b.*)"
)
_MCP_FAILED = re.compile(r"required MCP servers failed to initialize: (.*)")
_QUOTE = 300


class CodexAgent(ProgramAgent):
    """Success is exit code 0 after turn.completed; usage is in its rollout file alone.

    What turn.completed tells of usage is the session's, less what a killed run had used.
    """

    program = "codex"
    package = "npm install -g @openai/codex"
    tested = "0.166.0"
    capabilities = Capabilities(
        resume=True,
        fork=True,
        model=True,
        system_prompt=True,
        mcp=True,
        hooks=True,
        usage=True,
    )
    passes = (
        *_KEYS, "CODEX_HOME", "CODEX_SQLITE_HOME", "CODEX_CA_CERTIFICATE",
        "CODEX_OSS_BASE_URL", "CODEX_OSS_PORT", "OPENAI_ORGANIZATION", "OPENAI_PROJECT",
        "AZURE_OPENAI_API_KEY",
    )  # fmt: skip
    drops = (
        "CODEX_THREAD_ID", "CODEX_SESSION_ID", "CODEX_TOOL_CALL_ID", "CODEX_CI", "CODEX_VERSION",
        "CODEX_SANDBOX*", "CODEX_NETWORK_*", "CODEX_SNAPSHOT_*", "CODEX_PERMISSION_PROFILE",
        "CODEX_INTERNAL_*", "CODEX_MANAGED_*",
    )  # fmt: skip

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        if settings.base_url:
            self.access = Access(_KEYS, needed=False)
        else:
            # Its own provider takes no key from OPENAI_API_KEY.
            login = os.path.join(_home({**os.environ, **settings.env}), "auth.json")
            self.access = Access(("CODEX_API_KEY",), (login,))

    def command(self, request: AgentRequest) -> Command:
        env = self.environment(request)
        argv = [self.executable(), "exec", "--json", "--skip-git-repo-check"]
        extra = request.settings.extra_args
        if not any(argument.split("=")[0] in _SANDBOXES for argument in extra):
            argv.append("--dangerously-bypass-approvals-and-sandbox")
        if model := request.model or request.settings.model:
            argv += ["-m", model]
        places = (env, request.environ, os.environ)
        for override in overrides(request, _key_variable(*places)):
            argv += ["-c", self._fitting(override)]
        argv += extra
        # Options are not known any more after the subcommand.
        if request.session_id:
            argv += ["fork" if request.fork else "resume", request.session_id]
        home = glob.escape(
            os.path.join(request.workspace, _home({**os.environ, **request.environ, **env}))
        )
        return Command(
            [*argv, "-"],
            mcp_variables(request) | env,
            _prompt(request).encode("utf-8", "replace"),
            mcp_files(request),
            f"{home}/sessions/**/rollout-*-{{session}}.jsonl",
        )

    def parse(self, line: str) -> list[AgentEvent]:
        return parse_line(line)

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        verdict = super().judge(summary, exit, tail)
        if verdict.success or summary.session_id is not None or exit.kind != "exited":
            return verdict
        if found := _MCP_FAILED.search(tail):
            said = f"An MCP server did not start: {found[1][:_QUOTE]}"
            return Verdict(False, said, failure=Failure(FailureClass.TOOL, said))
        if found := _LOST_SESSION.search(tail):
            lost = Failure(FailureClass.SESSION_LOST, f"it said: {found[1][:_QUOTE]}")
            return Verdict(False, "Codex does not have the session any more.", failure=lost)
        return verdict

    def _fitting(self, override: str) -> str:
        size = len(override.encode("utf-8", "replace"))
        if size > LONGEST_ARGUMENT:
            key = override.partition("=")[0]
            raise AgentMisconfigured(
                f"{self.name} takes {key} as one argument, and {size:,} bytes are too many for it:"
                f" more than {LONGEST_ARGUMENT:,} do not fit on a command line.",
                hint="Move the longer part of the system prompt into the prompt.",
            )
        return override


def _prompt(request: AgentRequest) -> str:
    """A session keeps the instructions it began with: those of another task's follow-up go here."""
    if request.system_prompt and request.session_id and request.fork:
        return f"{request.system_prompt}\n\n{request.prompt}"
    return request.prompt


def _home(env: Mapping[str, str]) -> str:
    """Where it keeps its sessions and its login."""
    return env.get("CODEX_HOME") or os.path.join(
        env.get("HOME") or os.path.expanduser("~"), ".codex"
    )


def _key_variable(*places: Mapping[str, str]) -> str | None:
    """The variable that holds the key for a server of the user's own, if it wants one."""
    return next((name for place in places for name in _KEYS if place.get(name)), None)
