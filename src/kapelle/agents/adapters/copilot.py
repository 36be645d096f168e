"""GitHub Copilot CLI: `copilot --output-format json`, one JSON object a line."""

import glob
import json
import re

from kapelle.agents.base import Access, AgentAdapter, AgentCommand, AgentRequest, Capabilities
from kapelle.agents.events import AgentEvent, JsonObject, error, json_object, usage
from kapelle.agents.failures import choose_type
from kapelle.agents.resets import read_retry_headers
from kapelle.domain.failures import FailureClass

_INSTRUCTIONS = "kapelle.instructions.md"  # copilot looks for *.instructions.md
_SERVERS = "copilot-mcp.json"
_LOCAL = {"type": "local", "tools": ["*"]}
_REMOTE = {"type": "http", "tools": ["*"]}
_LOGS = "copilot-logs"
_LOGGED = re.compile(r"\d{4}-\d\d-\d\dT\S+ \[")
_FAILED = "Model provider request failed "
_SPANS = "copilot-spans.jsonl"
_SPANS_IN = "COPILOT_OTEL_FILE_EXPORTER_PATH"
_FOLDERS = "COPILOT_CUSTOM_INSTRUCTIONS_DIRS"
_LOGIN = r"[\s\S]*To authenticate, you can use any of the following methods"
_OFFLINE = r"[\s\S]*Check your network connection"


class CopilotAgent(AgentAdapter):
    """The prompt goes to stdin; only the spans of its telemetry, in a file, count tokens."""

    program = "copilot"
    state = (".copilot",)
    pinned = (".copilot/config.json", ".copilot/mcp-config.json")
    package = "npm install -g @github/copilot"
    tested = "1.0.102"
    restraint = (["--allow-all"], ["--allow-tool=write"])
    capabilities = Capabilities(
        resume=True, model=True, system_prompt=True, mcp=True, acp=True, usage=True,
        read_only=True,
    )  # fmt: skip
    access = Access(
        ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"),
        ("~/.copilot/config.json", "~/.config/gh/hosts.yml"),
    )
    access_by_url = Access(("COPILOT_PROVIDER_API_KEY",), needed=False)
    passes = ("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN", "GH_HOST")
    # Variables of a Copilot session in which the daemon was started, and the user's telemetry.
    drops = (
        "COPILOT_AGENT_SESSION_ID", "COPILOT_CLI", "COPILOT_CLI_BINARY_VERSION",
        "COPILOT_CLI_RESOLVED_DIST_DIR", "COPILOT_LOADER_PID", "COPILOT_OTEL_*",
    )  # fmt: skip

    url_variable = "COPILOT_PROVIDER_BASE_URL"
    beside_acp = ("model", "mcp_servers")
    last_words = (
        ("No session, task, or name matched", FailureClass.SESSION_LOST),
        (rf"Error: .*(?={_OFFLINE})(?={_LOGIN})", FailureClass.ENVIRONMENT),
        (rf"Error: .*(?={_LOGIN})", FailureClass.AUTHENTICATION),
    )

    def command(self, request: AgentRequest) -> AgentCommand:
        argv = [self.executable(), "--output-format", "json", "--allow-all"]
        argv += ["--no-ask-user", "--no-auto-update", "--no-color"]
        if request.read_only:
            argv.append("--deny-tool=write")
        model = request.chosen_model
        if request.settings.base_url:
            model = self.require_model(request)
        argv += self.options({"--model": model})
        if request.session_id:
            argv.append(f"--resume={request.session_id}")
        folder = request.prompt_file.parent
        env = {_SPANS_IN: str(folder / _SPANS), **self.environment(request)}
        files: dict[str, str] = {}
        if request.system_prompt:
            files[_INSTRUCTIONS] = request.system_prompt
            env[_FOLDERS] = ",".join(filter(None, [str(folder), env.get(_FOLDERS)]))
        argv += self._servers(request, files)
        log = glob.escape(env[_SPANS_IN])
        return AgentCommand(argv + request.settings.extra_args, env, request.stdin, files, log)

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        # Only the log shows a provider's refusals. MCP servers go on the command line, because
        # Copilot silently drops servers by command that come over the protocol.
        files: dict[str, str] = {}
        folder = str(request.beside(_LOGS))
        argv = [f"--log-dir={folder}", "--no-auto-update", *self._servers(request, files)]
        env = {}
        if request.chosen_model:
            env["COPILOT_MODEL"] = request.chosen_model
        return AgentCommand(argv, env, files=files, side_log=f"{glob.escape(folder)}/*.log")

    @staticmethod
    def _servers(request: AgentRequest, files: dict[str, str]) -> list[str]:
        """Return the option for MCP servers, and add the file that it names."""
        if not request.mcp_servers:
            return []
        files[_SERVERS] = json.dumps(request.mcp_config(_LOCAL, _REMOTE))
        return [f"--additional-mcp-config=@{request.beside(_SERVERS)}"]

    def parse(self, line: str) -> list[AgentEvent]:
        """Return the events of one line: an event in JSON, a message to a person, or its log."""
        value = json_object(line)
        if not value:
            return _plain_line(line)
        data = value.mapping("data")
        match value.get("type"):
            case "assistant.message" if "agentId" not in value:
                return _message(data)
            case "tool.execution_start":
                name = data.text("toolName")
                return [AgentEvent("tool_call", name=name, data=data.mapping("arguments"))]
            case "tool.execution_complete":
                output = data.text("result", "content") or data.text("error", "message")
                return [AgentEvent("tool_result", output)]
            case "model.call_failure":
                return [_failed_call(data)]
            case "session.warning":
                return [AgentEvent("notice", data.text("message"))]
            case "session.error":
                return [_session_error(data)]
            case "result":
                # The last line; the answer itself is in the last message.
                result_data = {} if value.get("exitCode") == 0 else {"is_error": True}
                session = AgentEvent("session", value.text("sessionId"))
                return [session, AgentEvent("result", data=result_data)]
            case "span":
                return _span(value.mapping("attributes"))
        return []


def _message(data: JsonObject) -> list[AgentEvent]:
    events = [AgentEvent("model", data.text("model"))]
    answer = data.text("content")
    if answer:
        events.append(AgentEvent("text", answer))
    return events


def _failed_call(data: JsonObject) -> AgentEvent:
    """Return the notice of a failed request to a model."""
    # The provider's message arrives as the text of a JSON object.
    message = data.text("errorMessage")
    text = json_object(message).text("message") or message or "a request failed"
    status = data.count("statusCode")
    return error(text, kind="notice", status=status, type=data.text("errorCode"))


def _session_error(data: JsonObject) -> AgentEvent:
    text = data.text("message")
    status = data.count("statusCode")
    # The type of Copilot's own schema is exact; the provider's code is used for any other.
    error_type = choose_type(data.text("errorType"), data.text("errorCode"))
    name = ""
    if status == 404 and text.startswith("Model "):
        name = FailureClass.CAPABILITY
    return error(text or "unknown error", name, status=status, type=error_type)


def _plain_line(line: str) -> list[AgentEvent]:
    """Return the event of a line that is not JSON."""
    if _LOGGED.match(line):
        return _unanswered_request(line)
    if line.strip():
        return [AgentEvent("notice", line.strip())]
    return []


def _unanswered_request(line: str) -> list[AgentEvent]:
    """Return the notice of a request that failed; Copilot retries it without an event."""
    facts = json_object(line.partition(_FAILED)[2])
    if not facts:
        return []
    status = facts.count("http_status")
    at = None
    wait_ms = facts.count("retry_after_ms")
    if wait_ms:
        at = read_retry_headers({"retry-after-ms": str(wait_ms)}, status)
    if status:
        text = f"a request failed with status {status}"
        return [error(text, kind="notice", status=status, retry_at=at)]
    return [error("a request was not answered", FailureClass.OVERLOADED, "notice", retry_at=at)]


def _span(attributes: JsonObject) -> list[AgentEvent]:
    """Return session and usage of one request to a model, by a subagent, too."""
    is_chat = attributes.get("gen_ai.operation.name") == "chat"
    if not is_chat or "gen_ai.usage.input_tokens" not in attributes:
        return []
    kinds = ("input_tokens", "output_tokens", "cache_read.input_tokens")
    tokens = [attributes.get(f"gen_ai.usage.{kind}", 0) for kind in kinds]
    session = AgentEvent("session", attributes.text("gen_ai.conversation.id"))
    return [session, usage(*tokens, turns=1)]
