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
_ASKED = ("read_only", "answer", "session_id", "fork", "system_prompt", "daemon")


@dataclass(frozen=True, slots=True)
class KnownAcpAgent:
    """What Kapelle knows about an agent by the name of its program; own is the adapter for its
    other way to speak."""

    command: tuple[str, ...]
    own: type[AgentAdapter] = CommandAgent
    access: Access | None = None  # where it is another one than that of the adapter
    tested: str | None = None
    fork: bool = True


_UNKNOWN = KnownAcpAgent((), access=Access(needed=False), fork=False)
# By a short name: one word is enough as the command of those.
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
    """Runs a bridge process that talks to the agent of settings.command and prints our events."""

    example = '["claude-agent-acp"]'
    hears = True
    restraint = None  # settings.permissions are what the bridge replies to it

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        program = Path(self.asked_for).name
        fitting = (known for known in _KNOWN.values() if known.command[0] == program)
        known = self._known = next(fitting, _UNKNOWN)
        own = self._own = known.own(name, settings)
        self.access = known.access or own.access
        self.passes = own.passes
        self.drops = own.drops
        self.url_variable = own.url_variable
        self.tested = known.tested or own.tested
        self.capabilities = Capabilities(
            resume=True, fork=known.fork, model=True, system_prompt=True, mcp=True, acp=True,
            usage=True, cost=own.capabilities.cost,
        )  # fmt: skip

    @property
    def asked_for(self) -> str:
        return next(iter(_full_command(self.settings)), "")

    def parse(self, line: str) -> list[AgentEvent]:
        """The event that the bridge printed, or what a line of the agent's side log says."""
        ours = self._known is _UNKNOWN or "kind" in json_object(line)
        if ours:
            return parse_event(line)
        return self._own.parse(line)

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        return self._own.parse_stderr(line)

    def command(self, request: AgentRequest) -> AgentCommand:
        settings = request.settings
        own = self._own.over_acp(request)
        asked = {name: getattr(request, name) for name in _ASKED}
        asked |= {
            "permissions": settings.permissions,
            "mode": settings.mode,
            "model": request.chosen_model,
            "messages": str(request.messages) if request.messages else None,
            "message_key": request.message_key,
            "claude_settings": own.files.get(HOOKS),
            "mcp_servers": {key: one.model_dump() for key, one in request.mcp_servers.items()},
        }
        job = Job(**{name: asked[name] for name in asked.keys() - {*self._own.beside_acp}})
        # -P: a module of the workspace must not take the place of one of ours.
        argv = [sys.executable, "-P", "-m", _BRIDGE, "--job", str(request.beside(_JOB)), "--"]
        argv += [self.executable(), *_full_command(settings)[1:], *own.argv, *settings.extra_args]
        env = own.env | self.environment(request)
        files = {_JOB: job.to_text(), **own.files}
        return AgentCommand(argv, env, request.stdin, files, own.side_log)

    def environment(self, request: AgentRequest) -> dict[str, str]:
        if request.settings.base_url and self.url_variable is None:
            text = f"The agent {self.name} takes no address of a provider from Kapelle."
            raise AgentMisconfigured(text, hint="Name it in the agent's own configuration.")
        return super().environment(request)


def _full_command(settings: AgentSettings) -> list[str]:
    """The command with a short form written out, and settings.program instead of its first word."""
    command = list(settings.command)
    if len(command) == 1 and command[0] in _KNOWN:
        command = list(_KNOWN[command[0]].command)
    if settings.program and command:
        command[0] = settings.program
    return command
