"""Qwen Code: `qwen -o stream-json`, with the prompt by stdin."""

import json
from typing import ClassVar

from kapelle.agents.adapters.claude import parse_stream
from kapelle.agents.base import Access, AgentAdapter, AgentCommand, AgentRequest, Capabilities
from kapelle.agents.events import AgentEvent, JsonObject, error, json_object, usage
from kapelle.domain.failures import FailureClass

_MCP = "qwen-mcp.json"
_SETTINGS = "qwen-defaults.json"
# Of its settings files the one that yields to the user's own.
_DEFAULTS = {
    # Each request is tried seven times as it is; Kapelle itself tries again, and knows when.
    "model": {"generationConfig": {"maxRetries": 0}},
    "security": {"auth": {"selectedType": "openai"}},
    "general": {"enableAutoUpdate": False},
    # A request more after each answer, over ACP, for what a person might say next.
    "ui": {"enableFollowupSuggestions": False},
    # Otherwise every attempt ends with further questions to the model, about what to remember.
    "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
}
# Without alwaysLoadTools the model has to search for the tools before it sees them.
_MCP_FIELDS = {"trust": True, "alwaysLoadTools": True}


class QwenAgent(AgentAdapter):
    """Success is exit code 0 after a result that is no error.

    What each answer used is in the session's own file; the stream leaves out subagents, and the
    result tells the sum over the session.
    """

    program = "qwen"
    package = "npm install -g @qwen-code/qwen-code"
    tested = "0.24.4"
    restraint = (["--yolo"], ["--approval-mode", "auto-edit"])
    capabilities = Capabilities(
        resume=True, fork=True, model=True, max_turns=True, system_prompt=True, mcp=True, acp=True,
        usage=True, tools=True, read_only=True,
    )  # fmt: skip
    access = Access(
        variables=("OPENAI_API_KEY", "DASHSCOPE_API_KEY", "BAILIAN_CODING_PLAN_API_KEY"),
        login_files=("~/.qwen/oauth_creds.json",),
    )
    passes = (
        "OPENAI_*", "QWEN_*", "DASHSCOPE_*", "BAILIAN_*", "MODELSCOPE_API_KEY", "ANTHROPIC_*",
        "GEMINI_*", "GOOGLE_*", "WEB_SEARCH_*",
    )  # fmt: skip
    # Marks of a session around the daemon.
    drops = (
        "QWEN_CODE", "QWEN_CODE_AGENT_ID", "QWEN_CODE_CLI", "QWEN_CODE_LAUNCHER_*",
        "QWEN_CODE_MANAGED_NPM_*", "QWEN_CODE_MODEL", "QWEN_CODE_MODEL_IDENTITY",
        "QWEN_CODE_MESSAGING_*", "QWEN_CODE_PRIVATE_*", "QWEN_CODE_PROJECT_DIR",
        "QWEN_CODE_PROMPT_ID", "QWEN_CODE_SESSION_ID", "QWEN_CODE_STARTUP_VERSION",
        "QWEN_CODE_IDE_*",
    )  # fmt: skip

    url_variable = "OPENAI_BASE_URL"
    home = ("QWEN_RUNTIME_DIR", "QWEN_HOME", ".qwen")
    # As Gemini, of which it is a fork, it cannot make new files through a client's file system.
    beside_acp = ("daemon",)
    exits: ClassVar = {53: FailureClass.LIMIT, 55: FailureClass.LIMIT}
    last_words = ((r"No saved session found with ID \S+", FailureClass.SESSION_LOST),)

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        env = {
            "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(request.beside(_SETTINGS)),
            # Otherwise it runs as a child of its child, with a warning that nobody reads.
            "QWEN_CODE_NO_RELAUNCH": "true",
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        }
        known = env | self.environment(request)
        chat = self.side_log(request, known, "projects/*/chats/{session}.jsonl")
        return AgentCommand([], env, files={_SETTINGS: json.dumps(_DEFAULTS)}, side_log=chat)

    def command(self, request: AgentRequest) -> AgentCommand:
        argv = [self.executable(), "--yolo", "-o", "stream-json"]
        begun = self.over_acp(request)
        env = begun.env | self.environment(request)
        files = dict(begun.files)
        if request.mcp_servers:
            servers = request.mcp_config(_MCP_FIELDS, _MCP_FIELDS, url_key="httpUrl")
            files[_MCP] = json.dumps(servers)
            argv += ["--mcp-config", str(request.beside(_MCP))]
        if request.settings.base_url or request.credential:
            argv += ["--auth-type", "openai"]
        argv += self.options(
            {
                "--openai-base-url": request.settings.base_url,
                "-m": request.chosen_model,
                "--resume": request.session_id,
                "--fork-session": request.forks,
                "--max-session-turns": request.max_turns,
            }
        )
        argv += [f"--core-tools={name}" for name in request.tools]
        if request.read_only:
            argv += [f"--exclude-tools={name}" for name in ("edit", "write_file", "notebook_edit")]
        if request.system_prompt:
            hint = "Put what is long into the prompt, or into a QWEN.md in the repository."
            text = self.require_argument(request.system_prompt, "a system prompt", hint)
            argv.append(f"--append-system-prompt={text}")
        argv += request.settings.extra_args
        return AgentCommand(argv, env, request.stdin, files, begun.side_log)

    def parse(self, line: str) -> list[AgentEvent]:
        event = json_object(line)
        if "sessionId" in event:
            return _from_session_file(event)
        return parse_stream(event)


def _from_session_file(event: JsonObject) -> list[AgentEvent]:
    """What one line of the session's file says; what is copied there happened before."""
    noted = event.mapping("systemPayload", "uiEvent")
    if "forkedFrom" in event:
        return []
    match noted.get("event.name"):
        case "qwen-code.api_response":
            kinds = ("input_token", "output_token", "cached_content_token")
            turns = 0 if noted.get("subagent_name") else 1
            return [usage(*(noted.count(f"{kind}_count") for kind in kinds), turns=turns)]
        case "qwen-code.api_error":
            # It tries again for minutes, and of that it tells nothing elsewhere.
            status = noted.count("status_code")
            text = noted.text("error_message") or noted.text("error_type")
            return [error(text, kind="notice", status=status)]
    return []
