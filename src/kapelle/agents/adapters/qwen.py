"""Qwen Code: `qwen -o stream-json`, with the prompt by stdin."""

import glob
import json
import os
import re

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
from kapelle.agents.output import Json, count_of, error, json_object, mapping_of, text_of, usage
from kapelle.agents.program import ProgramAgent, mcp_config, session_lost
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit

_MCP = "qwen-mcp.json"
_SETTINGS = "qwen-defaults.json"
# Of its settings files the one that yields to the user's own.
_DEFAULTS = {
    # Each request is tried seven times as it is; Kapelle itself tries again, and knows when.
    "model": {"generationConfig": {"maxRetries": 0}},
    "security": {"auth": {"selectedType": "openai"}},
    "general": {"enableAutoUpdate": False},
    # Otherwise every attempt ends with further questions to the model, about what to remember.
    "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
}
# What it says on stderr alone.
_LOST_SESSION = re.compile(r"No saved session found with ID \S+")
_LIMITS = {53: "its limit of turns", 55: "a limit of its own settings"}


class QwenAgent(ProgramAgent):
    """Success is exit code 0 after a result that is no error.

    What each answer used is in the session's own file; the stream leaves out subagents, and the
    result tells the sum over the session.
    """

    program = "qwen"
    package = "npm install -g @qwen-code/qwen-code"
    tested = "0.24.4"
    capabilities = Capabilities(
        resume=True, fork=True, model=True, max_turns=True, system_prompt=True, mcp=True, acp=True,
        usage=True,
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

    def command(self, request: AgentRequest) -> Command:
        argv = [self.executable(), "--yolo", "-o", "stream-json"]
        files = {_SETTINGS: json.dumps(_DEFAULTS)}
        env = {
            "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(request.beside(_SETTINGS)),
            # Otherwise it runs as a child of its child, with a warning that nobody reads.
            "QWEN_CODE_NO_RELAUNCH": "true",
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        } | self.environment(request)
        if request.mcp_servers:
            files[_MCP] = mcp_config(request.mcp_servers, _server)
            argv += ["--mcp-config", str(request.beside(_MCP))]
        argv += self._options(request) + request.settings.extra_args
        chat = f"{glob.escape(_home(request, env))}/projects/*/chats/{{session}}.jsonl"
        return Command(argv, env, request.stdin, files, chat)

    def parse(self, line: str) -> list[AgentEvent]:
        event = json_object(line)
        if event is None:
            return []
        return _from_session_file(event) if "sessionId" in event else parse_event(event)

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        verdict = super().judge(summary, exit, tail)
        if verdict.success or exit.kind != "exited" or summary.error:
            return verdict
        if limit := _LIMITS.get(exit.code or 0):
            reason = f"It reached {limit}."
            return Verdict(False, reason, failure=Failure(FailureClass.LIMIT, reason))
        if summary.session_id is None and (found := _LOST_SESSION.search(tail)):
            return session_lost("Qwen Code", found[0])
        return verdict

    def _options(self, request: AgentRequest) -> list[str]:
        argv = []
        if request.settings.base_url or request.credential:
            argv += ["--auth-type", "openai"]
        if request.settings.base_url:
            argv += ["--openai-base-url", request.settings.base_url]
        if model := request.chosen_model:
            argv += ["-m", model]
        if request.session_id:
            argv += ["--resume", request.session_id]
            argv += ["--fork-session"] * request.fork
        if request.max_turns is not None:
            argv += ["--max-session-turns", str(request.max_turns)]
        if request.system_prompt:
            hint = "Put what is long into the prompt, or into a QWEN.md in the repository."
            text = self.require_argument(request.system_prompt, "a system prompt", hint)
            argv.append(f"--append-system-prompt={text}")
        return argv


def _home(request: AgentRequest, env: dict[str, str]) -> str:
    """The directory in which it keeps its sessions."""
    known = {**os.environ, **request.environ, **env}
    own = known.get("QWEN_RUNTIME_DIR") or known.get("QWEN_HOME")
    path = own or os.path.join(known.get("HOME") or "~", ".qwen")
    return os.path.join(request.workspace, os.path.expanduser(path))


def _server(server: McpServer) -> Json:
    # Otherwise the model has to search for the tools before it sees them.
    own = {"trust": True, "alwaysLoadTools": True}
    if server.url:
        return {"httpUrl": server.url, "headers": server.headers, **own}
    command, *args = server.command
    return {"command": command, "args": args, "env": server.env, **own}


def _from_session_file(event: Json) -> list[AgentEvent]:
    """What one line of the session's file says; what is copied there happened before."""
    noted = mapping_of(mapping_of(event.get("systemPayload")).get("uiEvent"))
    if "forkedFrom" in event:
        return []
    match noted.get("event.name"):
        case "qwen-code.api_response":
            return [_answer(noted)]
        case "qwen-code.api_error":
            # It tries again for minutes, and of that it tells nothing elsewhere.
            status = count_of(noted.get("status_code"))
            text = text_of(noted.get("error_message")) or text_of(noted.get("error_type"))
            return [error(text, kind="notice", status=status)]
    return []


def _answer(noted: Json) -> AgentEvent:
    return usage(
        count_of(noted.get("input_token_count")),
        count_of(noted.get("output_token_count")),
        count_of(noted.get("cached_content_token_count")),
        turns=0 if noted.get("subagent_name") else 1,
    )
