"""Questions of tasks and runs to people, and their answers."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from kapelle.domain.errors import NotFound
from kapelle.domain.ids import is_id
from kapelle.domain.question import Question, QuestionSpec, QuestionStatus
from kapelle.store.query import Row, count_rows
from kapelle.store.repository import resolve_path
from kapelle.store.tables import questions, runs, tasks

_TITLE = sa.func.coalesce(tasks.c.title, runs.c.title).label("title")
_REPOSITORY = sa.func.coalesce(tasks.c.repository, runs.c.repository)
_SELECT = (
    sa.select(questions, _TITLE, _REPOSITORY.label("repository"))
    .outerjoin(tasks, tasks.c.id == questions.c.task_id)
    .outerjoin(runs, runs.c.id == questions.c.run_id)
    .order_by(questions.c.asked_at, questions.c.token)
)
_IS_OPEN = questions.c.status == "open"


def ask(
    connection: sa.Connection,
    work_id: str,
    spec: QuestionSpec,
    *,
    place: str | None = None,
    attempt_id: str | None = None,
) -> Question:
    """Store a question of a task or run; its place in a run is the position of its step."""
    column = "task_id"
    if is_id("run", work_id):
        column = "run_id"
    now = datetime.now(UTC)
    if place is None:
        place = str(count_rows(connection, questions.c[column] == work_id) + 1)
    values = {
        **spec.model_dump(exclude={"patience_s"}),
        "token": f"{work_id}:{place}",
        column: work_id,
        "attempt_id": attempt_id,
        "status": "open",
        "asked_at": now,
    }
    if spec.patience_s is not None:
        values["expires_at"] = now + timedelta(seconds=spec.patience_s)
    connection.execute(questions.insert(), values)
    return get(connection, str(values["token"]))


def get(connection: sa.Connection, token: str) -> Question:
    """Return the question of a token; raise NotFound."""
    matches = _list(connection, questions.c.token == token)
    if not matches:
        work_id = token.partition(":")[0]
        raise NotFound(
            f"{work_id} has no such question.", hint="`kapelle questions` lists the open questions."
        )
    return matches[0]


def list_open(
    connection: sa.Connection, ids: Sequence[str] | None = None, repository: str | None = None
) -> list[Question]:
    """Return the open questions, the oldest first; of these tasks or runs, or of a repository."""
    if repository is not None:
        path = resolve_path(connection, repository)
        return _list(connection, _IS_OPEN, _REPOSITORY.in_([path]))
    if ids is None:
        return _list(connection, _IS_OPEN)
    if not ids:
        return []
    is_own = sa.or_(questions.c.task_id.in_(ids), questions.c.run_id.in_(ids))
    return _list(connection, _IS_OPEN, is_own)


def list_overdue(connection: sa.Connection, now: datetime) -> list[Question]:
    """Return the open questions whose time limit has passed."""
    return _list(connection, _IS_OPEN, questions.c.expires_at <= now)


def list_unsent(connection: sa.Connection, attempt_id: str) -> list[Question]:
    """Return the questions of a working agent whose answer was not sent to it yet."""
    is_needed = questions.c.status != "withdrawn"
    return _list(connection, questions.c.attempt_id == attempt_id, ~questions.c.told, is_needed)


def list_sent_since(connection: sa.Connection, attempt_id: str, since: datetime) -> list[Question]:
    """Return the questions of a working agent that were answered since a moment and sent to it."""
    is_answered = (questions.c.status == "answered", questions.c.ended_at >= since)
    return _list(connection, questions.c.attempt_id == attempt_id, questions.c.told, *is_answered)


def find_repeated(connection: sa.Connection, attempt_id: str, text: str) -> Question | None:
    """Return the earlier question of an agent with the same text, if it may lack the answer.

    An answer that was sent may not have arrived: then the agent asks again.
    """
    may_lack_answer = sa.or_(~questions.c.told, questions.c.status == "answered")
    is_same = (questions.c.attempt_id == attempt_id, questions.c.text == text)
    is_needed = questions.c.status != "withdrawn"
    return next(iter(_list(connection, *is_same, may_lack_answer, is_needed)), None)


def is_asked_by(connection: sa.Connection, token: str, attempt_id: str | None) -> bool:
    """Return whether the agent of an attempt asked a question while it worked."""
    query = sa.select(questions.c.attempt_id).where(questions.c.token == token)
    return attempt_id is not None and connection.execute(query).scalar() == attempt_id


def end(
    connection: sa.Connection, token: str, status: QuestionStatus, answer: str | None = None
) -> None:
    """End an open question."""
    _update_open(connection, questions.c.token == token, status=status, answer=answer)


def withdraw(connection: sa.Connection, work_id: str) -> None:
    """Withdraw the open questions of a task or run, which needs no answer any more."""
    is_own = sa.or_(questions.c.task_id == work_id, questions.c.run_id == work_id)
    _update_open(connection, is_own, status="withdrawn")


def mark_sent(connection: sa.Connection, tokens: Sequence[str]) -> None:
    """Record that the answers were sent to the agent that asked."""
    query = questions.update().where(questions.c.token.in_(tokens))
    connection.execute(query.values(told=True))


def _update_open(
    connection: sa.Connection, condition: sa.ColumnElement[bool], **values: Any
) -> None:
    change = questions.update().where(condition, _IS_OPEN)
    connection.execute(change.values(ended_at=datetime.now(UTC), **values))


def _list(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[Question]:
    rows: Sequence[Row] = connection.execute(_SELECT.where(*conditions)).mappings().all()
    return [Question.model_validate({**row}) for row in rows]
