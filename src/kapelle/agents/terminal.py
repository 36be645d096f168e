"""Adapt an agent to a terminal, where a person talks to its program."""

import re
from dataclasses import replace

from kapelle.agents.base import (
    AgentAdapter,
    AgentCommand,
    AgentRequest,
    AgentVerdict,
    Capabilities,
    Summary,
)
from kapelle.agents.events import AgentEvent
from kapelle.domain.errors import AgentMisconfigured, InvalidInput
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit

# Escape sequences that move the cursor, set colours or name the window, and control characters.
_NOT_TEXT = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)
_VARIABLES = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}


class TerminalAgent(AgentAdapter):
    """Wraps the adapter of an agent whose program shows a screen instead of printing events.

    Nothing in the output tells usage or session, and the exit code alone tells success.
    """

    program = ""  # the wrapped adapter names it
    reads_whole_output = False

    def __init__(self, agent: AgentAdapter) -> None:
        super().__init__(agent.name, agent.settings)
        self._agent = agent
        own = agent.capabilities
        self.capabilities = Capabilities(
            terminal=True,
            model=own.model,
            system_prompt=own.system_prompt,
            mcp=own.mcp,
            read_only=own.read_only,
        )
        self.access = agent.access
        self.passes = agent.passes
        self.drops = agent.drops
        self.home = agent.home
        self.tested = agent.tested
        self.restraint = agent.restraint
        self.search_path = agent.search_path

    @property
    def asked_for(self) -> str:
        return self._agent.asked_for

    @property
    def update_command(self) -> str | None:
        return self._agent.update_command

    def installed(self) -> str | None:
        return self._agent.installed()

    def not_found(self, program: str) -> AgentMisconfigured:
        return self._agent.not_found(program)

    def environment(self, request: AgentRequest) -> dict[str, str]:
        return self._agent.environment(request)

    def command(self, request: AgentRequest) -> AgentCommand:
        command = self._agent.command(replace(request, interactive=True))
        return replace(command, env=_VARIABLES | command.env)

    def parse(self, line: str) -> list[AgentEvent]:
        text = _NOT_TEXT.sub("", line).rstrip()
        if text:
            return [AgentEvent("text", text)]
        return []

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        """Call the attempt a success unless it ended by a signal or with an error.

        The person at the terminal knows how the work went.
        """
        if exit.code == 0:
            return AgentVerdict(True)
        reason = self.exit_sentence(exit, "")
        return AgentVerdict(False, reason, failure=Failure(FailureClass.TASK, reason))


def for_terminal(agent: AgentAdapter) -> TerminalAgent:
    """Return the agent for a terminal; raise InvalidInput if its program has no such mode."""
    if not agent.capabilities.terminal:
        raise InvalidInput(
            f"The agent {agent.name} cannot be used in a terminal.",
            hint="Leave --interactive out; `kapelle agents` names those that can.",
        )
    return TerminalAgent(agent)
