"""An agent that follows a script: for tests, demonstrations and trying Kapelle out."""

import os
import sys

from kapelle.agents.base import Access, AgentAdapter, AgentCommand, AgentRequest, Capabilities
from kapelle.agents.bridges import rehearsal

PROGRAM = rehearsal.__file__


class RehearsalAgent(AgentAdapter):
    """Runs the bridge that follows a playbook instead of a model and prints Kapelle's events."""

    capabilities = Capabilities(resume=True, usage=True, cost=True, terminal=True)
    access = Access(needed=False)
    restraint = "a rehearsal follows its playbook"

    def installed(self) -> str | None:
        return PROGRAM

    def command(self, request: AgentRequest) -> AgentCommand:
        settings = request.settings
        if request.interactive:
            # In a terminal the person plays the agent's part, in a shell.
            script = 'PS1="rehearsal> " && test -z "$1" || echo "You said: $1"; exec sh'
            argv = ["/bin/sh", "-c", f"export PS1; {script}", "sh", *request.first_words()]
            return AgentCommand(argv, dict(settings.env))
        options = {
            "--workspace": request.workspace,
            # The default playbook is read from the checkout, because agents may change a worktree.
            "--checkout": request.checkout or request.workspace,
            "--attempt": request.attempt_number,
            "--playbook": os.path.expanduser(settings.playbook or ""),
            "--session": request.session_id,
        }
        argv = [sys.executable, "-I", "-S", PROGRAM, *self.options(options), *settings.extra_args]
        return AgentCommand(argv, dict(settings.env), request.stdin)
