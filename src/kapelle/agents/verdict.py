"""Define the summary of an agent's output, and the verdict on an ended attempt."""

from dataclasses import dataclass
from typing import Literal

from kapelle.agents.events import AgentEvent
from kapelle.domain.failures import Failure
from kapelle.domain.task import Usage

ClaimedOutcome = Literal["success", "failure"]


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of an output, folded from its events."""

    result: str | None = None
    is_error: bool = False
    session_id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    of_session: frozenset[str] = frozenset()  # fields of usage that count the whole session
    error: AgentEvent | None = None
    question: str | None = None
    answered: bool = False  # whether it wrote a text after its last tool
    tail: str = ""

    @property
    def claimed(self) -> ClaimedOutcome | None:
        """The outcome that the agent itself reports; None if it reports none."""
        if self.is_error or (self.result is None and self.error):
            return "failure"
        if self.result is None:
            return None
        return "success"


@dataclass(frozen=True, slots=True)
class AgentVerdict:
    """The meaning of an ended process.

    claimed is the outcome that the agent reports; success is Kapelle's own judgement.
    """

    success: bool
    reason: str | None = None
    result: str | None = None
    claimed: ClaimedOutcome | None = None
    question: str | None = None
    failure: Failure | None = None
