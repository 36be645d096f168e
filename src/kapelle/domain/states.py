"""The states of a task and of an attempt, with the one table of allowed transitions."""

from enum import StrEnum

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


FINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})

_AGAIN = frozenset({TaskStatus.QUEUED, TaskStatus.BLOCKED})

TRANSITIONS: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.BLOCKED: frozenset({TaskStatus.QUEUED, TaskStatus.CANCELLED}),
    TaskStatus.QUEUED: frozenset(
        {TaskStatus.RUNNING, TaskStatus.WAITING, TaskStatus.BLOCKED, TaskStatus.CANCELLED}
    ),
    TaskStatus.RUNNING: FINAL | {TaskStatus.QUEUED, TaskStatus.WAITING},
    TaskStatus.WAITING: frozenset({TaskStatus.QUEUED, TaskStatus.CANCELLED}),
    TaskStatus.COMPLETED: _AGAIN,
    TaskStatus.FAILED: _AGAIN,
    TaskStatus.CANCELLED: _AGAIN,
}


def require_transition(task_id: str, old: TaskStatus, new: TaskStatus) -> None:
    """Raise Conflict unless a task may go from old to new."""
    if new not in TRANSITIONS[old]:
        raise Conflict(f"{task_id} is {old} and cannot become {new}.")
