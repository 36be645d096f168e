"""Messages of people to the agents of tasks, and their delivery."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import sqlalchemy as sa

from kapelle.domain.ids import new_id
from kapelle.store.query import Row
from kapelle.store.statements import Statement
from kapelle.store.tables import messages, tasks

MessageKind = Literal["say", "resume"]
# Waiting: no agent has read it. Delivered: an agent has read it. Ended: the task ended first.
MessageState = Literal["waiting", "delivered", "ended"]

_WAITING = messages.c.state == "waiting"
_in_order = sa.select(messages).order_by(messages.c.id)
_OF_TASK = Statement(_in_order.where(messages.c.task_id == sa.bindparam("task_id")))
_OF_ATTEMPT = Statement(_in_order.where(messages.c.attempt_id == sa.bindparam("attempt_id")))
_OF_RUN = Statement(_in_order.where(messages.c.run_id == sa.bindparam("run_id")))


def add(
    connection: sa.Connection,
    task_id: str,
    kind: MessageKind,
    text: str,
    *,
    attempt_id: str | None = None,
    author: str = "person",
) -> str:
    """Store a message for a running attempt, or for the next attempt; return its id."""
    run_id = connection.execute(sa.select(tasks.c.run_id).where(tasks.c.id == task_id)).scalar()
    values = {
        "id": new_id("message"),
        "task_id": task_id,
        "run_id": run_id,
        "attempt_id": attempt_id,
        "kind": kind,
        "state": "waiting",
        "text": text,
        "author": author,
        "created_at": datetime.now(UTC),
    }
    connection.execute(messages.insert(), values)
    return str(values["id"])


def list_of_task(connection: sa.Connection, task_id: str) -> Sequence[Row]:
    """Return all messages to a task, the oldest first."""
    return _OF_TASK.rows(connection, task_id=task_id)


def list_of_run(connection: sa.Connection, run_id: str) -> Sequence[Row]:
    """Return all messages to the tasks of a run, the oldest first."""
    return _OF_RUN.rows(connection, run_id=run_id)


def list_of_attempt(connection: sa.Connection, attempt_id: str) -> Sequence[Row]:
    """Return all messages for the agent of an attempt, the oldest first."""
    return _OF_ATTEMPT.rows(connection, attempt_id=attempt_id)


def mark_delivered(connection: sa.Connection, ids: Sequence[str]) -> None:
    """Mark messages as read by an agent."""
    if ids:
        change = messages.update().where(messages.c.id.in_(ids), _WAITING)
        connection.execute(change.values(state="delivered", delivered_at=datetime.now(UTC)))


def give_to_attempt(connection: sa.Connection, task_id: str, attempt_id: str) -> None:
    """Mark the waiting messages of a task as delivered, in the prompt of a new attempt."""
    change = messages.update().where(messages.c.task_id == task_id, _WAITING)
    values = {"state": "delivered", "delivered_at": datetime.now(UTC)}
    connection.execute(change.values(attempt_id=attempt_id, **values))


def give_back(connection: sa.Connection, attempt_id: str) -> None:
    """Keep the messages that an attempt has not read for the next attempt."""
    change = messages.update().where(messages.c.attempt_id == attempt_id, _WAITING)
    connection.execute(change.values(attempt_id=None))


def end_waiting(connection: sa.Connection, task_id: str) -> None:
    """Mark the waiting messages of an ended task, which nobody will read."""
    change = messages.update().where(messages.c.task_id == task_id, _WAITING)
    connection.execute(change.values(state="ended"))
