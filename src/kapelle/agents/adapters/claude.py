"""Claude Code: `claude -p --output-format stream-json`, with the prompt by stdin."""

import glob
import os
import sys
from collections.abc import Mapping

from kapelle.agents.adapters.claude_stream import parse_event
from kapelle.agents.base import (
    Access,
    AgentEvent,
    AgentRequest,
    Capabilities,
    Command,
    Summary,
    Verdict,
)
from kapelle.agents.output import Json, count_of, json_object, mapping_of, text_of
from kapelle.agents.program import LONGEST_ARGUMENT, ProgramAgent, mcp_config
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
_CLOUDS = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")
_MCP = "claude-mcp.json"
_SYSTEM = "claude-system.txt"
_LEAST_USD = 0.0001
_DEFAULTS = {
    "CLAUDE_CODE_MAX_RETRIES": "2",  # Kapelle itself tries again, and knows when
    "DISABLE_AUTOUPDATER": "1",
}
# What comes of a slash command that did nothing; the result after it claims success.
_COMMAND_FAILURES = frozenset({"unavailable_headless", "unknown", "failed", "restart_required"})
_COMMAND = "local_command"


class ClaudeAgent(ProgramAgent):
    """Success is exit code 0 after a result that is no error.

    A prompt that begins with the name of a slash command is that command. The budget that Claude
    is given counts the attempt alone, the cost in its result the session's earlier ones too.
    """

    program = "claude"
    package = "npm install -g @anthropic-ai/claude-code"
    tested = "2.1.325"
    capabilities = Capabilities(
        resume=True, fork=True, model=True, max_turns=True, budget=True, system_prompt=True,
        mcp=True, hooks=True, usage=True, cost=True,
    )  # fmt: skip
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

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        self._meter = Meter()
        known = {**os.environ, **settings.env}
        login = os.path.join(_home(known), ".credentials.json")
        # The clouds have credentials of their own, and macOS keeps a login in its keychain.
        elsewhere = sys.platform == "darwin" or any(known.get(name) for name in _CLOUDS)
        self.access = Access(_KEYS, (login,), needed=not elsewhere)

    def command(self, request: AgentRequest) -> Command:
        argv = [self.executable(), "-p", "--output-format", "stream-json", "--verbose"]
        argv.append("--dangerously-skip-permissions")
        files: dict[str, str] = {}
        env = {name: value for name, value in _DEFAULTS.items() if name not in request.environ}
        if os.geteuid() == 0:
            # Otherwise it refuses to work for root without asking.
            env["IS_SANDBOX"] = "1"
        if request.settings.base_url:
            env["ANTHROPIC_BASE_URL"] = request.settings.base_url
        if request.mcp_servers:
            files[_MCP] = mcp_config(request.mcp_servers, _server)
            argv += ["--mcp-config", str(request.beside(_MCP))]
            # Otherwise the model has to search for the tools before it sees them.
            env["ENABLE_TOOL_SEARCH"] = "false"
        argv += _options(request)
        if request.system_prompt:
            argv += _system(request, request.system_prompt, files)
        env |= self.environment(request)
        home = os.path.join(request.workspace, _home({**os.environ, **request.environ, **env}))
        transcript = f"{glob.escape(home)}/projects/*/{{session}}.jsonl"
        argv += request.settings.extra_args
        return Command(argv, env, request.stdin, files, transcript)

    def parse(self, line: str) -> list[AgentEvent]:
        event = json_object(line)
        if event is None:
            return []
        if "sessionId" in event:
            return self._meter.from_transcript(event)
        events = parse_event(event) + _command_error(event)
        return (
            [self._meter.from_result(event), *events] if event.get("type") == "result" else events
        )

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        verdict = super().judge(summary, exit, tail)
        error = summary.error
        if verdict.success and error and error.data.get("type") == _COMMAND:
            return Verdict(False, error.text, summary.result, "failure")
        return verdict


def _home(env: Mapping[str, str]) -> str:
    """The directory in which it keeps its login and its sessions."""
    own = env.get("CLAUDE_CONFIG_DIR") or os.path.join(env.get("HOME") or "~", ".claude")
    return os.path.expanduser(own)


def _options(request: AgentRequest) -> list[str]:
    argv = []
    if model := request.chosen_model:
        argv += ["--model", model]
    if request.session_id:
        argv += ["--resume", request.session_id]
        argv += ["--fork-session"] * request.fork
    if request.max_turns is not None:
        argv += ["--max-turns", str(request.max_turns)]
    if request.budget_usd is not None:
        argv += ["--max-budget-usd", f"{max(request.budget_usd, _LEAST_USD):.4f}"]
    return argv


def _system(request: AgentRequest, text: str, files: dict[str, str]) -> list[str]:
    # A session keeps the system prompt that it began with; a task of its own has its own.
    fresh = ["--system-prompt-snapshot", "off"] if request.session_id and request.fork else []
    if len(text.encode("utf-8", "replace")) <= LONGEST_ARGUMENT:
        return [f"--append-system-prompt={text}", *fresh]
    files[_SYSTEM] = text
    return [f"--append-system-prompt-file={request.beside(_SYSTEM)}", *fresh]


def _server(server: McpServer) -> Json:
    if server.url:
        headers = {name: _literal(value) for name, value in server.headers.items()}
        return {"type": "http", "url": _literal(server.url), "headers": headers}
    command, *args = [_literal(argument) for argument in server.command]
    env = {name: _literal(value) for name, value in server.env.items()}
    return {"type": "stdio", "command": command, "args": args, "env": env}


def _literal(text: str) -> str:
    """Text in which Claude finds no variable to replace: the $ of each is one's default value."""
    return text.replace("${", "${KAPELLE_NOT_SET:-$}{")


def _command_error(event: Json) -> list[AgentEvent]:
    outcome = mapping_of(event.get("local_command_outcome")).get("kind")
    if text_of(outcome) not in _COMMAND_FAILURES:
        return []
    text = f"Claude Code took the prompt for a command of its own, which came to nothing: {outcome}"
    return [AgentEvent("error", text, data={"type": _COMMAND})]


class Meter:
    """What one attempt uses: by its transcript while it works, and by its results for certain.

    The stream itself tells of an answer only that it began.
    """

    def __init__(self) -> None:
        self._asked_at = ""
        self._session = ""
        self._results: dict[int, Json] = {}

    def from_transcript(self, line: Json) -> list[AgentEvent]:
        """What a line of the transcript says; an answer comes in several lines of one id.

        A fork's begins with the answers of the session it was taken from, which are older than
        the question. Turns are those that Claude itself limits: subagents have none.
        """
        at = text_of(line.get("timestamp"))
        if line.get("type") == "queue-operation" and line.get("operation") == "enqueue":
            self._asked_at = at
        message = mapping_of(line.get("message"))
        usage = mapping_of(message.get("usage"))
        is_answer = line.get("type") == "assistant" and message.get("model") != "<synthetic>"
        if not usage or not is_answer or at < self._asked_at:
            return []
        turns = 0 if line.get("isSidechain") is True else 1
        data = {**_tokens(usage), "turns": turns, "id": text_of(message.get("id")) or None}
        return [AgentEvent("usage", data=data)]

    def from_result(self, result: Json) -> AgentEvent:
        """What a result says of the attempt, subagents included.

        There are several when work in the background ends after the first answer, and each tells
        what was used since the one before. Where one is missing, or the version does not tell that
        much, there is only the sum over the session.
        """
        return AgentEvent("usage", data={**self._sums(result), "total": True})

    def _sums(self, result: Json) -> Json:
        since = result.get("model_usage_since_last_result")
        if not isinstance(since, dict):
            tokens = _tokens(mapping_of(result.get("usage")))
            cost = _dollars(result.get("total_cost_usd"))
            return {**tokens, "cost_usd": cost, "of_session": ["cost_usd"]}
        index, session = (count_of(result.get("result_index")), text_of(result.get("session_id")))
        if index == 0 or session != self._session:
            self._session, self._results = session, {}
        self._results[index] = since
        if len(self._results) == index + 1:
            return _sums(*self._results.values())
        sums = _sums(mapping_of(result.get("modelUsage")))
        return {**sums, "of_session": list(sums)}


def _tokens(usage: Json) -> Json:
    cached = count_of(usage.get("cache_read_input_tokens"))
    written = count_of(usage.get("cache_creation_input_tokens"))
    return {
        "input_tokens": count_of(usage.get("input_tokens")) + cached + written,
        "output_tokens": count_of(usage.get("output_tokens")),
        "cached_tokens": cached,
    }


def _sums(*results: Json) -> Json:
    models = [mapping_of(model) for result in results for model in result.values()]

    def tokens(*names: str) -> int:
        return sum(count_of(model.get(name)) for model in models for name in names)

    sums: Json = {
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
