"""What is known of a run: one durable execution of a pattern."""

from datetime import datetime
from typing import Any, Literal

from kapelle.domain.budget import Spent
from kapelle.domain.states import RunStatus
from kapelle.domain.task import Record, Workspace


class Question(Record):
    """Something a run wants to know of a person; the token says which question is answered."""

    token: str
    text: str
    default: str | None
    asked_at: datetime


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
    project: str | None
    parent_id: str | None
    schedule_id: str | None
    workspace: Workspace
    spec: dict[str, Any]
    progress: dict[str, Any]
    result: Any
    spent: Spent
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    archived_at: datetime | None
    merged_at: datetime | None


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
