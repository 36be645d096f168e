"""An agent that plays a scripted part: for tests, demonstrations and trying Kapelle out."""

import os
import sys
from pathlib import Path

from kapelle.agents.base import Access, AgentRequest, Capabilities, Command
from kapelle.agents.program import ProgramAgent

PLAYER = Path(__file__).with_name("player.py")


class RehearsalAgent(ProgramAgent):
    """Runs player.py, which follows a playbook instead of a model and prints Kapelle's events."""

    capabilities = Capabilities(resume=True, usage=True, cost=True)
    access = Access(needed=False)

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
        return Command(argv + settings.extra_args, dict(settings.env), request.stdin)
