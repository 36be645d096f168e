"""The states of tasks, attempts and runs, with the tables of allowed transitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from kapelle.domain.errors import Conflict


class TaskStatus(StrEnum):
    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Stopper(StrEnum):
    """Who or what stopped a task or run."""

    PERSON = "person"
    ATTEMPT = "attempt"  # the agent of another task
    PARENT = "parent"  # the run or task that started it has ended
    DEPENDENCY = "dependency"  # a task that it depends on failed or was cancelled
    LIMIT = "limit"  # of its run: time, money or calls of agents
    RATE_LIMIT = "rate_limit"  # its run has another agent do the work instead of waiting
    INPUT = "input"  # it asked a person, and its run has nobody to answer
    DAEMON = "daemon"


@dataclass(frozen=True)
class StopCause:
    """Who or what stops a task or run, why in words, and the limit where that is the cause."""

    by: Stopper
    reason: str
    limit: str | None = None

    @property
    def marks(self) -> dict[str, str | None]:
        """Return the values for a row of the tasks or runs, besides the reason."""
        return {"stopped_by": self.by, "limit_reached": self.limit}

    def behind(self, work: Mapping[Any, Any]) -> "StopCause":
        """Return the cause that counts for a row that may already be asked to stop.

        An attempt never takes the place of a person, or it could lift what the person stopped.
        """
        is_asked = work["stop"] is not None and work["stopped_by"] == Stopper.PERSON
        if self.by is Stopper.ATTEMPT and is_asked:
            return StopCause(Stopper.PERSON, work["reason"] or self.reason, work["limit_reached"])
        return self


FINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})

TRANSITIONS: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.BLOCKED: frozenset({TaskStatus.QUEUED, TaskStatus.CANCELLED}),
    TaskStatus.QUEUED: frozenset(
        {TaskStatus.RUNNING, TaskStatus.WAITING, TaskStatus.BLOCKED, TaskStatus.CANCELLED}
    ),
    TaskStatus.RUNNING: FINAL | {TaskStatus.QUEUED, TaskStatus.WAITING},
    # One whose agent asked while it works is running again when that is answered.
    TaskStatus.WAITING: frozenset({TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.CANCELLED}),
    **dict.fromkeys(FINAL, frozenset({TaskStatus.QUEUED, TaskStatus.BLOCKED})),
}

RUN_FINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


def is_resting(status: str, waiting_for: str | None) -> bool:
    """Whether a task or a run has ended, is paused, or needs a person; a rate limit passes."""
    if status == TaskStatus.WAITING:
        return waiting_for != "rate_limit"
    return status in {*RUN_FINAL, RunStatus.PAUSED} or waiting_for in {"input", "trust"}


def is_delivering(status: str, commit: str | None, delivery: Mapping[Any, Any] | None) -> bool:
    """Whether work is still to be merged or made a pull request, as was asked for, and nothing is
    known that keeps it from that: completed work, and work that becomes a draft."""
    if delivery is None:
        return False
    if status in FINAL and delivery.get("draft") and delivery["status"] == "pending":
        return not delivery["reason"]
    if status != TaskStatus.COMPLETED:
        return False
    if delivery["status"] == "pending":
        return not delivery["reason"]
    return bool(delivery["commit"] != commit)


RUN_TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.PAUSED, RunStatus.CANCELLED}),
    RunStatus.RUNNING: RUN_FINAL | {RunStatus.WAITING, RunStatus.PAUSED},
    RunStatus.WAITING: frozenset({RunStatus.QUEUED, RunStatus.PAUSED, RunStatus.CANCELLED}),
    RunStatus.PAUSED: frozenset({RunStatus.QUEUED, RunStatus.CANCELLED}),
    **dict.fromkeys(RUN_FINAL, frozenset()),
    # It reached a limit that was raised.
    RunStatus.FAILED: frozenset({RunStatus.QUEUED}),
}


S = TypeVar("S", TaskStatus, RunStatus)


def require_transition(work_id: str, old: S, new: S) -> None:
    """Raise Conflict unless a task or run may go from old to new."""
    if isinstance(old, TaskStatus):
        allowed = TRANSITIONS[old]
    else:
        allowed = RUN_TRANSITIONS[old]
    if new not in allowed:
        raise Conflict(f"{work_id} is {old} and cannot become {new}.")
