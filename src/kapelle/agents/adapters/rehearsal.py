"""An agent that plays a scripted part: for tests, demonstrations and trying Kapelle out."""

import os
import sys
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
from kapelle.agents.failures import judge_report
from kapelle.agents.output import parse_event
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

PLAYER = Path(__file__).with_name("player.py")


class RehearsalAgent:
    """Runs player.py, which follows a playbook instead of a model."""

    capabilities = Capabilities(resume=True, usage=True, cost=True)
    access = Access(needed=False)
    tested: str | None = None
    passes: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    reads_whole_output = True

    def __init__(self, name: str, settings: AgentSettings) -> None:
        self.name = name
        self.settings = settings

    def installed(self) -> str | None:
        return str(PLAYER)

    def command(self, request: AgentRequest) -> Command:
        settings = request.settings
        argv = [sys.executable, "-I", "-S", str(PLAYER)]
        argv += ["--workspace", str(request.workspace), "--attempt", str(request.attempt_number)]
        if settings.playbook:
            argv += ["--playbook", os.path.expanduser(settings.playbook)]
        if request.session_id:
            argv += ["--session", request.session_id]
        return Command(
            argv + settings.extra_args,
            dict(settings.env),
            request.prompt.encode("utf-8", "replace"),
        )

    def parse(self, line: str) -> list[AgentEvent]:
        return parse_event(line)

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        return []

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        return judge_report(summary, exit, tail)
