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
    PARENT = "parent"  # the end of the run or task that started it
    DEPENDENCY = "dependency"  # a dependency that failed or was cancelled
    LIMIT = "limit"  # a limit of its run: time, money or agent calls
    RATE_LIMIT = "rate_limit"  # its run, which gives the work to an agent without a rate limit
    INPUT = "input"  # its question, which nobody can answer in its run
    DAEMON = "daemon"


@dataclass(frozen=True)
class StopCause:
    """Who or what stops a task or run, the reason, and the limit if a limit is the cause."""

    by: Stopper
    reason: str
    limit: str | None = None

    @property
    def marks(self) -> dict[str, str | None]:
        """Return the values for a row of the tasks or runs, besides the reason."""
        return {"stopped_by": self.by, "limit_reached": self.limit}

    def behind(self, work: Mapping[Any, Any]) -> "StopCause":
        """Return the cause that counts for a row for which a stop may already be requested.

        An attempt never replaces a person as the cause: it could then restart what the person
        stopped.
        """
        is_requested = work["stop"] is not None and work["stopped_by"] == Stopper.PERSON
        if self.by is Stopper.ATTEMPT and is_requested:
            return StopCause(Stopper.PERSON, work["reason"] or self.reason, work["limit_reached"])
        return self


FINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})

TRANSITIONS: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.BLOCKED: frozenset({TaskStatus.QUEUED, TaskStatus.CANCELLED}),
    TaskStatus.QUEUED: frozenset(
        {TaskStatus.RUNNING, TaskStatus.WAITING, TaskStatus.BLOCKED, TaskStatus.CANCELLED}
    ),
    TaskStatus.RUNNING: FINAL | {TaskStatus.QUEUED, TaskStatus.WAITING},
    # The answer to a question that the agent asked during its work makes the task running again.
    TaskStatus.WAITING: frozenset({TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.CANCELLED}),
    **dict.fromkeys(FINAL, frozenset({TaskStatus.QUEUED, TaskStatus.BLOCKED})),
}

RUN_FINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


def is_resting(status: str, waiting_for: str | None) -> bool:
    """Return whether a task or run has ended, is paused, or waits for a person.

    A task that waits for a rate limit is not resting: it continues by itself.
    """
    if status == TaskStatus.WAITING:
        return waiting_for != "rate_limit"
    return status in {*RUN_FINAL, RunStatus.PAUSED} or waiting_for in {"input", "trust"}


def is_delivering(status: str, commit: str | None, delivery: Mapping[Any, Any] | None) -> bool:
    """Return whether a requested merge or pull request is still due and nothing prevents it.

    Only completed work is delivered, except as a draft pull request.
    """
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
    # A run that failed at a limit continues when the limit is raised.
    RunStatus.FAILED: frozenset({RunStatus.QUEUED}),
}


S = TypeVar("S", TaskStatus, RunStatus)


def require_transition(work_id: str, old: S, new: S) -> None:
    """Raise Conflict unless a task or run may go from old to new."""
    if isinstance(old, TaskStatus):
        successors = TRANSITIONS[old]
    else:
        successors = RUN_TRANSITIONS[old]
    if new not in successors:
        raise Conflict(f"{work_id} is {old} and cannot become {new}.")
