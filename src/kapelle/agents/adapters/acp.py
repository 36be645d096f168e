"""Any agent that speaks the Agent Client Protocol, by its command."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kapelle.agents.adapters.claude import ClaudeAgent
from kapelle.agents.adapters.gemini import GeminiAgent
from kapelle.agents.adapters.opencode import OpencodeAgent
from kapelle.agents.base import Access, Agent, AgentRequest, Capabilities, Command, on_path
from kapelle.agents.bridges.acp import Job
from kapelle.domain.errors import AgentMisconfigured
from kapelle.settings import AgentSettings

_BRIDGE = "kapelle.agents.bridges.acp"
_JOB = "acp.json"


@dataclass(frozen=True, slots=True)
class Known:
    """What Kapelle knows about an agent by the name of its program."""

    command: tuple[str, ...]
    access: Access
    tested: str | None
    passes: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    base_url: str | None = None  # the variable that takes it
    fork: bool = True
    cost: bool = False


_UNKNOWN = Known((), Access(needed=False), tested=None, fork=False)
# By a short name: one word is enough as the command of those.
_KNOWN = {
    "claude": Known(
        ("claude-agent-acp",),
        replace(ClaudeAgent.access, login_files=("~/.claude/.credentials.json",)),
        tested="0.49.0",
        passes=ClaudeAgent.passes,
        drops=ClaudeAgent.drops,
        # Without it there is no mode that asks for nothing when the user is root.
        env={"IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1"},
        base_url="ANTHROPIC_BASE_URL",
        cost=True,
    ),
    "codex": Known(
        ("codex-acp",),
        Access(("OPENAI_API_KEY", "CODEX_API_KEY"), ("~/.codex/auth.json",)),
        tested="2.6.0",
        passes=("CODEX_*", "OPENAI_*"),
    ),
    "gemini": Known(
        ("gemini", "--acp"),
        GeminiAgent.access,
        tested=GeminiAgent.tested,
        passes=GeminiAgent.passes,
        drops=GeminiAgent.drops,
        # A relaunched child would outlive its parent.
        env={"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        base_url="GOOGLE_GEMINI_BASE_URL",
        fork=False,
    ),
    "opencode": Known(
        ("opencode", "acp"),
        replace(OpencodeAgent.access, variables=("ANTHROPIC_API_KEY", "OPENAI_API_KEY")),
        tested=OpencodeAgent.tested,
        passes=(*OpencodeAgent.passes, "XDG_*"),
        drops=OpencodeAgent.drops,
        env={"OPENCODE_DISABLE_AUTOUPDATE": "1"},
        cost=True,
    ),
}


class AcpAgent(Agent):
    """Runs a bridge process that talks to the agent of settings.command and prints our events."""

    restraint = None  # settings.permissions are what the bridge replies to it

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        command = _full_command(settings)
        program = Path(command[0]).name if command else ""
        fitting = (known for known in _KNOWN.values() if known.command[0] == program)
        known = self._known = next(fitting, _UNKNOWN)
        self.access = known.access
        self.passes = known.passes
        self.drops = known.drops
        self.tested = known.tested
        self.capabilities = Capabilities(
            resume=True, fork=known.fork, model=True, system_prompt=True, mcp=True, acp=True,
            usage=True, cost=known.cost,
        )  # fmt: skip

    def installed(self) -> str | None:
        command = _full_command(self.settings)
        return on_path(command[0], self.settings.env) if command else None

    def executable(self) -> str:
        """The path of the agent's program; raises AgentMisconfigured when there is none."""
        command = _full_command(self.settings)
        if not command:
            raise AgentMisconfigured(
                f"The agent {self.name} has no command.",
                hint=f"""kapelle config set agents.{self.name}.command '["claude-agent-acp"]'""",
            )
        if found := self.installed():
            return found
        raise self.not_found(command[0])

    def command(self, request: AgentRequest) -> Command:
        settings = request.settings
        job = Job(
            permissions=settings.permissions,
            answer=request.answer,
            mode=settings.mode,
            model=request.chosen_model,
            session_id=request.session_id,
            fork=request.fork,
            system_prompt=request.system_prompt,
            mcp_servers={name: server.model_dump() for name, server in request.mcp_servers.items()},
        )
        # -P: a module of the workspace must not take the place of one of ours.
        argv = [sys.executable, "-P", "-m", _BRIDGE, "--job", str(request.beside(_JOB)), "--"]
        argv += [self.executable(), *_full_command(settings)[1:], *settings.extra_args]
        return Command(argv, self.environment(request), request.stdin, {_JOB: job.to_text()})

    def environment(self, request: AgentRequest) -> dict[str, str]:
        env = dict(self._known.env)
        if url := request.settings.base_url:
            if self._known.base_url is None:
                raise AgentMisconfigured(
                    f"The agent {self.name} takes no address of a provider from Kapelle.",
                    hint="Name it in the agent's own configuration.",
                )
            env[self._known.base_url] = url
        return env | super().environment(request)


def _full_command(settings: AgentSettings) -> list[str]:
    """The command with a short form written out, and settings.program instead of its first word."""
    command = list(settings.command)
    if len(command) == 1 and command[0] in _KNOWN:
        command = list(_KNOWN[command[0]].command)
    if settings.program and command:
        command[0] = settings.program
    return command
