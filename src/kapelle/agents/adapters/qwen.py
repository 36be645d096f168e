"""Qwen Code: `qwen -o stream-json`, with the prompt on stdin."""

import json
from typing import ClassVar

from kapelle.agents.adapters.claude import parse_stream
from kapelle.agents.base import Access, AgentAdapter, AgentCommand, AgentRequest, Capabilities
from kapelle.agents.events import AgentEvent, JsonObject, error, json_object, usage
from kapelle.domain.failures import FailureClass

_MCP = "qwen-mcp.json"
_SETTINGS = "qwen-defaults.json"
# The content of its file of default settings, which the user's own settings override.
_DEFAULTS = {
    # Qwen would retry each request seven times. Kapelle itself retries, at the announced time.
    "model": {"generationConfig": {"maxRetries": 0}},
    "security": {"auth": {"selectedType": "openai"}},
    "general": {"enableAutoUpdate": False},
    # Otherwise Qwen asks the model after each answer, over ACP, what a person might say next.
    "ui": {"enableFollowupSuggestions": False},
    # Otherwise Qwen asks the model at the end of every attempt what to remember.
    "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
}
# Without alwaysLoadTools the model sees the tools only after it has searched for them.
_MCP_FIELDS = {"trust": True, "alwaysLoadTools": True}


class QwenAgent(AgentAdapter):
    """Success is exit code 0 after a result that is no error.

    The usage of each answer is read from the session's file: the stream leaves out subagents, and
    the result has the sum over the session.
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
    # Variables of a Qwen session in which the daemon was started.
    drops = (
        "QWEN_CODE", "QWEN_CODE_AGENT_ID", "QWEN_CODE_CLI", "QWEN_CODE_LAUNCHER_*",
        "QWEN_CODE_MANAGED_NPM_*", "QWEN_CODE_MODEL", "QWEN_CODE_MODEL_IDENTITY",
        "QWEN_CODE_MESSAGING_*", "QWEN_CODE_PRIVATE_*", "QWEN_CODE_PROJECT_DIR",
        "QWEN_CODE_PROMPT_ID", "QWEN_CODE_SESSION_ID", "QWEN_CODE_STARTUP_VERSION",
        "QWEN_CODE_IDE_*",
    )  # fmt: skip

    url_variable = "OPENAI_BASE_URL"
    home = ("QWEN_RUNTIME_DIR", "QWEN_HOME", ".qwen")
    pinned = (
        "settings.json", "QWEN.md", "commands/", "extensions/", "policies/", "skills/", "agents/",
    )  # fmt: skip
    # Like Gemini, of which it is a fork, Qwen cannot create files through the client's file system.
    beside_acp = ("daemon",)
    exits: ClassVar = {53: FailureClass.LIMIT, 55: FailureClass.LIMIT}
    last_words = ((r"No saved session found with ID \S+", FailureClass.SESSION_LOST),)

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        env = {
            "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(request.beside(_SETTINGS)),
            # Otherwise Qwen runs as a child of its child, and prints a warning.
            "QWEN_CODE_NO_RELAUNCH": "true",
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        }
        whole_env = env | self.environment(request)
        chat = self.side_log(request, whole_env, "projects/*/chats/{session}.jsonl")
        return AgentCommand([], env, files={_SETTINGS: json.dumps(_DEFAULTS)}, side_log=chat)

    def command(self, request: AgentRequest) -> AgentCommand:
        argv = [self.executable(), "--yolo", "-o", "stream-json"]
        basis = self.over_acp(request)
        env = basis.env | self.environment(request)
        files = dict(basis.files)
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
            hint = "Move long instructions into the prompt, or into a QWEN.md in the repository."
            text = self.require_argument(request.system_prompt, "a system prompt", hint)
            argv.append(f"--append-system-prompt={text}")
        argv += request.settings.extra_args
        return AgentCommand(argv, env, request.stdin, files, basis.side_log)

    def parse(self, line: str) -> list[AgentEvent]:
        event = json_object(line)
        if "sessionId" in event:
            return _from_session_file(event)
        return parse_stream(event)


def _from_session_file(event: JsonObject) -> list[AgentEvent]:
    """Return the usage or the notice in one line of the session's file."""
    if "forkedFrom" in event:
        return []  # the line was copied from an earlier session
    record = event.mapping("systemPayload", "uiEvent")
    match record.get("event.name"):
        case "qwen-code.api_response":
            kinds = ("input_token", "output_token", "cached_content_token")
            turns = 0 if record.get("subagent_name") else 1
            return [usage(*(record.count(f"{kind}_count") for kind in kinds), turns=turns)]
        case "qwen-code.api_error":
            # Qwen retries for minutes without an event in its stream.
            status = record.count("status_code")
            text = record.text("error_message") or record.text("error_type")
            return [error(text, kind="notice", status=status)]
    return []
