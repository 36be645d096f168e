"""Questions of tasks and runs to people: asked, found, and how each ended."""

from collections.abc import Sequence
from datetime import UTC, datetime
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
    """Store what a task or run asks; in a run its place is that of its step."""
    if is_id("run", work_id):
        kind = "run_id"
    else:
        kind = "task_id"
    now = datetime.now(UTC)
    if place is None:
        place = str(count_rows(connection, questions.c[kind] == work_id) + 1)
    values = spec.model_dump(exclude={"patience_s"}) | {"token": f"{work_id}:{place}"}
    values |= {kind: work_id, "attempt_id": attempt_id, "status": "open", "asked_at": now}
    if spec.patience_s is not None:
        values["expires_at"] = datetime.fromtimestamp(now.timestamp() + spec.patience_s, UTC)
    connection.execute(questions.insert(), values)
    return get(connection, str(values["token"]))


def get(connection: sa.Connection, token: str) -> Question:
    """The question of a token, or NotFound."""
    found = _find(connection, questions.c.token == token)
    if not found:
        work_id = token.partition(":")[0]
        raise NotFound(
            f"{work_id} asked no such question.", hint="`kapelle questions` shows what is asked."
        )
    return found[0]


def list_open(
    connection: sa.Connection, ids: Sequence[str] | None = None, repository: str | None = None
) -> list[Question]:
    """Return the open questions, the oldest first; of these tasks or runs, or of a repository."""
    if repository is not None:
        path = resolve_path(connection, repository)
        return _find(connection, _IS_OPEN, _REPOSITORY.in_([path]))
    if ids is None:
        return _find(connection, _IS_OPEN)
    whose = sa.or_(questions.c.task_id.in_(ids), questions.c.run_id.in_(ids))
    if ids:
        return _find(connection, _IS_OPEN, whose)
    return []


def list_overdue(connection: sa.Connection, now: datetime) -> list[Question]:
    """What is open, though its time is over."""
    return _find(connection, _IS_OPEN, questions.c.expires_at <= now)


def list_unsent(connection: sa.Connection, attempt_id: str) -> list[Question]:
    """What an attempt's agent asked while it worked, of which it has not been told the end."""
    waits = questions.c.status != "withdrawn"
    return _find(connection, questions.c.attempt_id == attempt_id, ~questions.c.told, waits)


def list_sent_since(connection: sa.Connection, attempt_id: str, since: datetime) -> list[Question]:
    """What an attempt's agent asked and was sent the answer to from a moment on."""
    late = (questions.c.status == "answered", questions.c.ended_at >= since)
    return _find(connection, questions.c.attempt_id == attempt_id, questions.c.told, *late)


def find_repeated(connection: sa.Connection, attempt_id: str, text: str) -> Question | None:
    """What an attempt's agent asked in the same words, and may not have heard the answer to: that
    it was sent does not say that it arrived."""
    unheard = sa.or_(~questions.c.told, questions.c.status == "answered")
    which = (questions.c.attempt_id == attempt_id, questions.c.text == text, unheard)
    return next(iter(_find(connection, *which, questions.c.status != "withdrawn")), None)


def is_asked_by(connection: sa.Connection, token: str, attempt_id: str | None) -> bool:
    """Whether an attempt's agent asked it while it worked."""
    query = sa.select(questions.c.attempt_id).where(questions.c.token == token)
    return attempt_id is not None and connection.execute(query).scalar() == attempt_id


def end(
    connection: sa.Connection, token: str, status: QuestionStatus, answer: str | None = None
) -> None:
    _update(connection, questions.c.token == token, status=status, answer=answer)


def withdraw(connection: sa.Connection, work_id: str) -> None:
    """Nobody needs an answer any more to what a task or run has asked."""
    whose = sa.or_(questions.c.task_id == work_id, questions.c.run_id == work_id)
    _update(connection, whose, status="withdrawn")


def mark_sent(connection: sa.Connection, tokens: Sequence[str]) -> None:
    """Note that the one who asked was told."""
    query = questions.update().where(questions.c.token.in_(tokens))
    connection.execute(query.values(told=True))


def _update(connection: sa.Connection, which: sa.ColumnElement[bool], **values: Any) -> None:
    query = questions.update().where(which, _IS_OPEN)
    connection.execute(query.values(ended_at=datetime.now(UTC), **values))


def _find(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> list[Question]:
    rows: Sequence[Row] = connection.execute(_SELECT.where(*which)).mappings().all()
    return [Question.model_validate({**row}) for row in rows]
