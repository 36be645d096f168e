"""opencode: `opencode run --format json`, with a configuration on top of the user's own."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kapelle.agents import bridges
from kapelle.agents.base import (
    Access,
    AgentAdapter,
    AgentCommand,
    AgentRequest,
    AgentVerdict,
    Capabilities,
    Summary,
)
from kapelle.agents.events import AgentEvent, JsonObject, error, json_object, usage
from kapelle.agents.failures import choose_type, classify_event, find_end
from kapelle.agents.resets import read_retry_headers
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit

_OVERFLOW = "ContextOverflowError"
_KEY = "OPENCODE_API_KEY"
_PROVIDER = "kapelle"  # the name of the server at settings.base_url
_INSTRUCTIONS = "opencode-instructions.md"
_GUARD = "opencode-guard.json"
_PLUGIN = Path(bridges.__file__).with_name("opencode_guard.js")
# opencode replaces {env:…} and {file:…} anywhere in its configuration. All are escaped but our own.
_REFERENCE = re.compile(r"\{(?=file:|env:(?!" + _KEY + r"\}))")
# The marks of a line in its log with the cause of an error that it reports as unexpected.
_LOGGED = ("level=ERROR ", "message=failed ", ' error="')
# The marks of a line in its log about a failed request, which it retries without an event.
_RETRIED = ("level=ERROR ", 'message="stream error" ', ' error.error="')
_LONGEST_CAUSE = 1000
# The log has the provider's message without the status. opencode retries only after 408, 409, 429
# and 5xx, so one of these words means 429.
_OF_LIMIT = re.compile(r"\b429\b|limit|quota|throttl|too many|slow down|capacity", re.IGNORECASE)
# opencode prints no event for a retry and has no limit for retries, but logs them to stderr.
_LOGS = ["--print-logs", "--log-level", "ERROR"]


class OpencodeAgent(AgentAdapter):
    """The prompt goes by stdin; success is exit code 0 after a step that ended with "stop"."""

    program = "opencode"
    state = (".local/share/opencode", ".local/state/opencode")
    package = "npm install -g opencode-ai"
    tested = "1.18.33"
    restraint = "its configuration allows everything"
    capabilities = Capabilities(
        resume=True,
        # A fork hangs in any directory other than that of the session.
        fork=False,
        model=True, system_prompt=True, mcp=True, acp=True, usage=True, cost=True,
        tools=True, read_only=True, terminal=True,
    )  # fmt: skip
    access = Access(
        variables=(
            _KEY, "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY",
            "GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY",
        ),
        login_files=("~/.local/share/opencode/auth.json",),
        needed=False,
    )  # fmt: skip
    access_by_url = Access((_KEY,), needed=False)
    passes = (
        "OPENCODE_*", "ANTHROPIC_*", "OPENAI_*", "OPENROUTER_*", "GOOGLE_*", "GEMINI_*", "AZURE_*",
        "AWS_*", "GROQ_API_KEY", "MISTRAL_API_KEY", "DEEPSEEK_API_KEY", "XAI_API_KEY",
        "CEREBRAS_API_KEY", "TOGETHER_API_KEY", "FIREWORKS_API_KEY", "MOONSHOT_API_KEY",
        "ZHIPU_API_KEY", "GITHUB_TOKEN",
    )  # fmt: skip
    # Variables of an opencode session in which the daemon was started.
    drops = (
        "OPENCODE", "OPENCODE_PID", "OPENCODE_CLIENT", "OPENCODE_SERVER_*", "OPENCODE_PRINT_LOGS",
        "OPENCODE_LOG_LEVEL",
    )  # fmt: skip
    last_words = (("Session not found", FailureClass.SESSION_LOST),)

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        guard, files = _guard(request)
        return AgentCommand(_LOGS, {"OPENCODE_DISABLE_AUTOUPDATE": "1", **guard}, files=files)

    def command(self, request: AgentRequest) -> AgentCommand:
        model = request.chosen_model
        if request.settings.base_url:
            model = f"{_PROVIDER}/{self.require_model(request)}"
        argv = [self.executable()]
        if not request.interactive:
            # Without --dir opencode works in the directory that PWD names.
            argv += ["run", "--format", "json", "--auto", *_LOGS, "--dir"]
        argv.append(str(request.workspace))
        argv += self.options({"--model": model, "--session": request.session_id})
        config = _REFERENCE.sub(r"\\u007b", json.dumps(_configuration(request, model)))
        env = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_CONFIG_CONTENT": config}
        guard, files = _guard(request)
        env |= guard | self.environment(request)
        if request.system_prompt:
            files[_INSTRUCTIONS] = request.system_prompt
        argv += request.settings.extra_args
        if request.interactive:
            return AgentCommand(argv + request.first_words("--prompt"), env, files=files)
        return AgentCommand(argv, env, request.stdin, files)

    def parse(self, line: str) -> list[AgentEvent]:
        """Return the events of one line; a line that is not JSON is a warning."""
        value = json_object(line)
        if not value:
            if line.strip():
                return [AgentEvent("notice", line.strip())]
            return []
        part = value.mapping("part")
        session = AgentEvent("session", value.text("sessionID"))
        match value.get("type"):
            case "step_start":
                return [session]
            case "text":
                return [AgentEvent("text", part.text("text"))]
            case "tool_use":
                return _tool(part)
            case "step_finish":
                return _step(part)
            case "error":
                return [session, _error(value)]
        return []

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        cause = _cause(line, _RETRIED)
        if not cause:
            return []
        notice = AgentEvent("notice", cause)
        if classify_event(notice) is not None:
            return [notice]
        if _OF_LIMIT.search(cause):
            return [replace(notice, name=FailureClass.RATE_LIMIT)]
        return [replace(notice, name=FailureClass.OVERLOADED)]

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        verdict = super().judge(summary, exit, tail)
        last = last_step_end(tail)
        if verdict.success and last not in {"stop", None}:
            ending = f"with {last}" if last else "in the middle of a step"
            return AgentVerdict(False, f"opencode ended {ending}, without an answer.")
        if exit.code == 1 and last == "stop" and _has_compacted(summary):
            return AgentVerdict(True, result=summary.result, claimed="success")
        if verdict.success or exit.kind != "exited":
            return verdict
        return _by_log(verdict, summary, tail)


def _has_compacted(summary: Summary) -> bool:
    """Tell whether a full context was compacted and the work then completed.

    opencode exits with 1 in that case, too.
    """
    if summary.error is None or summary.claimed != "success":
        return False
    return summary.error.data.get("type") == _OVERFLOW


def _by_log(verdict: AgentVerdict, summary: Summary, tail: str) -> AgentVerdict:
    """Return the verdict with the cause of an unexpected error, which only the log has."""
    if summary.error is None or "server error" not in summary.error.text:
        return verdict
    causes = [_cause(line, _LOGGED) for line in tail.splitlines()]
    cause = next((text for text in reversed(causes) if text), None)
    if cause is None:
        return verdict
    failure = None
    if cause.startswith("ProviderModelNotFoundError"):
        failure = Failure(FailureClass.CAPABILITY, f"it said: {cause}")
    return AgentVerdict(False, cause, claimed="failure", failure=failure)


def _cause(line: str, marks: tuple[str, ...]) -> str:
    """Return the quoted text after the marks in a line of the log; empty without these marks."""
    start = find_end(marks, line)
    if start < 0:
        return ""
    text = line[start : start + _LONGEST_CAUSE].replace('\\"', "\0")
    return text.partition('"')[0].replace("\0", '"')


def _guard(request: AgentRequest) -> tuple[dict[str, str], dict[str, str]]:
    """Return variables and files for the plugin that refuses writes to files held by others."""
    command = request.guard("claude")
    if command is None or "OPENCODE_CONFIG" in request.environ:
        return {}, {}
    config = json.dumps({"plugin": [_PLUGIN.as_uri()]})
    env = {"KAPELLE_GUARD": command, "OPENCODE_CONFIG": str(request.beside(_GUARD))}
    return env, {_GUARD: config, **request.daemon_file}


def _configuration(request: AgentRequest, model: str | None) -> dict[str, Any]:
    """Return the configuration on top of the user's; it refers to the key by its variable."""
    config: dict[str, Any] = {
        "permission": _permissions(request),
        "autoupdate": False,
        "share": "disabled",
        "mcp": {name: _server(server) for name, server in request.mcp_servers.items()},
    }
    if request.system_prompt:
        config["instructions"] = [str(request.beside(_INSTRUCTIONS))]
    provider, _, name = (model or "").partition("/")
    options = {"apiKey": f"{{env:{_KEY}}}"}
    if request.settings.base_url:
        config["small_model"] = model
        config["provider"] = {
            provider: {
                "npm": "@ai-sdk/openai-compatible",
                "options": options | {"baseURL": request.settings.base_url},
                "models": {name: {"tool_call": True}},
            }
        }
    elif request.credential and name:
        config["provider"] = {provider: {"options": options}}
    return config


def _permissions(request: AgentRequest) -> str | dict[str, str]:
    if not (request.tools or request.read_only):
        return "allow"
    rules = {"*": "allow"}
    if request.tools:
        tools = [*request.tools, *(f"{name}_*" for name in request.mcp_servers)]
        rules = {"*": "deny", **dict.fromkeys(tools, "allow")}
    if request.read_only:
        rules["edit"] = "deny"
    return rules


def _server(server: McpServer) -> dict[str, Any]:
    if server.command:
        local = {"type": "local", "command": server.command, "environment": server.env}
        return {**local, "enabled": True}
    return {"type": "remote", "url": server.url, "headers": server.headers, "enabled": True}


def last_step_end(output: str) -> str | None:
    """Return how the last step of an output ended: its reason, "error", or "" if it did not end.

    A "stop" with more steps after it is no end, because the history may have been compacted.
    """
    for line in reversed(output.splitlines()):
        value = json_object(line)
        match value.get("type"):
            case "step_finish":
                return value.text("part", "reason")
            case "error":
                return "error"
            case "step_start" | "tool_use":
                return ""
    return None


def _tool(part: JsonObject) -> list[AgentEvent]:
    name = part.text("tool")
    state = part.mapping("state")
    output = state.text("output") or state.text("error")
    return [
        AgentEvent("tool_call", name=name, data=state.mapping("input")),
        AgentEvent("tool_result", output, name),
    ]


def _step(part: JsonObject) -> list[AgentEvent]:
    """Return the usage of one answer of the model, and the result if it was the last."""
    tokens = part.mapping("tokens")
    cache = tokens.mapping("cache")
    cached_tokens = cache.count("read")
    input_tokens = tokens.count("input") + cached_tokens + cache.count("write")
    output_tokens = tokens.count("output") + tokens.count("reasoning")
    cost = {}
    if part.get("cost"):
        # opencode reports 0 for a model whose price it does not know.
        cost["cost_usd"] = part["cost"]
    events = [usage(input_tokens, output_tokens, cached_tokens, turns=1, **cost)]
    reason = part.text("reason")
    if reason == "stop":
        events.append(AgentEvent("result"))
    elif reason not in {"", "tool-calls", "unknown"}:
        text = f"The model's answer ended with {reason}."
        events.append(AgentEvent("result", text, data={"is_error": True}))
    return events


def _error(value: JsonObject) -> AgentEvent:
    cause = value.mapping("error")
    data = cause.mapping("data")
    name = cause.text("name")
    message = data.text("message") or cause.text("message") or name
    body = json_object(data.text("responseBody")).mapping("error")
    headers = data.mapping("responseHeaders")
    status = data.count("statusCode")
    now = None
    timestamp = value.count("timestamp") / 1000
    if 0 < timestamp < 1e11:
        now = datetime.fromtimestamp(timestamp, UTC)
    at = read_retry_headers({key: headers.text(key) for key in headers}, status, now)
    kind = choose_type(name, body.text("code") or body.text("type"))
    return error(message or "unknown error", status=status, type=kind, retry_at=at)
