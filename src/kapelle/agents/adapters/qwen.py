"""Qwen Code: `qwen -o stream-json`, with the prompt by stdin."""

import glob
import json
import os
import re
from typing import Any

from kapelle.agents.adapters.claude_stream import parse_event, whole
from kapelle.agents.base import (
    Access,
    AgentEvent,
    AgentRequest,
    Capabilities,
    Command,
    Summary,
    Verdict,
)
from kapelle.agents.output import json_object, mapping_of, text_of
from kapelle.agents.program import LONGEST_ARGUMENT, ProgramAgent
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit

_Json = dict[str, Any]

_MCP = "qwen-mcp.json"
_SETTINGS = "qwen-defaults.json"
# Of its settings files the one that yields to the user's own.
_DEFAULTS = {
    # Each request is tried seven times as it is; Kapelle itself tries again, and knows when.
    "model": {"generationConfig": {"maxRetries": 0}},
    "security": {"auth": {"selectedType": "openai"}},
    "general": {"enableAutoUpdate": False},
    # Otherwise every run ends with further questions to the model, about what to remember.
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
        resume=True,
        fork=True,
        model=True,
        max_turns=True,
        system_prompt=True,
        mcp=True,
        acp=True,
        usage=True,
    )
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
        beside = request.prompt_file.parent
        argv = [self.executable(), "--yolo", "-o", "stream-json"]
        files = {_SETTINGS: json.dumps(_DEFAULTS)}
        env = {
            "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(beside / _SETTINGS),
            # Otherwise it runs as a child of its child, with a warning that nobody reads.
            "QWEN_CODE_NO_RELAUNCH": "true",
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        } | self.environment(request)
        if request.mcp_servers:
            servers = {name: _server(server) for name, server in request.mcp_servers.items()}
            files[_MCP] = json.dumps({"mcpServers": servers})
            argv += ["--mcp-config", str(beside / _MCP)]
        argv += self._options(request)
        return Command(
            argv + request.settings.extra_args,
            env,
            request.prompt.encode("utf-8", "replace"),
            files,
            f"{glob.escape(_home(request, env))}/projects/*/chats/{{session}}.jsonl",
        )

    def parse(self, line: str) -> list[AgentEvent]:
        event = json_object(line)
        if event is None:
            return []
        return _noted(event) if "sessionId" in event else parse_event(event)

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        verdict = super().judge(summary, exit, tail)
        if verdict.success or exit.kind != "exited" or summary.error:
            return verdict
        if limit := _LIMITS.get(exit.code or 0):
            reason = f"It reached {limit}."
            return Verdict(False, reason, failure=Failure(FailureClass.LIMIT, reason))
        if summary.session_id is None and (found := _LOST_SESSION.search(tail)):
            lost = Failure(FailureClass.SESSION_LOST, f"it said: {found[0]}")
            return Verdict(False, "Qwen Code does not have the session any more.", failure=lost)
        return verdict

    def _options(self, request: AgentRequest) -> list[str]:
        argv = []
        if request.settings.base_url or request.credential:
            argv += ["--auth-type", "openai"]
        if request.settings.base_url:
            argv += ["--openai-base-url", request.settings.base_url]
        if model := request.model or request.settings.model:
            argv += ["-m", model]
        if request.session_id:
            argv += ["--resume", request.session_id]
            argv += ["--fork-session"] * request.fork
        if request.max_turns is not None:
            argv += ["--max-session-turns", str(request.max_turns)]
        if request.system_prompt:
            argv.append(f"--append-system-prompt={self._fitting(request.system_prompt)}")
        return argv

    def _fitting(self, system: str) -> str:
        size = len(system.encode("utf-8", "replace"))
        if size > LONGEST_ARGUMENT:
            raise AgentMisconfigured(
                f"{self.name} takes a system prompt as one argument, and {size:,} bytes are too"
                f" many for it: more than {LONGEST_ARGUMENT:,} do not fit on a command line.",
                hint="Put what is long into the prompt, or into a QWEN.md in the repository.",
            )
        return system


def _home(request: AgentRequest, env: dict[str, str]) -> str:
    """The directory in which it keeps its sessions."""
    known = {**os.environ, **request.environ, **env}
    own = known.get("QWEN_RUNTIME_DIR") or known.get("QWEN_HOME")
    path = own or os.path.join(known.get("HOME") or "~", ".qwen")
    return os.path.join(request.workspace, os.path.expanduser(path))


def _server(server: McpServer) -> _Json:
    # Otherwise the model has to search for the tools before it sees them.
    own = {"trust": True, "alwaysLoadTools": True}
    if server.url:
        return {"httpUrl": server.url, "headers": server.headers, **own}
    command, *args = server.command
    return {"command": command, "args": args, "env": server.env, **own}


def _noted(event: _Json) -> list[AgentEvent]:
    """What one line of the session's file says; what is copied there happened before."""
    noted = mapping_of(mapping_of(event.get("systemPayload")).get("uiEvent"))
    if "forkedFrom" in event:
        return []
    match noted.get("event.name"):
        case "qwen-code.api_response":
            return [_answer(noted)]
        case "qwen-code.api_error":
            # It tries again for minutes, and of that it tells nothing elsewhere.
            status = whole(noted.get("status_code"))
            text = text_of(noted.get("error_message")) or text_of(noted.get("error_type"))
            return [AgentEvent("notice", text, data={"status": status} if status else {})]
    return []


def _answer(noted: _Json) -> AgentEvent:
    data = {
        "input_tokens": whole(noted.get("input_token_count")),
        "output_tokens": whole(noted.get("output_token_count")),
        "cached_tokens": whole(noted.get("cached_content_token_count")),
        "turns": 0 if noted.get("subagent_name") else 1,
    }
    return AgentEvent("usage", data=data)
