"""What people said to a task: hints, answers and messages, from the rows that hold them."""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import sqlalchemy as sa

from kapelle.domain.states import FINAL
from kapelle.domain.views import PersonMessage
from kapelle.store.query import Row, count
from kapelle.store.tables import attempts, events, questions, tasks

_State = Literal["waiting", "delivered", "refused"]


def of_task(
    connection: sa.Connection, task_id: str, unread: Collection[str] = ()
) -> list[PersonMessage]:
    """All that people said to a task, the oldest first; unread are the ids of the messages that
    its agent at work has not read."""
    task = _rows(connection, sa.select(tasks).where(tasks.c.id == task_id))[0]
    query = sa.select(attempts).where(attempts.c.task_id == task_id).order_by(attempts.c.number)
    tried = _rows(connection, query)
    found = [
        *_hints(task, tried),
        *_answers(connection, task, tried),
        *_to_running_agents(connection, task, tried, unread),
    ]
    return sorted(found, key=lambda message: message.at)


def count_at_work(connection: sa.Connection, attempt_id: str) -> int:
    """The number of times that a person said something to the agent of an attempt."""
    of_attempt = sa.select(attempts.c.task_id).where(attempts.c.id == attempt_id).scalar_subquery()
    return count(
        connection,
        (events.c.task_id == of_attempt)
        & (events.c.attempt_id == attempt_id)
        & events.c.kind.in_(("task.said", "task.answered")),
    )


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> Sequence[Row]:
    return connection.execute(query).mappings().all()


def _undelivered(task: Row) -> _State:
    """The state of what no agent has read."""
    return "refused" if task["status"] in FINAL else "waiting"


def _hints(task: Row, tried: Sequence[Row]) -> list[PersonMessage]:
    found = [
        PersonMessage(
            id=attempt["id"],
            kind="hint",
            text=attempt["said"],
            state="delivered",
            attempt=attempt["number"],
            at=attempt["said_at"],
        )
        for attempt in tried
        if attempt["said"]
    ]
    if task["next_said"]:
        found.append(
            PersonMessage(
                id=task["id"],
                kind="hint",
                text=task["next_said"],
                state=_undelivered(task),
                at=task["next_said_at"],
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


def _to_running_agents(
    connection: sa.Connection, task: Row, tried: Sequence[Row], unread: Collection[str]
) -> list[PersonMessage]:
    """The messages to agents at work, of which the history holds the text."""
    query = sa.select(events).where(
        events.c.task_id == task["id"], events.c.kind.in_(("task.said", "attempt.unread"))
    )
    history = _rows(connection, query.order_by(events.c.seq))
    left = {
        one for row in history if row["kind"] == "attempt.unread" for one in row["data"]["messages"]
    }
    numbers = {attempt["id"]: attempt["number"] for attempt in tried}
    found = []
    for row in history:
        message_id, number = row["data"].get("message"), numbers.get(row["attempt_id"])
        if message_id is None or number is None:
            continue
        state: _State = "delivered"
        # What an attempt left unread is told to the next one.
        if message_id in unread or (message_id in left and number == tried[-1]["number"]):
            state = _undelivered(task)
        found.append(
            PersonMessage(
                id=message_id,
                kind="message",
                text=row["data"]["text"],
                state=state,
                attempt=number,
                at_work=True,
                at=row["at"],
            )
        )
    return found
