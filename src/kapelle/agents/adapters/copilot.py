"""GitHub Copilot CLI: `copilot --output-format json`, one JSON object a line."""

import glob
import json
from collections.abc import Mapping
from typing import Any

from kapelle.agents.adapters.copilot_events import parse_line
from kapelle.agents.base import (
    Access,
    AgentEvent,
    AgentRequest,
    Capabilities,
    Command,
    Summary,
    Verdict,
)
from kapelle.agents.program import ProgramAgent
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import McpServer
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

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
        resume=True,
        model=True,
        system_prompt=True,
        mcp=True,
        acp=True,
        usage=True,
    )
    passes = ("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN", "GH_HOST")
    # Marks of a copilot around the daemon, and telemetry that would go elsewhere.
    drops = (
        "COPILOT_AGENT_SESSION_ID",
        "COPILOT_CLI",
        "COPILOT_CLI_BINARY_VERSION",
        "COPILOT_CLI_RESOLVED_DIST_DIR",
        "COPILOT_LOADER_PID",
        "COPILOT_OTEL_*",
    )

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
        model = self._model(request)
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
            files[_SERVERS] = _servers(request.mcp_servers)
            argv.append(f"--additional-mcp-config=@{folder / _SERVERS}")
        stdin = request.prompt.encode("utf-8", "replace")
        log = glob.escape(env[_SPANS_IN])
        return Command(argv + request.settings.extra_args, env, stdin, files, log)

    def parse(self, line: str) -> list[AgentEvent]:
        return parse_line(line)

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        words = "\n".join(line for line in tail.splitlines() if not line.startswith("{"))
        verdict = super().judge(summary, exit, words)
        if verdict.success or exit.kind != "exited" or summary.error:
            return verdict
        if _LOST in words:
            lost = Failure(FailureClass.SESSION_LOST, f"it said: {_LOST}")
            return Verdict(False, "copilot does not know the session any more.", failure=lost)
        if _LOGIN in words:
            kind = FailureClass.ENVIRONMENT if _OFFLINE in words else FailureClass.AUTHENTICATION
            said = words[words.find("Error: ") :].splitlines()[0]
            return Verdict(False, said, failure=Failure(kind, f"it said: {said}"))
        return verdict

    def _model(self, request: AgentRequest) -> str | None:
        model = request.model or request.settings.model
        if request.settings.base_url and not model:
            raise AgentMisconfigured(
                f"The agent {self.name} has a base_url, but no model to ask for there.",
                hint=f"kapelle agents config set {self.name} model NAME",
            )
        return model


def _servers(servers: Mapping[str, McpServer]) -> str:
    return json.dumps({"mcpServers": {name: _server(server) for name, server in servers.items()}})


def _server(server: McpServer) -> dict[str, Any]:
    if server.command:
        program, *arguments = server.command
        local = {"type": "local", "command": program, "args": arguments, "env": server.env}
        return {**local, "tools": ["*"]}
    return {"type": "http", "url": server.url, "headers": server.headers, "tools": ["*"]}
