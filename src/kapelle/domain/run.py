"""What is known of a run: one durable execution of a pattern."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from kapelle.domain.budget import Spent
from kapelle.domain.question import Question
from kapelle.domain.specs import Name
from kapelle.domain.states import RunStatus, TaskStatus, is_delivering, is_resting
from kapelle.domain.task import ListFilter, Record, RunCursor, Task, TaskFilter, Work


class Run(Work):
    """One; its question may be that of the task that it waits for."""

    pattern: str
    status: RunStatus
    waiting_for: Literal["input"] | None
    questions: list[Question]
    parent_id: str | None
    spec: dict[str, Any]
    progress: dict[str, Any]
    result: Any
    spent: Spent


def rests(work: Task | Run) -> bool:
    """Whether nothing more happens to it by itself, its delivery included."""
    delivery = vars(work.delivery) if work.delivery else None
    delivers = is_delivering(work.status, work.workspace.commit, delivery)
    return is_resting(work.status, work.waiting_for) and not delivers


class RunFilter(ListFilter):
    """Which runs are listed, newest first; nested ones are inside others."""

    status: list[RunStatus] | None = None
    pattern: Name | None = None
    parent_id: RunCursor | None = None
    nested: bool = False
    cursor: RunCursor | None = None


class WorkFilter(TaskFilter):
    """Which tasks and runs are listed together, newest first; nested ones are parts of runs.

    With run_id, those right inside that run."""

    status: list[TaskStatus | RunStatus] | None = None  # type: ignore[assignment]
    nested: bool = False
    cursor: Annotated[str, StringConstraints(pattern="^[0-9a-z]{26}$")] | None = None


class Step(Record):
    """One thing that a run did or is doing; result is what the pattern was told."""

    position: str
    kind: str
    label: str
    subject: str | None
    data: dict[str, Any]
    result: Any
    error: str | None
    started_at: datetime
    ended_at: datetime | None
