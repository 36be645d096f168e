"""What is known of a run: one durable execution of a pattern."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from kapelle.domain.budget import Spent
from kapelle.domain.question import Question
from kapelle.domain.specs import Name, RepositoryPath
from kapelle.domain.states import RunStatus, TaskStatus, is_delivering, is_resting
from kapelle.domain.task import Limit, ListFilter, Record, RunCursor, Task, TaskFilter, Work
from kapelle.domain.views import MomentText

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
    """One; its question may be that of the task that it waits for."""

    pattern: str
    status: RunStatus
    waiting_for: Literal["input"] | None
    questions: list[Question]
    parent_id: str | None
    spec: dict[str, Any]
    progress: dict[str, Any]
    result: Any
    limit_reached: str | None = None  # the limit that ended it and can be raised, such as cycles
    spent: Spent


def is_at_rest(work: Task | Run) -> bool:
    """Whether nothing more happens to it by itself, its delivery included."""
    if work.delivery:
        delivery = vars(work.delivery)
    else:
        delivery = None
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
    q: Annotated[str, Field(max_length=500)] | None = None  # words in titles or ids
    state: list[WorkState] | None = None  # any of these
    agent: Name | None = None
    kind: Name | None = None  # task, or the name of a pattern
    since: MomentText = None  # created, started, ended or merged from then on
    pr: Literal["any", "draft", "open", "merged", "closed"] | None = None
    nested: bool = False
    cursor: Annotated[str, StringConstraints(pattern="^[0-9a-z]{26}$")] | None = None

    @property
    def words(self) -> list[str]:
        return (self.q or "").split()


class NeedFilter(Record):
    """Which of what needs a person is listed."""

    project: Name | None = None
    repository: RepositoryPath | None = None
    cause: Annotated[str, Field(max_length=200)] | None = None  # those of one cause, one by one
    offset: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    limit: Limit = 50


class Step(Record):
    """One thing that a run did or is doing; result is what the pattern was told."""

    position: str
    kind: str
    label: str
    role: str | None = None  # what part its task plays in the pattern, such as plan or review
    cycle: int | None = None  # the number of the cycle, round or iteration that it is of
    subject: str | None
    data: dict[str, Any]
    result: Any
    error: str | None
    started_at: datetime
    ended_at: datetime | None
