"""Claude Code: `claude -p --output-format stream-json`, with the prompt by stdin.

Its stream is also that of Qwen Code: parse_stream. What was used they count differently.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kapelle.agents.base import (
    Access,
    AgentAdapter,
    AgentCommand,
    AgentRequest,
    AgentVerdict,
    Capabilities,
    Summary,
)
from kapelle.agents.events import (
    AgentEvent,
    EventKind,
    JsonObject,
    error,
    json_object,
    mapping_of,
    plan,
)
from kapelle.agents.failures import choose_type
from kapelle.agents.resets import parse_reset_time
from kapelle.domain.failures import FailureClass
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

_CLOUDS = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")
_MCP = "claude-mcp.json"
_SYSTEM = "claude-system.txt"
HOOKS = "claude-hooks.json"
_WRITING = "Edit|MultiEdit|Write|NotebookEdit|Bash"
_WRITING_TOOLS = "Edit,MultiEdit,Write,NotebookEdit"
_LEAST_USD = 0.0001
_DEFAULTS = {
    "CLAUDE_CODE_MAX_RETRIES": "2",  # Kapelle itself tries again, and knows when
    "DISABLE_AUTOUPDATER": "1",
}
# What comes of a slash command that did nothing; the result after it claims success.
_COMMAND_FAILURES = frozenset({"unavailable_headless", "unknown", "failed", "restart_required"})
_COMMAND = "local_command"
_WINDOWS = {"five_hour": "5-hour", "seven_day": "weekly", "_": " "}
_PLANS = frozenset({"TodoWrite", "todo_write"})
_ABSENT = frozenset({"failed", "disconnected", "needs-auth"})
_LIMITS = frozenset({"error_max_turns", "error_max_budget_usd"})
_NO_MONEY = re.compile(
    r"spend limit|shared budget|out of (?:usage|extra usage)|include (?:extra )?usage"
    r"|requires usage credits|usage limit is set to \$0"
)
_STATUS = re.compile(r"^\[API Error: (\d{3})\b")


class ClaudeAgent(AgentAdapter):
    """Success is exit code 0 after a result that is no error.

    A prompt that begins with the name of a slash command is that command. The budget that Claude
    is given counts the attempt alone, the cost in its result the session's earlier ones too.
    """

    program = "claude"
    package = "npm install -g @anthropic-ai/claude-code"
    tested = "2.1.325"
    restraint = (["--dangerously-skip-permissions"], ["--permission-mode", "acceptEdits"])
    capabilities = Capabilities(
        resume=True, fork=True, model=True, max_turns=True, budget=True, system_prompt=True,
        mcp=True, usage=True, cost=True, tools=True, read_only=True, terminal=True,
    )  # fmt: skip
    access = Access(
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
        ("{home}/.credentials.json",),
    )
    passes = (
        "ANTHROPIC_*", "CLAUDE_*", "AWS_*", "GOOGLE_*", "CLOUD_ML_REGION", "VERTEX_REGION_*",
        "AZURE_*", "API_TIMEOUT_MS", "BASH_*", "MAX_THINKING_TOKENS", "MCP_*", "DISABLE_*",
        "ENABLE_TOOL_SEARCH", "USE_BUILTIN_RIPGREP",
    )  # fmt: skip
    # Marks of a session around the daemon.
    drops = (
        "CLAUDECODE", "CLAUDE_PID", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_EXECPATH",
        "CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_SESSION_*", "CLAUDE_CODE_MESSAGING_*",
        "CLAUDE_CODE_SSE_PORT", "CLAUDE_CODE_REMOTE*", "CLAUDE_AGENT_SDK_*", "CLAUDE_PROJECT_DIR",
        "CLAUDE_ENV_FILE",
    )  # fmt: skip
    home = ("CLAUDE_CONFIG_DIR", ".claude")
    hears = True
    url_variable = "ANTHROPIC_BASE_URL"

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        self._meter = Meter()
        # The clouds have credentials of their own, and macOS keeps a login in its keychain.
        clouds = any({**os.environ, **settings.env}.get(name) for name in _CLOUDS)
        self.access = replace(self.access, needed=not (clouds or sys.platform == "darwin"))

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        # Without the first there is no mode that asks for nothing when the user is root.
        env = {"IS_SANDBOX": "1", **_DEFAULTS}
        own = {name: env[name] for name in env.keys() - request.environ.keys()}
        hooks = request.hooks("PreToolUse", _WRITING, "claude")
        if hooks:
            files = {HOOKS: json.dumps({"hooks": hooks}), **request.daemon_file}
        else:
            files = {}
        return AgentCommand([], own, files=files)

    def command(self, request: AgentRequest) -> AgentCommand:
        argv = [self.executable()]
        if not request.interactive:
            argv += ["-p", "--output-format", "stream-json", "--verbose"]
        argv += _permissions(request)
        files: dict[str, str] = {}
        env = {name: value for name, value in _DEFAULTS.items() if name not in request.environ}
        if os.geteuid() == 0:
            # Otherwise it refuses to work for root without asking.
            env["IS_SANDBOX"] = "1"
        if request.mcp_servers:
            local = {"type": "stdio"}
            remote = {"type": "http"}
            files[_MCP] = json.dumps(request.mcp_config(local, remote, literal=_literal))
            argv += ["--mcp-config", str(request.beside(_MCP))]
            # Otherwise the model has to search for the tools before it sees them.
            env["ENABLE_TOOL_SEARCH"] = "false"
        if hooks := request.hooks("PreToolUse", _WRITING, "claude") | request.message_hooks():
            files |= {HOOKS: json.dumps({"hooks": hooks}), **request.daemon_file}
            argv += ["--settings", str(request.beside(HOOKS))]
        budget = request.budget_usd
        argv += self.options(
            {
                "--model": request.chosen_model,
                "--resume": request.session_id,
                "--fork-session": request.forks,
                "--max-turns": request.max_turns,
                "--max-budget-usd": None if budget is None else f"{max(budget, _LEAST_USD):.4f}",
            }
        )
        if request.system_prompt:
            argv += _system_prompt(request, request.system_prompt, files)
        env |= self.environment(request)
        transcript = self.side_log(request, env, "projects/*/{session}.jsonl")
        argv += request.settings.extra_args
        if request.interactive:
            return AgentCommand(argv + request.first_words("--"), env, files=files)
        return AgentCommand(argv, env, request.stdin, files, transcript)

    def parse(self, line: str) -> list[AgentEvent]:
        event = json_object(line)
        if not event:
            return []
        if "sessionId" in event:
            return self._meter.from_transcript(event)
        is_result = event.get("type") == "result"
        if is_result:
            events = [AgentEvent("usage", data=self._meter.from_result(event))]
        else:
            events = []
        events += parse_stream(event)
        if (outcome := event.text("local_command_outcome", "kind")) in _COMMAND_FAILURES:
            text = "Claude Code took the prompt for a command of its own, which came to nothing"
            events.append(error(f"{text}: {outcome}", type=_COMMAND))
        return events

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        verdict = super().judge(summary, exit, tail)
        error = summary.error
        if verdict.success and error and error.data.get("type") == _COMMAND:
            return AgentVerdict(False, error.text, summary.result, "failure")
        return verdict


def _permissions(request: AgentRequest) -> list[str]:
    """Its options for what it may do: everything, or with certain tools, or without writing."""
    if request.read_only:
        argv = [f"--disallowedTools={_WRITING_TOOLS}"]
    else:
        argv = []
    if not request.tools:
        # In a terminal it asks.
        return [*([] if request.interactive else ["--dangerously-skip-permissions"]), *argv]
    # The first says which of its own there are, the others what may be done with them.
    own = dict.fromkeys(tool.partition("(")[0] for tool in request.tools)
    allowed = [*request.tools, *(f"mcp__{name}" for name in request.mcp_servers)]
    named = [f"--tools={','.join(own)}", f"--allowedTools={','.join(allowed)}"]
    return ["--permission-mode", "dontAsk", *named, *argv]


def _system_prompt(request: AgentRequest, text: str, files: dict[str, str]) -> list[str]:
    # A session keeps the system prompt that it began with; a task of its own has its own.
    if request.forks:
        fresh = ["--system-prompt-snapshot", "off"]
    else:
        fresh = []
    if ClaudeAgent.fits(text):
        return [f"--append-system-prompt={text}", *fresh]
    files[_SYSTEM] = text
    return [f"--append-system-prompt-file={request.beside(_SYSTEM)}", *fresh]


def _literal(text: str) -> str:
    """Text in which Claude finds no variable to replace: the $ of each is one's default value."""
    return text.replace("${", "${KAPELLE_NOT_SET:-$}{")


class Meter:
    """What one attempt uses: by its transcript while it works, and by its results for certain.

    The stream itself tells of an answer only that it began.
    """

    def __init__(self) -> None:
        self._asked_at = ""
        self._session = ""
        self._results: dict[int, JsonObject] = {}

    def from_transcript(self, line: JsonObject) -> list[AgentEvent]:
        """What a line of the transcript says; an answer comes in several lines of one id.

        A fork's begins with the answers of the session it was taken from, which are older than
        the question. Turns are those that Claude itself limits: subagents have none.
        """
        at = line.text("timestamp")
        if line.get("type") == "queue-operation" and line.get("operation") == "enqueue":
            self._asked_at = at
        message = line.mapping("message")
        usage = message.mapping("usage")
        is_answer = line.get("type") == "assistant" and message.get("model") != "<synthetic>"
        if not usage or not is_answer or at < self._asked_at:
            return []
        if line.get("isSidechain") is True:
            turns = 0
        else:
            turns = 1
        data = {**_tokens(usage), "turns": turns, "id": message.text("id") or None}
        return [AgentEvent("usage", data=data)]

    def from_result(self, result: JsonObject) -> dict[str, Any]:
        """What a result says of the attempt, subagents included.

        There are several when work in the background ends after the first answer, and each tells
        what was used since the one before. Where one is missing, or the version does not tell that
        much, there is only the sum over the session.
        """
        since = result.get("model_usage_since_last_result")
        if not isinstance(since, dict):
            cost = _dollars(result.get("total_cost_usd"))
            tokens = _tokens(result.mapping("usage"))
            return {**tokens, "cost_usd": cost, "of_session": ["cost_usd"], "total": True}
        index = result.count("result_index")
        session = result.text("session_id")
        if index == 0 or session != self._session:
            self._session = session
            self._results = {}
        self._results[index] = JsonObject(since)
        if len(self._results) == index + 1:
            return {**_sums(*self._results.values()), "total": True}
        sums = _sums(result.mapping("modelUsage"))
        return {**sums, "of_session": list(sums), "total": True}


def _tokens(usage: JsonObject) -> dict[str, int]:
    cached = usage.count("cache_read_input_tokens")
    written = usage.count("cache_creation_input_tokens")
    return {
        "input_tokens": usage.count("input_tokens") + cached + written,
        "output_tokens": usage.count("output_tokens"),
        "cached_tokens": cached,
    }


def _sums(*results: JsonObject) -> dict[str, float]:
    models = [result.mapping(name) for result in results for name in result]

    def tokens(*names: str) -> int:
        return sum(model.count(name) for model in models for name in names)

    sums: dict[str, float] = {
        "input_tokens": tokens("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens"),
        "output_tokens": tokens("outputTokens"),
        "cached_tokens": tokens("cacheReadInputTokens"),
    }
    # The price of a model that it does not know it guesses.
    if all(model.get("costBasis") != "unknown" for model in models):
        sums["cost_usd"] = sum(_dollars(model.get("costUSD")) for model in models)
    return sums


def _dollars(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    return 0.0


def parse_stream(event: JsonObject) -> list[AgentEvent]:
    """What one object of the stream says, apart from usage."""
    match event.get("type"):
        case "system":
            return _system(event)
        case "assistant":
            return _assistant(event)
        case "user":
            blocks = event.mappings("message", "content")
            return [_tool_result(block) for block in blocks if block.get("type") == "tool_result"]
        case "rate_limit_event":
            limit = event.mapping("rate_limit_info")
            return [*_windows(limit), *_limit_notice(limit)]
        case "result":
            return _result(event)
    return []


def _system(event: JsonObject) -> list[AgentEvent]:
    match event.get("subtype"):
        case "init":
            session = AgentEvent("session", event.text("session_id"))
            events = [session, AgentEvent("model", event.text("model"))]
            for server in event.mappings("mcp_servers"):
                if (status := server.text("status")) in _ABSENT:
                    text = f"The MCP server {server.get('name')} is not there: {status}."
                    events.append(AgentEvent("notice", text, FailureClass.TOOL))
            return events
        case "api_retry":
            code = event.count("error_status")
            kind = event.text("error")
            if code:
                what = f"HTTP status {code}"
            else:
                what = "The provider did not answer"
            again = f"retry {event.count('attempt')} of {event.count('max_retries')}"
            text = f"{what} ({kind}); {again} in {event.count('retry_delay_ms') / 1000:g} s"
            return [error(text, kind="notice", status=code, type=kind)]
        case "retry":
            return _retry(event.mapping("data"))
        case "permission_denied":
            why = event.text("decision_reason") or event.text("message")
            text = f"{event.text('tool_name')} was denied: {why}"
            return [AgentEvent("notice", text, FailureClass.TOOL)]
    return []


def _retry(data: JsonObject) -> list[AgentEvent]:
    """Qwen Code's own: it has a pause only after a limit of rate."""
    if not (delay_ms := data.count("delayMs")):
        return []
    again = f"retry {data.count('attempt')} of {data.count('maxRetries')}"
    text = f"The provider limits the rate; {again} in {delay_ms / 1000:g} s"
    return [AgentEvent("notice", text, FailureClass.RATE_LIMIT)]


def _windows(info: JsonObject) -> Iterator[AgentEvent]:
    """What it tells of each limit; older versions tell of the nearest one only."""
    found = info.mapping("unifiedWindows") or {info.text("rateLimitType"): info}
    for own_name, given in found.items():
        name = own_name
        told = mapping_of(given)
        for word, shown in _WINDOWS.items():
            name = name.replace(word, shown)
        # What is refused for it is used up.
        used = 1.0 if told.get("status") == "rejected" else told.get("utilization")
        data = {"used": used, "resets_at": told.get("resetsAt")}
        filled = {key: value for key, value in data.items() if value is not None}
        if name and filled:
            yield AgentEvent("window", name=name, data=filled)


def _limit_notice(info: JsonObject) -> list[AgentEvent]:
    window = info.text("rateLimitType").replace("_", " ") or "usage"
    if info.get("status") == "rejected" and info.get("isUsingOverage") is not True:
        text = f"The {window} limit of the subscription is used up"
        return [error(text, FailureClass.RATE_LIMIT, "notice", retry_at=_reset(info))]
    if info.get("status") == "allowed_warning":
        used = info.get("utilization")
        if isinstance(used, float):
            share = f"{used:.0%}"
        else:
            share = "Most"
        return [AgentEvent("notice", f"{share} of the {window} limit is used")]
    return []


def _assistant(event: JsonObject) -> list[AgentEvent]:
    blocks = event.mappings("message", "content")
    said = "\n".join(b.text("text") for b in blocks if b.get("type") == "text")
    is_part = bool(event.get("parent_tool_use_id"))  # of a subagent's work
    if event.get("error") or event.get("is_api_error_message") is True:
        return [_api_error(event, said, "notice" if is_part else "error")]
    if said and not is_part:
        events = [AgentEvent("text", said)]
    else:
        events = []
    for block in blocks:
        if block.get("type") == "tool_use":
            name = block.text("name")
            given = block.mapping("input")
            events.append(AgentEvent("tool_call", name=name, data=given))
            if name in _PLANS:
                events.append(plan(given.mappings("todos")))
    return events


def _api_error(event: JsonObject, said: str, kind: EventKind) -> AgentEvent:
    # What Claude Code itself calls an error says more than what the provider does.
    own_type = choose_type(*map(event.text, ("api_error", "error", "api_error_type")))
    retry_at = _reset(event.mapping("api_error_params", "rate_limit_info"))
    name = FailureClass.BILLING if not retry_at and _NO_MONEY.search(said) else ""
    status = event.count("api_error_status")
    text = said or event.text("error")
    return error(text, name, kind, status=status, type=own_type, retry_at=retry_at)


def _reset(info: JsonObject) -> str | None:
    at = parse_reset_time(info.get("resetsAt"))
    return at.isoformat() if at else None


def _tool_result(block: JsonObject) -> AgentEvent:
    texts = [part.text("text") for part in block.mappings("content")]
    text = block.text("content") or "\n".join(filter(None, texts))
    if block.get("is_error") is True:
        data = {"is_error": True}
    else:
        data = {}
    return AgentEvent("tool_result", text, data=data)


def _result(event: JsonObject) -> list[AgentEvent]:
    """Its subtype may be success where is_error says otherwise, and that counts."""
    subtype = event.text("subtype")
    if event.get("is_error") is not True and not subtype.startswith("error"):
        return [AgentEvent("result", event.text("result"))]
    text = _reason(event)
    result = AgentEvent("result", text, data={"is_error": True})
    if subtype == "success" and event.get("terminal_reason"):
        return [result]  # the message before this one said why, and more than this one does
    return [_failure(event, subtype, text), result]


def _reason(event: JsonObject) -> str:
    if event.text("terminal_reason").startswith("aborted"):
        return "It was interrupted."
    errors = "; ".join(map(str, event.list_of("errors")))
    own = event.text("error", "message")
    return event.text("result") or errors or own or event.text("subtype")


def _failure(event: JsonObject, subtype: str, text: str) -> AgentEvent:
    found = _STATUS.search(text)
    status = event.count("api_error_status") or (int(found[1]) if found else 0)
    name = FailureClass.LIMIT if subtype in _LIMITS else ""
    return error(text, name, status=status, type=event.text("api_error_type"))
