"""An agent that plays a scripted part: for tests, demonstrations and trying Kapelle out."""

import os
import sys

from kapelle.agents.base import Access, Agent, AgentRequest, Capabilities, Command
from kapelle.agents.bridges import rehearsal

PROGRAM = rehearsal.__file__


class RehearsalAgent(Agent):
    """Runs the bridge that follows a playbook instead of a model and prints Kapelle's events."""

    capabilities = Capabilities(resume=True, usage=True, cost=True)
    access = Access(needed=False)
    restraint = "a rehearsal does what its playbook says"

    def installed(self) -> str | None:
        return PROGRAM

    def command(self, request: AgentRequest) -> Command:
        settings = request.settings
        argv = [
            sys.executable,
            "-I",
            "-S",
            PROGRAM,
            *self.options(
                {
                    "--workspace": request.workspace,
                    # What stands in a worktree, an agent or another branch may have put there.
                    "--checkout": request.checkout or request.workspace,
                    "--attempt": request.attempt_number,
                    "--playbook": os.path.expanduser(settings.playbook or ""),
                    "--session": request.session_id,
                }
            ),
        ]
        return Command(argv + settings.extra_args, dict(settings.env), request.stdin)
