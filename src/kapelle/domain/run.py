"""What is known of a run: one durable execution of a pattern."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from kapelle.domain.budget import Spent
from kapelle.domain.question import Question
from kapelle.domain.specs import Name
from kapelle.domain.states import RunStatus, TaskStatus
from kapelle.domain.task import (
    Directory,
    Limit,
    Record,
    RunningCheck,
    TaskCursor,
    TaskFilter,
    Workspace,
)

RunCursor = Annotated[str, StringConstraints(pattern="^run_[0-9a-z]{26}$")]


class Run(Record):
    id: str
    pattern: str
    title: str
    status: RunStatus
    reason: str | None
    waiting_for: Literal["input"] | None
    question: str | None = None  # what it, or the task that it waits for, asks a person
    questions: list[Question]
    directory: str
    repository: str | None = None  # the top of the one around the directory
    project: str | None
    parent_id: str | None
    parent_task_id: str | None = None  # the task whose attempt asked for it
    schedule_id: str | None
    workspace: Workspace
    spec: dict[str, Any]
    progress: dict[str, Any]
    checking: RunningCheck | None = None  # the command of its own that is being run
    verified: bool | None = None  # of a completed one: whether a check that is not blind was made
    result: Any
    spent: Spent
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    archived_at: datetime | None
    merged_at: datetime | None


class RunFilter(Record):
    """Which runs are listed, newest first; nested ones are inside others."""

    status: list[RunStatus] | None = None
    pattern: Name | None = None
    project: Name | None = None
    repository: Directory | None = None  # any directory in it
    parent_id: RunCursor | None = None
    parent_task_id: TaskCursor | None = None
    nested: bool = False
    archived: bool = False
    limit: Limit = 50
    cursor: RunCursor | None = None


class WorkFilter(TaskFilter):
    """Which tasks and runs are listed together, newest first; nested ones are parts of runs."""

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
