"""Claude Code: `claude -p --output-format stream-json`, with the prompt on stdin.

Qwen Code prints the same stream, which parse_stream reads, but counts usage differently.
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
    "CLAUDE_CODE_MAX_RETRIES": "2",  # Kapelle itself retries, at the announced time
    "DISABLE_AUTOUPDATER": "1",
}
# The outcomes of a slash command that failed, although the result after it claims success.
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

    A prompt that begins with the name of a slash command executes that command. Claude's own budget
    counts this attempt only, while the cost in its result counts the whole session.
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
    # Variables of a Claude session in which the daemon was started.
    drops = (
        "CLAUDECODE", "CLAUDE_PID", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_EXECPATH",
        "CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_SESSION_*", "CLAUDE_CODE_MESSAGING_*",
        "CLAUDE_CODE_SSE_PORT", "CLAUDE_CODE_REMOTE*", "CLAUDE_AGENT_SDK_*", "CLAUDE_PROJECT_DIR",
        "CLAUDE_ENV_FILE",
    )  # fmt: skip
    home = ("CLAUDE_CONFIG_DIR", ".claude")
    state = (".local/share/claude", ".local/state/claude")
    pinned = (
        "settings.json", "settings.local.json", "CLAUDE.md", "commands/", "agents/", "skills/",
        "plugins/", "hooks/", "output-styles/", "rules/",
    )  # fmt: skip
    hears = True
    url_variable = "ANTHROPIC_BASE_URL"

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        self._meter = Meter()
        # The clouds have credentials of their own, and macOS keeps a login in its keychain.
        environ = {**os.environ, **settings.env}
        uses_cloud = any(environ.get(name) for name in _CLOUDS)
        has_own_login = uses_cloud or sys.platform == "darwin"
        self.access = replace(self.access, needed=not has_own_login)

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        # Without IS_SANDBOX, root has no mode in which Claude asks for no permission.
        env = {"IS_SANDBOX": "1", **_DEFAULTS}
        unset = {name: env[name] for name in env.keys() - request.environ.keys()}
        files: dict[str, str] = {}
        hooks = request.hooks("PreToolUse", _WRITING, "claude")
        if hooks:
            files = {HOOKS: json.dumps({"hooks": hooks}), **request.daemon_file}
        return AgentCommand([], unset, files=files)

    def command(self, request: AgentRequest) -> AgentCommand:
        argv = [self.executable()]
        if not request.interactive:
            argv += ["-p", "--output-format", "stream-json", "--verbose"]
        argv += _permissions(request)
        files: dict[str, str] = {}
        env = {name: value for name, value in _DEFAULTS.items() if name not in request.environ}
        if os.geteuid() == 0:
            # Otherwise Claude refuses to skip permissions for root.
            env["IS_SANDBOX"] = "1"
        if request.mcp_servers:
            argv += _mcp_servers(request, files)
            # Otherwise the model sees the tools only after it has searched for them.
            env["ENABLE_TOOL_SEARCH"] = "false"
        hooks = request.hooks("PreToolUse", _WRITING, "claude") | request.message_hooks()
        if hooks:
            files |= {HOOKS: json.dumps({"hooks": hooks}), **request.daemon_file}
            argv += ["--settings", str(request.beside(HOOKS))]
        budget = None
        if request.budget_usd is not None:
            budget = f"{max(request.budget_usd, _LEAST_USD):.4f}"
        argv += self.options(
            {
                "--model": request.chosen_model,
                "--resume": request.session_id,
                "--fork-session": request.forks,
                "--max-turns": request.max_turns,
                "--max-budget-usd": budget,
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
        events = []
        if event.get("type") == "result":
            events.append(AgentEvent("usage", data=self._meter.from_result(event)))
        events += parse_stream(event)
        outcome = event.text("local_command_outcome", "kind")
        if outcome in _COMMAND_FAILURES:
            text = "Claude Code took the prompt for one of its slash commands, which failed"
            events.append(error(f"{text}: {outcome}", type=_COMMAND))
        return events

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        verdict = super().judge(summary, exit, tail)
        error = summary.error
        if verdict.success and error and error.data.get("type") == _COMMAND:
            return AgentVerdict(False, error.text, summary.result, "failure")
        return verdict


def _permissions(request: AgentRequest) -> list[str]:
    """Return the options for permissions: all tools, or certain tools, or no writing tools."""
    argv = []
    if request.tools:
        # --tools limits Claude's own tools; --allowedTools permits their use.
        own_tools = dict.fromkeys(tool.partition("(")[0] for tool in request.tools)
        servers = [f"mcp__{name}" for name in request.mcp_servers]
        argv += ["--permission-mode", "dontAsk", f"--tools={','.join(own_tools)}"]
        argv.append(f"--allowedTools={','.join([*request.tools, *servers])}")
    elif not request.interactive:
        # In a terminal Claude asks the person.
        argv.append("--dangerously-skip-permissions")
    if request.read_only:
        argv.append(f"--disallowedTools={_WRITING_TOOLS}")
    return argv


def _mcp_servers(request: AgentRequest, files: dict[str, str]) -> list[str]:
    """Return the option for MCP servers, and add the file that it names."""
    config = request.mcp_config({"type": "stdio"}, {"type": "http"}, literal=_literal)
    files[_MCP] = json.dumps(config)
    return ["--mcp-config", str(request.beside(_MCP))]


def _system_prompt(request: AgentRequest, text: str, files: dict[str, str]) -> list[str]:
    """Return the options for the system prompt; add its file if it is too long for one."""
    if ClaudeAgent.fits(text):
        argv = [f"--append-system-prompt={text}"]
    else:
        files[_SYSTEM] = text
        argv = [f"--append-system-prompt-file={request.beside(_SYSTEM)}"]
    if request.forks:
        # The copy of a session keeps the session's system prompt otherwise.
        argv += ["--system-prompt-snapshot", "off"]
    return argv


def _literal(text: str) -> str:
    """Return a text whose variables Claude does not replace.

    Each `$` becomes the default value of a variable that is not set.
    """
    return text.replace("${", "${KAPELLE_NOT_SET:-$}{")


class Meter:
    """Counts the usage of one attempt: estimated by its transcript, then exact by its results.

    The stream reports only that an answer began, so the transcript is read while Claude works.
    """

    def __init__(self) -> None:
        self._prompt_at = ""  # the time of the attempt's prompt in the transcript
        self._session = ""
        self._results: dict[int, JsonObject] = {}

    def from_transcript(self, line: JsonObject) -> list[AgentEvent]:
        """Return the usage of the answer in a line; several lines of one id are one answer.

        The transcript of a fork begins with the answers of the session that it was copied from.
        These are older than the prompt. Turns are counted as Claude limits them, so those of
        subagents do not count.
        """
        at = line.text("timestamp")
        if line.get("type") == "queue-operation" and line.get("operation") == "enqueue":
            self._prompt_at = at
        message = line.mapping("message")
        usage = message.mapping("usage")
        is_answer = line.get("type") == "assistant" and message.get("model") != "<synthetic>"
        if not usage or not is_answer or at < self._prompt_at:
            return []
        turns = 0 if line.get("isSidechain") is True else 1
        data = {**_tokens(usage), "turns": turns, "id": message.text("id") or None}
        return [AgentEvent("usage", data=data)]

    def from_result(self, result: JsonObject) -> dict[str, Any]:
        """Return the usage of the attempt by a result, subagents included.

        There are several results if background work ends after the first answer, and each reports
        the usage since the one before. If one of them is missing, or Claude's version does not
        report it, only the sum over the session is known.
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
    cached_tokens = usage.count("cache_read_input_tokens")
    stored_tokens = usage.count("cache_creation_input_tokens")
    return {
        "input_tokens": usage.count("input_tokens") + cached_tokens + stored_tokens,
        "output_tokens": usage.count("output_tokens"),
        "cached_tokens": cached_tokens,
    }


def _sums(*results: JsonObject) -> dict[str, float]:
    """Return the usage over all models of some results, which name each model with its usage."""
    models = []
    for result in results:
        models += [result.mapping(name) for name in result]
    sums: dict[str, float] = dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens"), 0)
    for model in models:
        cached_tokens = model.count("cacheReadInputTokens")
        stored_tokens = model.count("cacheCreationInputTokens")
        sums["input_tokens"] += model.count("inputTokens") + cached_tokens + stored_tokens
        sums["output_tokens"] += model.count("outputTokens")
        sums["cached_tokens"] += cached_tokens
    # Claude guesses the price of a model that it does not know.
    if all(model.get("costBasis") != "unknown" for model in models):
        sums["cost_usd"] = sum(_dollars(model.get("costUSD")) for model in models)
    return sums


def _dollars(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    return 0.0


def parse_stream(event: JsonObject) -> list[AgentEvent]:
    """Return the events of one object of the stream, without usage."""
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
                status = server.text("status")
                if status in _ABSENT:
                    text = f"The MCP server {server.get('name')} is unavailable: {status}."
                    events.append(AgentEvent("notice", text, FailureClass.TOOL))
            return events
        case "api_retry":
            code = event.count("error_status")
            kind = event.text("error")
            trouble = f"HTTP status {code}" if code else "The provider did not answer"
            retry = f"retry {event.count('attempt')} of {event.count('max_retries')}"
            text = f"{trouble} ({kind}); {retry} in {event.count('retry_delay_ms') / 1000:g} s"
            return [error(text, kind="notice", status=code, type=kind)]
        case "retry":
            return _retry(event.mapping("data"))
        case "permission_denied":
            reason = event.text("decision_reason") or event.text("message")
            text = f"{event.text('tool_name')} was denied: {reason}"
            return [AgentEvent("notice", text, FailureClass.TOOL)]
    return []


def _retry(data: JsonObject) -> list[AgentEvent]:
    """Return the notice of a retry by Qwen Code, which pauses only after a rate limit."""
    delay_ms = data.count("delayMs")
    if not delay_ms:
        return []
    retry = f"retry {data.count('attempt')} of {data.count('maxRetries')}"
    text = f"The provider limits the rate; {retry} in {delay_ms / 1000:g} s"
    return [AgentEvent("notice", text, FailureClass.RATE_LIMIT)]


def _windows(info: JsonObject) -> Iterator[AgentEvent]:
    """Yield the state of each limit; older versions report the nearest limit only."""
    windows = info.mapping("unifiedWindows") or {info.text("rateLimitType"): info}
    for own_name, value in windows.items():
        window = mapping_of(value)
        name = own_name
        for word, replacement in _WINDOWS.items():
            name = name.replace(word, replacement)
        data = {"used": window.get("utilization"), "resets_at": window.get("resetsAt")}
        if window.get("status") == "rejected":
            data["used"] = 1.0
        fields = {key: value for key, value in data.items() if value is not None}
        if name and fields:
            yield AgentEvent("window", name=name, data=fields)


def _limit_notice(info: JsonObject) -> list[AgentEvent]:
    window = info.text("rateLimitType").replace("_", " ") or "usage"
    if info.get("status") == "rejected" and info.get("isUsingOverage") is not True:
        text = f"The {window} limit of the subscription is used up"
        return [error(text, FailureClass.RATE_LIMIT, "notice", retry_at=_reset(info))]
    if info.get("status") == "allowed_warning":
        utilization = info.get("utilization")
        share = f"{utilization:.0%}" if isinstance(utilization, float) else "Most"
        return [AgentEvent("notice", f"{share} of the {window} limit is used")]
    return []


def _assistant(event: JsonObject) -> list[AgentEvent]:
    blocks = event.mappings("message", "content")
    text = "\n".join(block.text("text") for block in blocks if block.get("type") == "text")
    is_of_subagent = bool(event.get("parent_tool_use_id"))
    if event.get("error") or event.get("is_api_error_message") is True:
        return [_api_error(event, text, "notice" if is_of_subagent else "error")]
    events = []
    if text and not is_of_subagent:
        events.append(AgentEvent("text", text))
    for block in blocks:
        if block.get("type") == "tool_use":
            name = block.text("name")
            arguments = block.mapping("input")
            events.append(AgentEvent("tool_call", name=name, data=arguments))
            if name in _PLANS:
                events.append(plan(arguments.mappings("todos")))
    return events


def _api_error(event: JsonObject, text: str, kind: EventKind) -> AgentEvent:
    # Claude Code's own type of an error is more precise than the provider's.
    error_type = choose_type(*map(event.text, ("api_error", "error", "api_error_type")))
    retry_at = _reset(event.mapping("api_error_params", "rate_limit_info"))
    name = ""
    if not retry_at and _NO_MONEY.search(text):
        name = FailureClass.BILLING
    status = event.count("api_error_status")
    message = text or event.text("error")
    return error(message, name, kind, status=status, type=error_type, retry_at=retry_at)


def _reset(info: JsonObject) -> str | None:
    at = parse_reset_time(info.get("resetsAt"))
    return at.isoformat() if at else None


def _tool_result(block: JsonObject) -> AgentEvent:
    texts = [part.text("text") for part in block.mappings("content")]
    text = block.text("content") or "\n".join(filter(None, texts))
    data = {"is_error": True} if block.get("is_error") is True else {}
    return AgentEvent("tool_result", text, data=data)


def _result(event: JsonObject) -> list[AgentEvent]:
    """Return the events of a result; is_error overrides a subtype that claims success."""
    subtype = event.text("subtype")
    if event.get("is_error") is not True and not subtype.startswith("error"):
        return [AgentEvent("result", event.text("result"))]
    text = _reason(event)
    result = AgentEvent("result", text, data={"is_error": True})
    if subtype == "success" and event.get("terminal_reason"):
        return [result]  # the message before this one was a more precise error
    return [_failure(event, subtype, text), result]


def _reason(event: JsonObject) -> str:
    if event.text("terminal_reason").startswith("aborted"):
        return "It was interrupted."
    errors = "; ".join(map(str, event.list_of("errors")))
    message = event.text("error", "message")
    return event.text("result") or errors or message or event.text("subtype")


def _failure(event: JsonObject, subtype: str, text: str) -> AgentEvent:
    status = event.count("api_error_status")
    match = _STATUS.search(text)
    if not status and match:
        status = int(match[1])
    name = FailureClass.LIMIT if subtype in _LIMITS else ""
    return error(text, name, status=status, type=event.text("api_error_type"))
