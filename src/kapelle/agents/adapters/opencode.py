"""opencode: `opencode run --format json`, with a configuration laid over that of the user."""

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
_PROVIDER = "kapelle"  # what opencode calls the server at settings.base_url
_INSTRUCTIONS = "opencode-instructions.md"
_GUARD = "opencode-guard.json"
_PLUGIN = Path(bridges.__file__).with_name("opencode_guard.js")
# opencode replaces {env:…} and {file:…} anywhere in its configuration; only our own are meant so.
_REFERENCE = re.compile(r"\{(?=file:|env:(?!" + _KEY + r"\}))")
# What its server keeps to itself of an error that it reports as unexpected.
_LOGGED = ("level=ERROR ", "message=failed ", ' error="')
# A request that failed, after which it waits without a word and asks again.
_RETRIED = ("level=ERROR ", 'message="stream error" ', ' error.error="')
_LONGEST_CAUSE = 1000
# The log has the provider's words and no status. opencode asks again after a refusal that passes by
# itself only (408, 409, 429 and 5xx), so that one of these words means the 429.
_OF_LIMIT = re.compile(r"\b429\b|limit|quota|throttl|too many|slow down|capacity", re.IGNORECASE)
# Its retries are silent and cannot be limited; the log tells of them on stderr at least.
_LOGS = ["--print-logs", "--log-level", "ERROR"]


class OpencodeAgent(AgentAdapter):
    """The prompt goes by stdin; success is exit code 0 after a step that ended with "stop"."""

    program = "opencode"
    package = "npm install -g opencode-ai"
    tested = "1.18.33"
    restraint = "opencode is told in its configuration to allow everything"
    capabilities = Capabilities(
        resume=True,
        # It can, but then hangs in any directory other than that of the session.
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
    # Marks of an opencode around the daemon.
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
        # It works where PWD says, not in its working directory, unless it is told.
        unattended = ["run", "--format", "json", "--auto", *_LOGS, "--dir"]
        argv = [self.executable(), *([] if request.interactive else unattended)]
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
        """The events of one line; what is no JSON is a warning that it prints among them."""
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
        is_limit = _OF_LIMIT.search(cause) is not None
        if is_limit:
            kind = FailureClass.RATE_LIMIT
        else:
            kind = FailureClass.OVERLOADED
        return [replace(notice, name=kind)]

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        verdict = super().judge(summary, exit, tail)
        last = last_step_end(tail)
        if verdict.success and last not in {"stop", None}:
            if last:
                how = f"with {last}"
            else:
                how = "in the middle of a step"
            return AgentVerdict(False, f"opencode ended {how}, without an answer.")
        # It exits with 1 after a full context, too, which it compacted to go on.
        overflowed = summary.error and summary.error.data.get("type") == _OVERFLOW
        if overflowed and exit.code == 1 and last == "stop" and summary.claimed == "success":
            return AgentVerdict(True, result=summary.result, claimed="success")
        if verdict.success or exit.kind != "exited":
            return verdict
        return _by_log(verdict, summary, tail)


def _by_log(verdict: AgentVerdict, summary: Summary, tail: str) -> AgentVerdict:
    """What only its log tells: what an unexpected error was."""
    logged = [cause for line in tail.splitlines() if (cause := _cause(line, _LOGGED))]
    if summary.error is None or not logged or "server error" not in summary.error.text:
        return verdict
    cause = logged[-1]
    unknown_model = cause.startswith("ProviderModelNotFoundError")
    if unknown_model:
        found = Failure(FailureClass.CAPABILITY, f"it said: {cause}")
    else:
        found = None
    return AgentVerdict(False, cause, claimed="failure", failure=found)


def _cause(line: str, marks: tuple[str, ...]) -> str:
    """What stands in quotes behind marks that a line of the log has in this order, or nothing."""
    place = find_end(marks, line)
    if place >= 0:
        said = line[place : place + _LONGEST_CAUSE].replace('\\"', "\0")
    else:
        said = ""
    return said.partition('"')[0].replace("\0", '"')


def _guard(request: AgentRequest) -> tuple[dict[str, str], dict[str, str]]:
    """The variables and files by which a plugin keeps it from what somebody else holds."""
    command = request.guard("claude")
    if command is None or "OPENCODE_CONFIG" in request.environ:
        return {}, {}
    config = json.dumps({"plugin": [_PLUGIN.as_uri()]})
    env = {"KAPELLE_GUARD": command, "OPENCODE_CONFIG": str(request.beside(_GUARD))}
    return env, {_GUARD: config, **request.daemon_file}


def _configuration(request: AgentRequest, model: str | None) -> dict[str, Any]:
    """What goes over the user's own configuration; a key is named in it, never given."""
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
    named = [*request.tools, *(f"{name}_*" for name in request.mcp_servers)]
    if request.tools:
        rules = {"*": "deny", **dict.fromkeys(named, "allow")}
    else:
        rules = {"*": "allow"}
    return rules | ({"edit": "deny"} if request.read_only else {})


def _server(server: McpServer) -> dict[str, Any]:
    if server.command:
        local = {"type": "local", "command": server.command, "environment": server.env}
        return {**local, "enabled": True}
    return {"type": "remote", "url": server.url, "headers": server.headers, "enabled": True}


def last_step_end(output: str) -> str | None:
    """How an output's last step ended: its reason, "error", or "" in the middle of it.

    A "stop" is no end where more steps follow it: the history may have been compacted in between.
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
    """One answer of the model: what it took, and whether it was the last."""
    tokens = part.mapping("tokens")
    cache = tokens.mapping("cache")
    cached = cache.count("read")
    sent = tokens.count("input") + cached + cache.count("write")
    received = tokens.count("output") + tokens.count("reasoning")
    # It counts 0 for a model whose price it does not know.
    if part.get("cost"):
        cost = {"cost_usd": part["cost"]}
    else:
        cost = {}
    used = usage(sent, received, cached, turns=1, **cost)
    reason = part.text("reason")
    if reason == "stop":
        return [used, AgentEvent("result")]
    if reason in {"", "tool-calls", "unknown"}:
        return [used]
    cut = f"The model's answer ended with {reason}."
    return [used, AgentEvent("result", cut, data={"is_error": True})]


def _error(value: JsonObject) -> AgentEvent:
    cause = value.mapping("error")
    data = cause.mapping("data")
    name = cause.text("name")
    message = data.text("message") or cause.text("message") or name
    body = json_object(data.text("responseBody")).mapping("error")
    headers = data.mapping("responseHeaders")
    status = data.count("statusCode")
    # When the line was written, by its own word.
    written = value.count("timestamp") / 1000
    if 0 < written < 1e11:
        now = datetime.fromtimestamp(written, UTC)
    else:
        now = None
    at = read_retry_headers({key: headers.text(key) for key in headers}, status, now)
    kind = choose_type(name, body.text("code") or body.text("type"))
    return error(message or "unknown error", status=status, type=kind, retry_at=at)
