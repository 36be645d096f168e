"""Codex CLI: `codex exec --json`, with the prompt on stdin and the settings as `-c key=value`.

Secrets stay out of the command line: those of an MCP server's environment stand in a script that
starts the server, and those of its headers in variables.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kapelle.agents.base import Access, AgentAdapter, AgentCommand, AgentRequest, Capabilities
from kapelle.agents.events import AgentEvent, EventKind, JsonObject, error, json_object, plan, usage
from kapelle.domain.failures import FailureClass

_KEYS = ("CODEX_API_KEY", "OPENAI_API_KEY")
_SANDBOXES = ("-s", "--sandbox", "--approve-for-me", "--dangerously-bypass-approvals-and-sandbox")
_PROVIDER = "kapelle"
# Kapelle retries itself, and shows what it waits for.
_REQUEST_RETRIES = 1
_STREAM_RETRIES = 2
# npx or uvx may have to download a server first.
_MCP_START_S = 60
_WRITING = "apply_patch|Bash|shell|exec_command"
_RETRY = re.compile(r"Reconnecting\.\.\.(?: [^(]*\((.*)\))?", re.DOTALL)
_STATUS = re.compile(r"(?:unexpected status|exceeded retry limit, last status:) (\d{3})\b")
_WINDOWS = {300: "5-hour", 1440: "daily", 10_080: "weekly"}
_TOOLS = {"command_execution": "shell", "file_change": "apply_patch", "web_search": "web_search"}


class CodexAgent(AgentAdapter):
    """Success is exit code 0 after turn.completed; the rollout file alone has the usage.

    The usage in turn.completed is that of the whole session, and misses that of a killed attempt.
    """

    program = "codex"
    package = "npm install -g @openai/codex"
    tested = "0.166.0"
    restraint = (["--dangerously-bypass-approvals-and-sandbox"], ["--sandbox", "workspace-write"])
    capabilities = Capabilities(
        resume=True, fork=True, model=True, system_prompt=True, mcp=True, usage=True,
        read_only=True, terminal=True,
    )  # fmt: skip
    # OpenAI as the provider takes no key from OPENAI_API_KEY.
    access = Access(("CODEX_API_KEY",), ("{home}/auth.json",))
    access_by_url = Access(_KEYS, needed=False)
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
    home = ("CODEX_HOME", ".codex")
    pinned = (
        "config.toml", "AGENTS.md", "hooks.json", "prompts/", "skills/", "rules/",
        "plugins/", "bin/",
    )  # fmt: skip
    last_words = (
        (
            r"(?<=failed: )(?:no rollout found\b|failed to read thread\b).*",
            FailureClass.SESSION_LOST,
        ),
        (r"required MCP servers failed to initialize: .*", FailureClass.TOOL),
    )

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        hooks = request.hooks("PreToolUse", _WRITING, "codex")
        env = {}
        if hooks and "CODEX_CONFIG" not in request.environ:
            env["CODEX_CONFIG"] = json.dumps({"hooks": hooks})
        return AgentCommand([], env, files=request.daemon_file)

    def command(self, request: AgentRequest) -> AgentCommand:
        if _has_settings(request.workspace):
            # The option that permits Kapelle's hook would permit the repository's hooks, too.
            request = replace(request, daemon=None)
        env = self.environment(request)
        argv = [self.executable()]
        extra = request.settings.extra_args
        if not request.interactive:
            argv += ["exec", "--json", "--skip-git-repo-check"]
        if not any(argument.split("=")[0] in _SANDBOXES for argument in extra):
            argv += _sandbox(request)
        argv += self.options({"-m": request.chosen_model})
        servers, scripts, variables = _mcp_servers(request)
        key_variable = _key_variable(env, request.environ, os.environ)
        hint = "Move the longer part of the system prompt into the prompt."
        if request.daemon:
            argv.append("--dangerously-bypass-hook-trust")
        for override in _overrides(request, key_variable, servers):
            argv += ["-c", self.require_argument(override, override.partition("=")[0], hint)]
        argv += extra
        # Codex accepts no options after the subcommand.
        if request.session_id:
            argv += ["fork" if request.fork else "resume", request.session_id]
        env = variables | env
        if request.interactive:
            return AgentCommand(argv + request.first_words("--"), env, files=scripts)
        stdin = request.stdin
        if request.system_prompt and request.forks:
            # The copy of a session keeps the instructions of the session.
            stdin = f"{request.system_prompt}\n\n".encode("utf-8", "replace") + stdin
        rollout = self.side_log(request, env, "sessions/**/rollout-*-{session}.jsonl")
        return AgentCommand([*argv, "-"], env, stdin, scripts | request.daemon_file, rollout)

    def parse(self, line: str) -> list[AgentEvent]:
        """Return the events of a line of the output or the rollout file, which share no type."""
        value = json_object(line)
        kind = value.get("type")
        payload = value.mapping("payload")
        match kind:
            case "thread.started":
                return [AgentEvent("session", value.text("thread_id"))]
            case "turn.completed":
                return [AgentEvent("result")]  # its text is the last message
            case "turn.failed":
                return [_error(value.text("error", "message"))]
            case "error":
                message = value.text("message")
                return [_notice(message) if _RETRY.match(message) else _error(message)]
            case "item.started" | "item.updated" | "item.completed":
                return _item(kind, value.mapping("item"))
            case "token_usage_record":
                # One answer of the model, written as soon as it is complete.
                count = payload.mapping("usage").get
                answer_id = payload.text("response_id") or None
                tokens = map(count, ("input_tokens", "output_tokens", "cached_input_tokens"))
                return [usage(*tokens, turns=1, id=answer_id)]
            case "turn_context":
                return [AgentEvent("model", payload.text("model"))]
            case "event_msg" if payload.text("turn_attribution", "turn_trigger") == "exec":
                # An attempt begins: the lines before belong to earlier attempts of the session.
                if payload.get("type") == "task_started":
                    return [usage(0, 0, 0, turns=0, total=True)]
                return []
            case "event_msg" if payload.get("type") == "token_count":
                return [*_windows(payload.mapping("rate_limits"))]
        return []


def _key_variable(*environments: Mapping[str, str]) -> str | None:
    """Return the name of the variable that holds the key for a server at base_url, if any."""
    for environ in environments:
        for name in _KEYS:
            if environ.get(name):
                return name
    return None


def _windows(limits: JsonObject) -> Iterator[AgentEvent]:
    """Yield the state of a subscription's limits; a limit of one model is named after it."""
    model = limits.text("limit_name")
    for which in ("primary", "secondary"):
        limit = limits.mapping(which)
        if not limit:
            continue
        minutes = limit.count("window_minutes")
        name = which
        if minutes:
            name = _WINDOWS.get(minutes, f"{minutes}-minute")
        data = {}
        percent = limit.get("used_percent")
        if isinstance(percent, int | float):
            data["used"] = percent / 100
        if limit.get("resets_at"):
            data["resets_at"] = limit["resets_at"]
        yield AgentEvent("window", name=f"{name} {model}".strip(), data=data)


def _item(kind: str, item: JsonObject) -> list[AgentEvent]:
    if item.text("type") == "todo_list":
        return [plan(item.mappings("items"), "text")]
    name = _tool_name(item)
    if kind == "item.started" and name:
        return [AgentEvent("tool_call", name=name, data=_tool_input(item))]
    if kind != "item.completed":
        return []
    if name:
        return [AgentEvent("tool_result", _output(item), name)]
    match item.text("type"):
        case "agent_message":
            return [AgentEvent("text", item.text("text"))]
        case "error":
            return [_notice(item.text("message"))]
    return []


def _tool_name(item: JsonObject) -> str:
    """Return the name of the item's tool; empty if the item is no tool call."""
    item_type = item.text("type")
    if item_type == "mcp_tool_call":
        return f"mcp__{item.text('server')}__{item.text('tool')}"
    if item_type == "collab_tool_call":
        return item.text("tool") or item_type
    return _TOOLS.get(item_type, "")


def _tool_input(item: JsonObject) -> dict[str, Any]:
    if item.get("type") == "mcp_tool_call":
        return item.mapping("arguments")
    keys = ("command", "changes", "prompt", "query")
    return {key: item[key] for key in keys if item.get(key)}


def _output(item: JsonObject) -> str:
    match item.get("type"):
        case "command_execution":
            return item.text("aggregated_output")
        case "file_change":
            changes = item.mappings("changes")
            return "\n".join(f"{change.get('kind')} {change.get('path')}" for change in changes)
        case "mcp_tool_call":
            texts = [part.text("text") for part in item.mappings("result", "content")]
            return "\n".join(texts) or item.text("error", "message")
    return item.text("status")


def _error(message: str, kind: EventKind = "error") -> AgentEvent:
    # The message is the provider's JSON if the provider refused a bad request.
    body = json_object(message)
    text = body.text("error", "message") or body.text("detail") or message
    status = 400 if body else None
    match = _STATUS.match(text)
    if match:
        status = int(match[1])
    error_type = body.text("error", "code") or body.text("error", "type")
    return error(text, kind=kind, status=status, type=error_type)


def _notice(message: str) -> AgentEvent:
    """Return the notice of a retry, with the error behind it, or of a warning."""
    retry = _RETRY.match(message)
    if retry is None or not retry[1]:
        return AgentEvent("notice", message)
    return replace(_error(retry[1], "notice"), text=message)


def _sandbox(request: AgentRequest) -> list[str]:
    """Return the options for where Codex may write.

    A read-only attempt works in a throwaway copy, where tests may write; in place it may not write.
    """
    if not request.read_only:
        if request.interactive:
            return []
        return ["--dangerously-bypass-approvals-and-sandbox"]
    if request.workspace == request.checkout:
        return ["-s", "read-only"]
    return ["-s", "workspace-write", "-c", "sandbox_workspace_write.network_access=true"]


def _has_settings(workspace: Path) -> bool:
    """Tell whether the repository has settings for Codex, which may name hooks."""
    for directory in (workspace, *workspace.parents):
        if (directory / ".codex").exists():
            return True
        if (directory / ".git").exists():
            break
    return False


def _overrides(
    request: AgentRequest, key_variable: str | None, servers: Mapping[str, object]
) -> Iterator[str]:
    """Yield the settings of an attempt, as key=value with the value in TOML."""
    # Otherwise Codex waits forever for a server that cannot be reached.
    yield "features.unbounded_connection_retries=false"
    if request.settings.base_url:
        provider: dict[str, object] = {
            "name": _PROVIDER,
            "base_url": request.settings.base_url,
            "wire_api": "responses",
            "request_max_retries": _REQUEST_RETRIES,
            "stream_max_retries": _STREAM_RETRIES,
        }
        if key_variable:
            provider["env_key"] = key_variable
        yield f"model_provider={toml(_PROVIDER)}"
        yield f"model_providers.{_PROVIDER}={toml(provider)}"
    if request.system_prompt:
        yield f"developer_instructions={toml(request.system_prompt)}"
    for event, hooks in request.hooks("PreToolUse", _WRITING, "codex").items():
        yield f"hooks.{event}={toml(hooks)}"
    for name, server in servers.items():
        yield f"mcp_servers.{name}={toml(server)}"


def _mcp_servers(request: AgentRequest) -> tuple[JsonObject, dict[str, str], dict[str, str]]:
    """Return the settings of the MCP servers, the scripts that start some, and their variables."""
    servers = JsonObject()
    scripts = {}
    names = dict[str, str]()  # of the variables, by the values of headers
    for name, server in request.mcp_servers.items():
        # Without "required", Codex works on without a server that did not start.
        config: dict[str, object] = {"required": True, "startup_timeout_sec": _MCP_START_S}
        if server.url:
            for value in server.headers.values():
                names.setdefault(value, f"KAPELLE_MCP_SECRET_{len(names) + 1}")
            config["url"] = server.url
            headers = {header: names[value] for header, value in server.headers.items()}
            if headers:
                config["env_http_headers"] = headers
        elif server.env:
            script = f"codex-mcp-{name}.sh"
            exports = [f"export {key}={shlex.quote(value)}\n" for key, value in server.env.items()]
            scripts[script] = "".join([*exports, f"exec {shlex.join(server.command)}\n"])
            config |= {"command": "/bin/sh", "args": [str(request.beside(script))]}
        else:
            config |= {"command": server.command[0], "args": server.command[1:]}
        servers[name] = config
    return servers, scripts, {variable: value for value, variable in names.items()}


def toml(value: object) -> str:
    """Return a value as TOML on one line, whatever characters it has."""
    import tomlkit  # a daemon without codex never needs it

    # tomlkit writes the items of an array on one line.
    array = tomlkit.array()
    array.append(value)
    return array.as_string()[1:-1].encode("utf-8", "replace").decode()
