"""Runs: durable executions of patterns, their steps, and filters for lists of work."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from kapelle.domain.budget import Spent
from kapelle.domain.question import Question
from kapelle.domain.specs import Name, RepositoryPath
from kapelle.domain.states import RunStatus, TaskStatus, is_delivering, is_resting
from kapelle.domain.task import (
    Limit,
    ListFilter,
    MomentText,
    Record,
    RunCursor,
    Task,
    TaskFilter,
    Work,
)

WorkState = Literal[
    "queued",
    "blocked",
    "running",
    "waiting",
    "paused",
    "completed",
    "failed",
    "cancelled",
    "needs_you",
    "verified",
    "unverified",
    "merged",
    "lost",
    "rate_limited",
]


class Run(Work):
    """A run; its question may come from a task that it waits for."""

    pattern: str
    status: RunStatus
    waiting_for: Literal["input"] | None
    questions: list[Question]
    parent_id: str | None
    spec: dict[str, Any]
    progress: dict[str, Any]
    result: Any
    limit_reached: str | None = None  # the limit that ended it and can be raised, e.g. cycles
    spent: Spent


def is_at_rest(work: Task | Run) -> bool:
    """Return whether nothing more happens to work by itself, its delivery included."""
    delivery = None
    if work.delivery:
        delivery = vars(work.delivery)
    delivers = is_delivering(work.status, work.workspace.commit, delivery)
    return is_resting(work.status, work.waiting_for) and not delivers


class RunFilter(ListFilter):
    """Filter for runs, newest first; nested runs are inside other runs."""

    status: list[RunStatus] | None = None
    pattern: Name | None = None
    parent_id: RunCursor | None = None
    nested: bool = False
    cursor: RunCursor | None = None


class WorkFilter(TaskFilter):
    """Filter for tasks and runs in one list, newest first.

    Nested work is part of a run. With run_id, only the direct children of that run are listed.
    """

    status: list[TaskStatus | RunStatus] | None = None  # type: ignore[assignment]
    q: Annotated[str, Field(max_length=500)] | None = None  # words in titles or ids
    state: list[WorkState] | None = None  # any of these
    agent: Name | None = None
    kind: Name | None = None  # task, or the name of a pattern
    since: MomentText = None  # created, started, ended or merged at that time or later
    pr: Literal["any", "draft", "open", "merged", "closed"] | None = None
    nested: bool = False
    cursor: Annotated[str, StringConstraints(pattern="^[0-9a-z]{26}$")] | None = None

    @property
    def words(self) -> list[str]:
        return (self.q or "").split()


class NeedFilter(Record):
    """Filter for work that needs a person."""

    project: Name | None = None
    repository: RepositoryPath | None = None
    cause: Annotated[str, Field(max_length=200)] | None = None  # list the needs of one cause
    offset: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    limit: Limit = 50


class Step(Record):
    """One step of a run; result is the value that the pattern received."""

    position: str
    kind: str
    label: str
    role: str | None = None  # the role of its task in the pattern, e.g. plan or review
    cycle: int | None = None  # the number of its cycle, round or iteration
    subject: str | None
    data: dict[str, Any]
    result: Any
    error: str | None
    started_at: datetime
    ended_at: datetime | None
