"""GitHub Copilot CLI: `copilot --output-format json`, one JSON object a line."""

import glob

from kapelle.agents.base import (
    Access,
    AgentEvent,
    AgentRequest,
    Capabilities,
    Command,
    Summary,
    Verdict,
)
from kapelle.agents.output import Json, count_of, error, json_object, mapping_of, text_of, usage
from kapelle.agents.program import ProgramAgent, mcp_config, session_lost
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

# The categories of its own schema that leave no doubt.
_CLASSES = {
    "authentication": FailureClass.AUTHENTICATION,
    "authorization": FailureClass.AUTHENTICATION,
    "quota": FailureClass.BILLING,
    "rate_limit": FailureClass.RATE_LIMIT,
    "context_limit": FailureClass.CONTEXT_OVERFLOW,
}
_INSTRUCTIONS = "kapelle.instructions.md"  # copilot looks for *.instructions.md
_SERVERS = "copilot-mcp.json"
_SPANS = "copilot-spans.jsonl"
_SPANS_IN = "COPILOT_OTEL_FILE_EXPORTER_PATH"
_FOLDERS = "COPILOT_CUSTOM_INSTRUCTIONS_DIRS"
_LOST = "No session, task, or name matched"
_LOGIN = "To authenticate, you can use any of the following methods"
_OFFLINE = "Check your network connection"


class CopilotAgent(ProgramAgent):
    """The prompt goes by stdin; tokens are told only in the spans of its telemetry, in a file."""

    program = "copilot"
    package = "npm install -g @github/copilot"
    tested = "1.0.102"
    capabilities = Capabilities(
        resume=True, model=True, system_prompt=True, mcp=True, acp=True, usage=True
    )
    passes = ("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN", "GH_HOST")
    # Marks of a copilot around the daemon, and telemetry that would go elsewhere.
    drops = (
        "COPILOT_AGENT_SESSION_ID", "COPILOT_CLI", "COPILOT_CLI_BINARY_VERSION",
        "COPILOT_CLI_RESOLVED_DIST_DIR", "COPILOT_LOADER_PID", "COPILOT_OTEL_*",
    )  # fmt: skip

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        if settings.base_url:
            self.access = Access(("COPILOT_PROVIDER_API_KEY",), needed=False)
        else:
            self.access = Access(
                ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"),
                ("~/.copilot/config.json", "~/.config/gh/hosts.yml"),
            )

    def command(self, request: AgentRequest) -> Command:
        argv = [self.executable(), "--output-format", "json", "--allow-all"]
        argv += ["--no-ask-user", "--no-auto-update", "--no-color"]
        with_url = request.settings.base_url
        model = self.require_model(request) if with_url else request.chosen_model
        argv += ["--model", model] if model else []
        argv += [f"--resume={request.session_id}"] if request.session_id else []
        folder = request.prompt_file.parent
        env = {_SPANS_IN: str(folder / _SPANS), **self.environment(request)}
        files: dict[str, str] = {}
        if request.settings.base_url:
            env["COPILOT_PROVIDER_BASE_URL"] = request.settings.base_url
        if request.system_prompt:
            files[_INSTRUCTIONS] = request.system_prompt
            env[_FOLDERS] = ",".join(filter(None, [str(folder), env.get(_FOLDERS)]))
        if request.mcp_servers:
            files[_SERVERS] = mcp_config(request.mcp_servers, _server)
            argv.append(f"--additional-mcp-config=@{folder / _SERVERS}")
        log = glob.escape(env[_SPANS_IN])
        return Command(argv + request.settings.extra_args, env, request.stdin, files, log)

    def parse(self, line: str) -> list[AgentEvent]:
        """The events of one line; what is no JSON is a message to a person."""
        value = json_object(line)
        if value is None:
            return [AgentEvent("notice", line.strip())] if line.strip() else []
        data = mapping_of(value.get("data"))
        match value.get("type"):
            case "assistant.message":
                return _message(data) if "agentId" not in value else []
            case "tool.execution_start":
                name = text_of(data.get("toolName"))
                return [AgentEvent("tool_call", name=name, data=mapping_of(data.get("arguments")))]
            case "tool.execution_complete":
                return [_tool_result(data)]
            case "model.call_failure":
                status, code = count_of(data.get("statusCode")), text_of(data.get("errorCode"))
                return [error(_reason(data), kind="notice", status=status, type=code)]
            case "session.warning":
                return [AgentEvent("notice", text_of(data.get("message")))]
            case "session.error":
                return [_error(data)]
            case "result":
                return _result(value)
            case "span":
                return _span(mapping_of(value.get("attributes")))
            case _:
                return []

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        words = "\n".join(line for line in tail.splitlines() if not line.startswith("{"))
        verdict = super().judge(summary, exit, words)
        if verdict.success or exit.kind != "exited" or summary.error:
            return verdict
        if _LOST in words:
            return session_lost("copilot", _LOST)
        if _LOGIN in words:
            kind = FailureClass.ENVIRONMENT if _OFFLINE in words else FailureClass.AUTHENTICATION
            said = words[words.find("Error: ") :].splitlines()[0]
            return Verdict(False, said, failure=Failure(kind, f"it said: {said}"))
        return verdict


def _server(server: McpServer) -> Json:
    if server.command:
        program, *arguments = server.command
        local = {"type": "local", "command": program, "args": arguments, "env": server.env}
        return {**local, "tools": ["*"]}
    return {"type": "http", "url": server.url, "headers": server.headers, "tools": ["*"]}


def _message(data: Json) -> list[AgentEvent]:
    events = [AgentEvent("model", text_of(data.get("model")))]
    text = text_of(data.get("content"))
    return [*events, AgentEvent("text", text)] if text else events


def _tool_result(data: Json) -> AgentEvent:
    output = text_of(mapping_of(data.get("result")).get("content"))
    problem = text_of(mapping_of(data.get("error")).get("message"))
    return AgentEvent("tool_result", output or problem)


def _reason(data: Json) -> str:
    """What a provider said, which is handed on as the text of a JSON object."""
    said = text_of(data.get("errorMessage"))
    return text_of((json_object(said) or {}).get("message")) or said or "a request failed"


def _error(data: Json) -> AgentEvent:
    message, status = text_of(data.get("message")), count_of(data.get("statusCode"))
    name = _CLASSES.get(text_of(data.get("errorType")), "")
    if status == 404 and message.startswith("Model "):
        name = FailureClass.CAPABILITY
    code = text_of(data.get("errorCode"))
    return error(message or "unknown error", name, status=status, type=code)


def _result(value: Json) -> list[AgentEvent]:
    """The last line; what was answered is in the last message."""
    session = AgentEvent("session", text_of(value.get("sessionId")))
    failed = {} if value.get("exitCode") == 0 else {"is_error": True}
    return [session, AgentEvent("result", data=failed)]


def _span(attributes: Json) -> list[AgentEvent]:
    """One request to a model, by a sub-agent too; one that failed tells no tokens."""
    if attributes.get("gen_ai.operation.name") != "chat":
        return []
    if "gen_ai.usage.input_tokens" not in attributes:
        return []
    kinds = ("input_tokens", "output_tokens", "cache_read.input_tokens")
    tokens = [attributes.get(f"gen_ai.usage.{kind}", 0) for kind in kinds]
    session = AgentEvent("session", text_of(attributes.get("gen_ai.conversation.id")))
    return [session, usage(*tokens, turns=1)]
