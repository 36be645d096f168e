"""Any agent that speaks the Agent Client Protocol, by its command."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from kapelle.agents.adapters.claude import HOOKS, ClaudeAgent
from kapelle.agents.adapters.codex import CodexAgent
from kapelle.agents.adapters.command import CommandAgent
from kapelle.agents.adapters.copilot import CopilotAgent
from kapelle.agents.adapters.gemini import GeminiAgent
from kapelle.agents.adapters.opencode import OpencodeAgent
from kapelle.agents.adapters.qwen import QwenAgent
from kapelle.agents.base import Access, AgentAdapter, AgentCommand, AgentRequest, Capabilities
from kapelle.agents.bridges.acp import Job
from kapelle.agents.events import AgentEvent, json_object, parse_event
from kapelle.domain.errors import AgentMisconfigured
from kapelle.settings import AgentSettings

_BRIDGE = "kapelle.agents.bridges.acp"
_JOB = "acp.json"
_FIELDS = ("read_only", "answer", "session_id", "fork", "system_prompt", "daemon")


@dataclass(frozen=True, slots=True)
class KnownAcpAgent:
    """An agent that Kapelle recognizes by the name of its program.

    own is the adapter for the agent's other interface.
    """

    command: tuple[str, ...]
    own: type[AgentAdapter] = CommandAgent
    access: Access | None = None  # overrides that of the adapter
    tested: str | None = None
    fork: bool = True


_UNKNOWN = KnownAcpAgent((), access=Access(needed=False), fork=False)
# By a short name, which is enough as the command in the settings.
_KNOWN = {
    "claude": KnownAcpAgent(
        ("claude-agent-acp",),
        ClaudeAgent,
        tested="0.49.0",
    ),
    "codex": KnownAcpAgent(
        ("codex-acp",),
        CodexAgent,
        Access(("OPENAI_API_KEY", "CODEX_API_KEY"), ("~/.codex/auth.json",)),
        tested="2.6.0",
    ),
    "gemini": KnownAcpAgent(("gemini", "--acp"), GeminiAgent, fork=False),
    "opencode": KnownAcpAgent(
        ("opencode", "acp"),
        OpencodeAgent,
        replace(OpencodeAgent.access, variables=("ANTHROPIC_API_KEY", "OPENAI_API_KEY")),
    ),
    "qwen": KnownAcpAgent(("qwen", "--acp"), QwenAgent, fork=False),
    "copilot": KnownAcpAgent(("copilot", "--acp"), CopilotAgent, fork=False),
}


class AcpAgent(AgentAdapter):
    """Runs a bridge that talks to the agent of settings.command and prints Kapelle's events."""

    example = '["claude-agent-acp"]'
    hears = True
    restraint = None  # the bridge answers permission requests by settings.permissions

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        program = Path(self.asked_for).name
        matches = (entry for entry in _KNOWN.values() if entry.command[0] == program)
        profile = next(matches, _UNKNOWN)
        own = profile.own(name, settings)
        self._profile = profile
        self._own = own
        self.access = profile.access or own.access
        self.passes = own.passes
        self.drops = own.drops
        self.url_variable = own.url_variable
        self.tested = profile.tested or own.tested
        self.capabilities = Capabilities(
            resume=True, fork=profile.fork, model=True, system_prompt=True, mcp=True, acp=True,
            usage=True, cost=own.capabilities.cost,
        )  # fmt: skip

    @property
    def asked_for(self) -> str:
        return next(iter(_full_command(self.settings)), "")

    def parse(self, line: str) -> list[AgentEvent]:
        """Return the event that the bridge printed, or the events of a line of the side log."""
        if self._profile is _UNKNOWN or "kind" in json_object(line):
            return parse_event(line)
        return self._own.parse(line)

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        return self._own.parse_stderr(line)

    def command(self, request: AgentRequest) -> AgentCommand:
        settings = request.settings
        own = self._own.over_acp(request)
        fields = {name: getattr(request, name) for name in _FIELDS}
        fields |= {
            "permissions": settings.permissions,
            "mode": settings.mode,
            "model": request.chosen_model,
            "messages": str(request.messages) if request.messages else None,
            "message_key": request.message_key,
            "claude_settings": own.files.get(HOOKS),
            "mcp_servers": {key: one.model_dump() for key, one in request.mcp_servers.items()},
        }
        for name in self._own.beside_acp:
            del fields[name]
        job = Job(**fields)
        # -P keeps modules of the workspace from replacing those of the bridge.
        argv = [sys.executable, "-P", "-m", _BRIDGE, "--job", str(request.beside(_JOB)), "--"]
        argv += [self.executable(), *_full_command(settings)[1:], *own.argv, *settings.extra_args]
        env = own.env | self.environment(request)
        files = {_JOB: job.to_text(), **own.files}
        return AgentCommand(argv, env, request.stdin, files, own.side_log)

    def environment(self, request: AgentRequest) -> dict[str, str]:
        if request.settings.base_url and self.url_variable is None:
            text = f"Kapelle cannot set the base URL of the agent {self.name}."
            raise AgentMisconfigured(text, hint="Set it in the agent's own configuration.")
        return super().environment(request)


def _full_command(settings: AgentSettings) -> list[str]:
    """Return the command in its long form, with settings.program as its first word."""
    command = list(settings.command)
    if len(command) == 1 and command[0] in _KNOWN:
        command = list(_KNOWN[command[0]].command)
    if settings.program and command:
        command[0] = settings.program
    return command
