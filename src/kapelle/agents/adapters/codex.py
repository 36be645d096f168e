"""Codex CLI: `codex exec --json`, with the prompt by stdin and the settings as `-c key=value`.

Secrets stay out of the command line: those of an MCP server's environment are in a script that
starts it, those of its headers in variables.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from kapelle.agents.base import Access, AgentAdapter, AgentCommand, AgentRequest, Capabilities
from kapelle.agents.events import AgentEvent, EventKind, JsonObject, error, json_object, plan, usage
from kapelle.domain.failures import FailureClass

_KEYS = ("CODEX_API_KEY", "OPENAI_API_KEY")
_SANDBOXES = ("-s", "--sandbox", "--approve-for-me", "--dangerously-bypass-approvals-and-sandbox")
_PROVIDER = "kapelle"
# Kapelle tries again itself, and tells the user what it waits for.
_REQUEST_RETRIES = 1
_STREAM_RETRIES = 2
# A server that npx or uvx has to fetch first takes its time.
_MCP_START_S = 60
_WRITING = "apply_patch|Bash|shell|exec_command"
_RETRY = re.compile(r"Reconnecting\.\.\.(?: [^(]*\((.*)\))?", re.DOTALL)
_STATUS = re.compile(r"(?:unexpected status|exceeded retry limit, last status:) (\d{3})\b")
_WINDOWS = {300: "5-hour", 1440: "daily", 10_080: "weekly"}
_TOOLS = {"command_execution": "shell", "file_change": "apply_patch", "web_search": "web_search"}


class CodexAgent(AgentAdapter):
    """Success is exit code 0 after turn.completed; usage is in its rollout file alone.

    The usage in turn.completed is the session's, less what a killed attempt had used.
    """

    program = "codex"
    package = "npm install -g @openai/codex"
    tested = "0.166.0"
    restraint = (["--dangerously-bypass-approvals-and-sandbox"], ["--sandbox", "workspace-write"])
    capabilities = Capabilities(
        resume=True, fork=True, model=True, system_prompt=True, mcp=True, usage=True,
        read_only=True, terminal=True,
    )  # fmt: skip
    # Its own provider takes no key from OPENAI_API_KEY.
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
    last_words = (
        (
            r"(?<=failed: )(?:no rollout found\b|failed to read thread\b).*",
            FailureClass.SESSION_LOST,
        ),
        (r"required MCP servers failed to initialize: .*", FailureClass.TOOL),
    )

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        hooks = request.hooks("PreToolUse", _WRITING, "codex")
        is_free = hooks and "CODEX_CONFIG" not in request.environ
        if is_free:
            env = {"CODEX_CONFIG": json.dumps({"hooks": hooks})}
        else:
            env = {}
        return AgentCommand([], env, files=request.daemon_file)

    def command(self, request: AgentRequest) -> AgentCommand:
        if _has_hooks(request.workspace):
            # The option that lets ours run would let the repository's run as well.
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
        # The variable that holds the key for a server of the user's own, if it wants one.
        places = (env, request.environ, os.environ)
        key_variable = next((n for place in places for n in _KEYS if place.get(n)), None)
        hint = "Move the longer part of the system prompt into the prompt."
        if request.daemon:
            argv.append("--dangerously-bypass-hook-trust")
        for override in _overrides(request, key_variable, servers):
            argv += ["-c", self.require_argument(override, override.partition("=")[0], hint)]
        argv += extra
        # Options are not known any more after the subcommand.
        if request.session_id:
            argv += ["fork" if request.fork else "resume", request.session_id]
        env = variables | env
        if request.interactive:
            return AgentCommand(argv + request.first_words("--"), env, files=scripts)
        stdin = request.stdin
        if request.system_prompt and request.forks:
            # A session keeps the instructions that it began with.
            stdin = f"{request.system_prompt}\n\n".encode("utf-8", "replace") + stdin
        rollout = self.side_log(request, env, "sessions/**/rollout-*-{session}.jsonl")
        return AgentCommand([*argv, "-"], env, stdin, scripts | request.daemon_file, rollout)

    def parse(self, line: str) -> list[AgentEvent]:
        """What a line says, of the output or of the rollout file; they have no type in common."""
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
                # One answer of the model, noted as soon as it has come.
                count = payload.mapping("usage").get
                answer = payload.text("response_id") or None
                tokens = map(count, ("input_tokens", "output_tokens", "cached_input_tokens"))
                return [usage(*tokens, turns=1, id=answer)]
            case "turn_context":
                return [AgentEvent("model", payload.text("model"))]
            case "event_msg" if payload.text("turn_attribution", "turn_trigger") == "exec":
                # Here an attempt begins: what the file had before is of the session's earlier ones.
                is_start = payload.get("type") == "task_started"
                if is_start:
                    return [usage(0, 0, 0, turns=0, total=True)]
                return []
            case "event_msg" if payload.get("type") == "token_count":
                return [*_windows(payload.mapping("rate_limits"))]
        return []


def _windows(limits: JsonObject) -> Iterator[AgentEvent]:
    """What a subscription's limits stand at; those of single models are named."""
    of_model = limits.text("limit_name")
    for which in ("primary", "secondary"):
        told = limits.mapping(which)
        if not told:
            continue
        minutes = told.count("window_minutes")
        percent = told.get("used_percent")
        name = _WINDOWS.get(minutes) or (f"{minutes}-minute" if minutes else which)
        if isinstance(percent, int | float):
            data = {"used": percent / 100}
        else:
            data = {}
        data |= {"resets_at": told["resets_at"]} if told.get("resets_at") else {}
        yield AgentEvent("window", name=f"{name} {of_model}".strip(), data=data)


def _item(kind: str, item: JsonObject) -> list[AgentEvent]:
    what = item.text("type")
    name = _TOOLS.get(item.text("type"), "")
    if what == "todo_list":
        return [plan(item.mappings("items"), "text")]
    if what == "mcp_tool_call":
        name = f"mcp__{item.text('server')}__{item.text('tool')}"
    elif what == "collab_tool_call":
        name = item.text("tool") or what
    if kind == "item.started" and name:
        keys = ("command", "changes", "prompt", "query")
        given = {key: item[key] for key in keys if item.get(key)}
        if what == "mcp_tool_call":
            given = item.mapping("arguments")
        else:
            given = given
        return [AgentEvent("tool_call", name=name, data=given)]
    if kind != "item.completed":
        return []
    if name:
        return [AgentEvent("tool_result", _output(item), name)]
    match what:
        case "agent_message":
            return [AgentEvent("text", item.text("text"))]
        case "error":
            return [_notice(item.text("message"))]
    return []


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
    # The answer to a bad request is shown as it came.
    body = json_object(message)
    text = body.text("error", "message") or body.text("detail") or message
    found = _STATUS.match(text)
    if found:
        status = int(found[1])
    elif body:
        status = 400
    else:
        status = None
    own_type = body.text("error", "code") or body.text("error", "type")
    return error(text, kind=kind, status=status, type=own_type)


def _notice(message: str) -> AgentEvent:
    """What did not end it: a retry, or a warning."""
    retry = _RETRY.match(message)
    if retry is None or not retry[1]:
        return AgentEvent("notice", message)
    return replace(_error(retry[1], "notice"), text=message)


def _sandbox(request: AgentRequest) -> list[str]:
    """Its options for where it may write; what it only reports on is a copy, where tests may."""
    if not request.read_only:
        if request.interactive:
            return []
        return ["--dangerously-bypass-approvals-and-sandbox"]
    if request.workspace == request.checkout:
        return ["-s", "read-only"]
    return ["-s", "workspace-write", "-c", "sandbox_workspace_write.network_access=true"]


def _has_hooks(workspace: Path) -> bool:
    """Whether the repository brings settings for this agent, which may name hooks."""
    for directory in (workspace, *workspace.parents):
        if (directory / ".codex").exists():
            return True
        if (directory / ".git").exists():
            break
    return False


def _overrides(
    request: AgentRequest, key_variable: str | None, servers: Mapping[str, object]
) -> Iterator[str]:
    """All settings of an attempt, as key=value with the value in TOML."""
    # Otherwise it waits for ever for a server that cannot be reached.
    yield "features.unbounded_connection_retries=false"
    if request.settings.base_url:
        provider = {
            "name": _PROVIDER,
            "base_url": request.settings.base_url,
            "wire_api": "responses",
            "request_max_retries": _REQUEST_RETRIES,
            "stream_max_retries": _STREAM_RETRIES,
            **({"env_key": key_variable} if key_variable else {}),
        }
        yield f"model_provider={toml(_PROVIDER)}"
        yield f"model_providers.{_PROVIDER}={toml(provider)}"
    if request.system_prompt:
        yield f"developer_instructions={toml(request.system_prompt)}"
    for event, hooks in request.hooks("PreToolUse", _WRITING, "codex").items():
        yield f"hooks.{event}={toml(hooks)}"
    for name, server in servers.items():
        yield f"mcp_servers.{name}={toml(server)}"


def _mcp_servers(request: AgentRequest) -> tuple[JsonObject, dict[str, str], dict[str, str]]:
    """The MCP servers as settings, the scripts that start some, and the variables with headers."""
    servers = JsonObject()
    scripts = {}
    names = dict[str, str]()
    for name, server in request.mcp_servers.items():
        # Without required, it goes on without a server that did not start.
        config: dict[str, object] = {"required": True, "startup_timeout_sec": _MCP_START_S}
        if server.url:
            for value in server.headers.values():
                names.setdefault(value, f"KAPELLE_MCP_SECRET_{len(names) + 1}")
            headers = {header: names[value] for header, value in server.headers.items()}
            config |= {"url": server.url} | ({"env_http_headers": headers} if headers else {})
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
    """A value as TOML on one line, whatever characters it has."""
    import tomlkit  # which a daemon without codex never needs

    # What is within an array stands on one line.
    within = tomlkit.array()
    within.append(value)
    return within.as_string()[1:-1].encode("utf-8", "replace").decode()
