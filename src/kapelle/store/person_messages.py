"""What people said to a task: hints, answers and messages, from the rows that hold them."""

from collections.abc import Sequence
from typing import Any, Literal

import sqlalchemy as sa

from kapelle.domain.states import FINAL
from kapelle.domain.work_views import PersonMessage
from kapelle.store import messages
from kapelle.store.query import Row, count_rows
from kapelle.store.tables import attempts, events, questions, tasks

_State = Literal["waiting", "delivered", "refused"]
_STATES: dict[str, _State] = {"delivered": "delivered", "ended": "refused"}


def list_of_task(connection: sa.Connection, task_id: str) -> list[PersonMessage]:
    """All that people said to a task, the oldest first."""
    task = _rows(connection, sa.select(tasks).where(tasks.c.id == task_id))[0]
    query = sa.select(attempts).where(attempts.c.task_id == task_id).order_by(attempts.c.number)
    tried = _rows(connection, query)
    found = [*_messages(connection, task, tried), *_answers(connection, task, tried)]
    return sorted(found, key=lambda message: message.at)


def count_at_work(connection: sa.Connection, attempt_id: str) -> int:
    """The number of times that a person said something to the agent of an attempt."""
    of_attempt = sa.select(attempts.c.task_id).where(attempts.c.id == attempt_id).scalar_subquery()
    return count_rows(
        connection,
        (events.c.task_id == of_attempt)
        & (events.c.attempt_id == attempt_id)
        & events.c.kind.in_(("task.said", "task.answered")),
    )


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> Sequence[Row]:
    return connection.execute(query).mappings().all()


def _undelivered(task: Row) -> _State:
    """The state of what no agent has read."""
    if task["status"] in FINAL:
        return "refused"
    return "waiting"


def _messages(connection: sa.Connection, task: Row, tried: Sequence[Row]) -> list[PersonMessage]:
    """The hints and messages, each with the attempt at which it was said, or that it began."""
    by_id = {attempt["id"]: attempt for attempt in tried}
    found = []
    for row in messages.list_of_task(connection, task["id"]):
        if row["author"] != "person":
            continue
        said_at = row["created_at"]
        listening = next(
            (
                attempt
                for attempt in tried
                if attempt["started_at"] <= said_at
                and (attempt["ended_at"] is None or attempt["ended_at"] >= said_at)
            ),
            None,
        )
        attempt = listening or by_id.get(row["attempt_id"])
        found.append(
            PersonMessage(
                id=row["id"],
                kind="message" if listening else "hint",
                text=row["text"],
                state=_undelivered(task) if row["state"] == "waiting" else _STATES[row["state"]],
                attempt=attempt["number"] if attempt else None,
                at_work=listening is not None,
                at=said_at,
            )
        )
    return found


def _answers(connection: sa.Connection, task: Row, tried: Sequence[Row]) -> list[PersonMessage]:
    """The answers to the questions of its agents. An agent at work is told at once; one that has
    ended is followed by an attempt that is told."""
    query = sa.select(questions).where(
        questions.c.task_id == task["id"], questions.c.status == "answered"
    )
    found = []
    for question in _rows(connection, query):
        asking = next((one for one in tried if one["id"] == question["attempt_id"]), None)
        later = next((one for one in tried if one["started_at"] >= question["ended_at"]), None)
        at_work = asking is not None and (
            asking["ended_at"] is None or asking["ended_at"] > question["ended_at"]
        )
        attempt = asking if at_work else later
        is_told = later is not None or (at_work and question["told"])
        found.append(
            PersonMessage(
                id=question["token"],
                kind="answer",
                text=question["answer"],
                question=question["text"],
                state="delivered" if is_told else _undelivered(task),
                attempt=attempt["number"] if attempt else None,
                at_work=at_work,
                at=question["ended_at"],
            )
        )
    return found
