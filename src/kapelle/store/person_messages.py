"""Texts of people for a task: hints, answers and messages, collected from their tables."""

from collections.abc import Sequence
from datetime import datetime
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
    """Return all texts of people for a task, the oldest first."""
    task = _load_rows(connection, sa.select(tasks).where(tasks.c.id == task_id))[0]
    query = sa.select(attempts).where(attempts.c.task_id == task_id).order_by(attempts.c.number)
    attempt_rows = _load_rows(connection, query)
    texts = _list_messages(connection, task, attempt_rows)
    texts += _list_answers(connection, task, attempt_rows)
    return sorted(texts, key=lambda text: text.at)


def count_at_work(connection: sa.Connection, attempt_id: str) -> int:
    """Return the number of texts that people sent to the agent of an attempt while it worked."""
    of_attempt = sa.select(attempts.c.task_id).where(attempts.c.id == attempt_id).scalar_subquery()
    return count_rows(
        connection,
        (events.c.task_id == of_attempt)
        & (events.c.attempt_id == attempt_id)
        & events.c.kind.in_(("task.said", "task.answered")),
    )


def _load_rows(connection: sa.Connection, query: sa.Select[Any]) -> Sequence[Row]:
    return connection.execute(query).mappings().all()


def _find_unread_state(task: Row) -> _State:
    """Return the state of a text that no agent has read."""
    if task["status"] in FINAL:
        return "refused"
    return "waiting"


def _list_messages(
    connection: sa.Connection, task: Row, attempt_rows: Sequence[Row]
) -> list[PersonMessage]:
    """Return the hints and messages.

    A message belongs to the attempt that was active when it was sent, a hint to the attempt that it
    started.
    """
    attempts_by_id = {attempt["id"]: attempt for attempt in attempt_rows}
    texts = []
    for row in messages.list_of_task(connection, task["id"]):
        if row["author"] != "person":
            continue
        listener = _find_active(attempt_rows, row["created_at"])
        attempt = listener or attempts_by_id.get(row["attempt_id"])
        if row["state"] == "waiting":
            state = _find_unread_state(task)
        else:
            state = _STATES[row["state"]]
        texts.append(
            PersonMessage(
                id=row["id"],
                kind="message" if listener else "hint",
                text=row["text"],
                state=state,
                attempt=attempt["number"] if attempt else None,
                at_work=listener is not None,
                at=row["created_at"],
            )
        )
    return texts


def _find_active(attempt_rows: Sequence[Row], moment: datetime) -> Row | None:
    """Return the attempt that was active at a moment, if there was one."""
    for attempt in attempt_rows:
        has_ended = attempt["ended_at"] is not None and attempt["ended_at"] < moment
        if attempt["started_at"] <= moment and not has_ended:
            return attempt
    return None


def _list_answers(
    connection: sa.Connection, task: Row, attempt_rows: Sequence[Row]
) -> list[PersonMessage]:
    """Return the answers to the questions of a task's agents.

    An active agent gets the answer at once. If the agent has ended, the next attempt gets it.
    """
    query = sa.select(questions).where(
        questions.c.task_id == task["id"], questions.c.status == "answered"
    )
    attempts_by_id = {attempt["id"]: attempt for attempt in attempt_rows}
    texts = []
    for question in _load_rows(connection, query):
        answered_at = question["ended_at"]
        asking = attempts_by_id.get(question["attempt_id"])
        later = next((one for one in attempt_rows if one["started_at"] >= answered_at), None)
        at_work = asking is not None and (
            asking["ended_at"] is None or asking["ended_at"] > answered_at
        )
        attempt = asking if at_work else later
        state = _find_unread_state(task)
        if later is not None or (at_work and question["told"]):
            state = "delivered"
        texts.append(
            PersonMessage(
                id=question["token"],
                kind="answer",
                text=question["answer"],
                question=question["text"],
                state=state,
                attempt=attempt["number"] if attempt else None,
                at_work=at_work,
                at=answered_at,
            )
        )
    return texts
