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
    """The prompt goes by stdin; tokens are told only in the spans of its telemetry, in a file."""

    program = "copilot"
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
    # Marks of a copilot around the daemon, and telemetry that would go elsewhere.
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
        argv += ["--deny-tool=write"] if request.read_only else []
        with_url = request.settings.base_url
        model = self.require_model(request) if with_url else request.chosen_model
        argv += self.options({"--model": model})
        argv += [f"--resume={request.session_id}"] if request.session_id else []
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
        # Only its log tells that a provider refuses; it drops servers by command without a word.
        files: dict[str, str] = {}
        folder = str(request.beside(_LOGS))
        argv = [f"--log-dir={folder}", "--no-auto-update", *self._servers(request, files)]
        if request.chosen_model:
            env = {"COPILOT_MODEL": request.chosen_model}
        else:
            env = {}
        return AgentCommand(argv, env, files=files, side_log=f"{glob.escape(folder)}/*.log")

    @staticmethod
    def _servers(request: AgentRequest, files: dict[str, str]) -> list[str]:
        if not request.mcp_servers:
            return []
        files[_SERVERS] = json.dumps(request.mcp_config(_LOCAL, _REMOTE))
        return [f"--additional-mcp-config=@{request.beside(_SERVERS)}"]

    def parse(self, line: str) -> list[AgentEvent]:
        """The events of one line; what is no JSON is a message to a person, or its log's."""
        value = json_object(line)
        if not value:
            return _plain_line(line)
        data = value.mapping("data")
        match value.get("type"):
            case "assistant.message" if "agentId" not in value:
                model = AgentEvent("model", data.text("model"))
                answer = data.text("content")
                if answer:
                    return [model, AgentEvent("text", answer)]
                return [model]
            case "tool.execution_start":
                name = data.text("toolName")
                return [AgentEvent("tool_call", name=name, data=data.mapping("arguments"))]
            case "tool.execution_complete":
                output = data.text("result", "content") or data.text("error", "message")
                return [AgentEvent("tool_result", output)]
            case "model.call_failure":
                # What a provider said is handed on as the text of a JSON object.
                told = data.text("errorMessage")
                text = json_object(told).text("message") or told or "a request failed"
                status = data.count("statusCode")
                code = data.text("errorCode")
                return [error(text, kind="notice", status=status, type=code)]
            case "session.warning":
                return [AgentEvent("notice", data.text("message"))]
            case "session.error":
                # The category of its own schema leaves no doubt, where it is one.
                text = data.text("message")
                status = data.count("statusCode")
                kind = choose_type(data.text("errorType"), data.text("errorCode"))
                unknown = status == 404 and text.startswith("Model ")
                if unknown:
                    name = FailureClass.CAPABILITY
                else:
                    name = ""
                return [error(text or "unknown error", name, status=status, type=kind)]
            case "result":
                # The last line; what was answered is in the last message.
                if value.get("exitCode") == 0:
                    failed = {}
                else:
                    failed = {"is_error": True}
                session = AgentEvent("session", value.text("sessionId"))
                return [session, AgentEvent("result", data=failed)]
            case "span":
                return _span(value.mapping("attributes"))
        return []


def _plain_line(line: str) -> list[AgentEvent]:
    """Return the event of a line that is not JSON."""
    if _LOGGED.match(line):
        return _refused(line)
    if line.strip():
        return [AgentEvent("notice", line.strip())]
    return []


def _refused(line: str) -> list[AgentEvent]:
    """A request that its provider did not answer; it makes it again, and says nothing else."""
    facts = json_object(line.partition(_FAILED)[2])
    if not facts:
        return []
    status = facts.count("http_status")
    wait_ms = facts.count("retry_after_ms")
    if wait_ms:
        at = read_retry_headers({"retry-after-ms": str(wait_ms)}, status)
    else:
        at = None
    if status:
        text = f"a request failed with status {status}"
    else:
        text = "a request was not answered"
    if status:
        name = ""
    else:
        name = FailureClass.OVERLOADED
    return [error(text, name, "notice", status=status, retry_at=at)]


def _span(attributes: JsonObject) -> list[AgentEvent]:
    """One request to a model, by a sub-agent too; one that failed tells no tokens."""
    is_chat = attributes.get("gen_ai.operation.name") == "chat"
    if not is_chat or "gen_ai.usage.input_tokens" not in attributes:
        return []
    kinds = ("input_tokens", "output_tokens", "cache_read.input_tokens")
    tokens = [attributes.get(f"gen_ai.usage.{kind}", 0) for kind in kinds]
    session = AgentEvent("session", attributes.text("gen_ai.conversation.id"))
    return [session, usage(*tokens, turns=1)]
