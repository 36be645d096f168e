"""What is known of an attempt that has ended: how its process ended, and what its work is worth."""

from dataclasses import dataclass, field
from typing import Literal

from kapelle.domain.errors import KapelleError, LimitReached
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit, Usage


@dataclass(frozen=True)
class Finish:
    """The end of the agent's process."""

    exit: Exit
    timed_out: bool = False
    detail: str | None = None
    output_bytes: int = 0


@dataclass(frozen=True)
class Findings:
    """What the agent reported, and what the checks found."""

    success: bool
    reason: str | None = None
    result: str | None = None
    claimed: Literal["success", "failure"] | None = None
    question: str | None = None
    failure: Failure | None = None
    session_id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    session_usage: dict[str, float] = field(default_factory=dict)
    can_nudge: bool = False


def never_ran(problem: str) -> Finish:
    return Finish(Exit(kind="not_started"), detail=problem)


def not_possible(error: KapelleError) -> Findings:
    """The findings on an attempt whose agent could not even be started."""
    problem = f"{error.message} {error.hint or ''}".strip()
    limited = isinstance(error, LimitReached)
    kind = FailureClass.LIMIT if limited else FailureClass.ENVIRONMENT
    return Findings(False, problem, failure=Failure(kind, problem))
