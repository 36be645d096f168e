"""What is known of an attempt that has ended: how its process ended, and what its work is worth."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kapelle.domain.outcome import Waiting
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
    waiting_for: Waiting | None = None
    retry_at: datetime | None = None
    failed_checks: tuple[str, ...] = ()
    session_id: str | None = None
    usage: Usage | None = None


def never_ran(problem: str) -> Finish:
    return Finish(Exit(kind="not_started"), detail=problem)
