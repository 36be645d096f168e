"""Any agent that speaks the Agent Client Protocol, by its command."""

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kapelle.agents.base import (
    Access,
    AgentEvent,
    AgentRequest,
    Capabilities,
    Command,
    Summary,
    Verdict,
)
from kapelle.agents.bridges.acp import Job
from kapelle.agents.failures import judge_report
from kapelle.agents.output import parse_event
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

_BRIDGE = "kapelle.agents.bridges.acp"
_JOB = "acp.json"


@dataclass(frozen=True, slots=True)
class Known:
    """What Kapelle knows about an agent by the name of its program."""

    command: tuple[str, ...]
    access: Access
    tested: str
    passes: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    base_url: str | None = None  # the variable that takes it
    fork: bool = True
    cost: bool = False


_CLAUDE = Known(
    ("claude-agent-acp",),
    Access(
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
        ("~/.claude/.credentials.json",),
    ),
    tested="0.49.0",
    passes=("ANTHROPIC_*", "CLAUDE_*", "AWS_*", "GOOGLE_*", "CLOUD_ML_REGION", "DISABLE_*"),
    drops=(
        "CLAUDECODE",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_CODE_SSE_PORT",
    ),
    # Without it there is no mode that asks for nothing when the user is root.
    env=(("IS_SANDBOX", "1"), ("DISABLE_AUTOUPDATER", "1")),
    base_url="ANTHROPIC_BASE_URL",
    cost=True,
)
_CODEX = Known(
    ("codex-acp",),
    Access(("OPENAI_API_KEY", "CODEX_API_KEY"), ("~/.codex/auth.json",)),
    tested="2.6.0",
    passes=("CODEX_*", "OPENAI_*"),
)
_GEMINI = Known(
    ("gemini", "--acp"),
    Access(
        ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("~/.gemini/oauth_creds.json",),
    ),
    tested="0.61.0",
    passes=("GEMINI_*", "GOOGLE_*"),
    # A relaunched child would outlive its parent.
    env=(("GEMINI_CLI_NO_RELAUNCH", "true"), ("GEMINI_CLI_TRUST_WORKSPACE", "true")),
    base_url="GOOGLE_GEMINI_BASE_URL",
    fork=False,
)
_OPENCODE = Known(
    ("opencode", "acp"),
    Access(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), ("~/.local/share/opencode/auth.json",), False),
    tested="1.18.33",
    passes=("OPENCODE_*", "ANTHROPIC_*", "OPENAI_*", "GEMINI_*", "GOOGLE_*", "XDG_*"),
    env=(("OPENCODE_DISABLE_AUTOUPDATE", "1"),),
    cost=True,
)
_UNKNOWN = Known((), Access(needed=False), tested="", fork=False)
_KNOWN = {known.command[0]: known for known in (_CLAUDE, _CODEX, _GEMINI, _OPENCODE)}
# One word is enough for those.
_SHORT = {"claude": _CLAUDE, "codex": _CODEX, "gemini": _GEMINI, "opencode": _OPENCODE}


class AcpAgent:
    """Runs a bridge process that talks to the agent of settings.command and prints our events."""

    reads_whole_output = True

    def __init__(self, name: str, settings: AgentSettings) -> None:
        self.name = name
        self.settings = settings
        known = self._known
        self.access = known.access
        self.passes = known.passes
        self.drops = known.drops
        self.tested: str | None = known.tested or None
        self.capabilities = Capabilities(
            resume=True,
            fork=known.fork,
            model=True,
            system_prompt=True,
            mcp=True,
            acp=True,
            usage=True,
            cost=known.cost,
        )

    def installed(self) -> str | None:
        if find_spec("acp") is None or not (command := _spelled_out(self.settings)):
            return None
        path = self.settings.env.get("PATH", os.environ.get("PATH"))
        return shutil.which(os.path.expanduser(command[0]), path=path)

    def command(self, request: AgentRequest) -> Command:
        settings = request.settings
        job = Job(
            permissions=settings.permissions,
            answer=request.answer,
            mode=settings.mode,
            model=request.model or settings.model,
            session_id=request.session_id,
            fork=request.fork,
            system_prompt=request.system_prompt,
            mcp_servers={name: server.model_dump() for name, server in request.mcp_servers.items()},
        )
        # -P: a module of the workspace must not take the place of one of ours.
        argv = [sys.executable, "-P", "-m", _BRIDGE]
        argv += ["--job", str(request.prompt_file.parent / _JOB), "--", self._executable()]
        argv += _spelled_out(settings)[1:] + settings.extra_args
        return Command(
            argv,
            self._environment(request),
            request.prompt.encode("utf-8", "replace"),
            files={_JOB: job.to_text()},
        )

    def parse(self, line: str) -> list[AgentEvent]:
        return parse_event(line)

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        return []

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        return judge_report(summary, exit, tail)

    @property
    def _known(self) -> Known:
        command = _spelled_out(self.settings)
        return _KNOWN.get(Path(command[0]).name, _UNKNOWN) if command else _UNKNOWN

    def _executable(self) -> str:
        """The path of the agent's program; raises AgentMisconfigured when there is none."""
        key = f"agents.{self.name}.command"
        if find_spec("acp") is None:
            raise AgentMisconfigured(
                "ACP agents need the Python package agent-client-protocol.",
                hint="pip install 'kapelle[acp]'",
            )
        command = _spelled_out(self.settings)
        if not command:
            raise AgentMisconfigured(
                f"The agent {self.name} has no command.",
                hint=f"""kapelle config set {key} '["claude-agent-acp"]'""",
            )
        if found := self.installed():
            return found
        raise AgentMisconfigured(
            f"The agent {self.name} needs {command[0]!r}, which is not an executable on PATH.",
            hint=f"""Install it, or: kapelle config set {key} '["/full/path/to/it", …]'""",
        )

    def _environment(self, request: AgentRequest) -> dict[str, str]:
        env = dict(self._known.env)
        if request.credential and self.access.variables:
            env[self.access.variables[0]] = request.credential
        if url := request.settings.base_url:
            if self._known.base_url is None:
                raise AgentMisconfigured(
                    f"The agent {self.name} takes no address of a provider from Kapelle.",
                    hint="Name it in the agent's own configuration.",
                )
            env[self._known.base_url] = url
        return env | request.settings.env


def _spelled_out(settings: AgentSettings) -> list[str]:
    """The command with a short form written out, and settings.program instead of its first word."""
    command = list(settings.command)
    if len(command) == 1 and command[0] in _SHORT:
        command = list(_SHORT[command[0]].command)
    if settings.program and command:
        command[0] = settings.program
    return command
