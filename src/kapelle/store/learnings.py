"""Queries about learnings, and the full-text index over them: FTS5 or tsvector."""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.learning import Learning, LearningFilter
from kapelle.domain.text import make_storable
from kapelle.store.query import Row, count_rows
from kapelle.store.rows import Rows
from kapelle.store.tables import INDEX, learnings

_rows = Rows(learnings, "learning")
# Titles say more than texts, and tags are chosen to be found by.
_SQLITE_RANK = f"bm25({INDEX}, 0, 4, 1, 2)"
_MATCHES = {
    "sqlite": f"SELECT id, {_SQLITE_RANK} AS rank FROM {INDEX} WHERE {INDEX} MATCH :terms",
    "postgresql": f"SELECT id, -ts_rank('{{0.1, 0.2, 0.5, 1.0}}', vector, terms, 1) AS rank "
    f"FROM {INDEX}, to_tsquery('english', :terms) AS terms WHERE vector @@ terms",
}
_ADD = {
    "sqlite": f"INSERT INTO {INDEX} (rowid, id, title, content, tags) "
    "VALUES (:number, :id, :title, :content, :tags)",
    "postgresql": f"INSERT INTO {INDEX} (id, vector) VALUES (:id, "
    "setweight(to_tsvector('english', :title), 'A') || to_tsvector('english', :content) || "
    "setweight(to_tsvector('english', :tags), 'B'))",
}
_FORGET = {
    "sqlite": f"DELETE FROM {INDEX} WHERE rowid = :number",
    "postgresql": f"DELETE FROM {INDEX} WHERE id = :id",
}
_RANK: sa.ColumnClause[float] = sa.column("rank")


def load_row(connection: sa.Connection, learning_id: str) -> Row:
    """Return the stored row of a learning; raise NotFound if there is none."""
    return _rows.load(connection, learning_id)


def find(connection: sa.Connection, learning_id: str) -> Row | None:
    """Return the stored row of a learning, if there is one."""
    return _rows.find(connection, learning_id)


def resolve(connection: sa.Connection, text: str) -> str:
    """Return the whole id of a learning for the part that a person typed, or raise NotFound."""
    return _rows.resolve(connection, text)


def get(connection: sa.Connection, text: str) -> Learning:
    return _learning(load_row(connection, resolve(connection, text)))


def has_any(connection: sa.Connection) -> bool:
    return connection.execute(sa.select(learnings.c.id).limit(1)).first() is not None


def count_reported(connection: sa.Connection, task_id: str) -> int:
    """How many a task has reported, whatever became of them."""
    return count_rows(connection, learnings.c.task_id == task_id)


def list_kept_of_agents(
    connection: sa.Connection, since: datetime, until: datetime, project: str | None
) -> list[Learning]:
    """Return what agents reported in a time and later agents are told, the oldest first."""
    query = sa.select(learnings).where(
        learnings.c.task_id.is_not(None),
        learnings.c.status == "kept",
        learnings.c.created_at.between(since, until),
    )
    if project is not None:
        query = query.where(learnings.c.project == project)
    rows = connection.execute(query.order_by(learnings.c.id)).mappings()
    return [_learning(row) for row in rows]


def insert(connection: sa.Connection, learning: Learning, reviewed_at: datetime | None) -> None:
    values = learning.model_dump()
    connection.execute(learnings.insert(), {**values, "reviewed_at": reviewed_at})
    _index(connection, values)


def update(connection: sa.Connection, learning_id: str, /, **values: Any) -> Learning:
    _rows.update(connection, learning_id, **values)
    changed = load_row(connection, learning_id)
    if values.keys() & {"title", "content", "tags"}:
        _in_index(connection, _FORGET, learning_id)
        _index(connection, changed)
    return _learning(changed)


def delete(connection: sa.Connection, learning_id: str) -> None:
    connection.execute(learnings.delete().where(learnings.c.id == learning_id))
    _in_index(connection, _FORGET, learning_id)


def list_page(
    connection: sa.Connection, wanted: LearningFilter, project: str | None
) -> tuple[list[Learning], str | None]:
    """Some, newest first, and the cursor of the next page; of a project, what it is told."""
    # The project is no plain condition: what is global is told to all.
    plain = wanted.model_copy(update={"project": None})
    chosen = sa.select(learnings.c.id).where(*_told_to(project), *_tagged(wanted.tag))
    rows, cursor = _rows.list_page(connection, plain, chosen, sa.func.length(learnings.c.content))
    return [_learning(found) for found in rows], cursor


def search(
    connection: sa.Connection,
    terms: Sequence[Sequence[str]],
    project: str | None,
    limit: int,
    tag: str | None = None,
) -> list[Learning]:
    """Those that are kept and have any of the terms, the best first."""
    if not terms:
        return []
    query = sa.select(learnings).where(learnings.c.status == "kept")
    query = query.where(*_told_to(project), *_tagged(tag)).limit(limit)
    if _is_indexed(connection):
        found = sa.text(_MATCHES[connection.dialect.name]).columns(sa.column("id"), _RANK)
        matches = found.bindparams(terms=_expression(connection, terms)).subquery()
        query = query.join(matches, matches.c.id == learnings.c.id)
        query = query.order_by(matches.c.rank, learnings.c.id.desc())
    else:
        text = learnings.c.title + "\n" + learnings.c.content
        likes = [text.icontains(" ".join(words), autoescape=True) for words in terms]
        query = query.where(sa.or_(*likes)).order_by(learnings.c.id.desc())
    return [_learning(found) for found in connection.execute(query).mappings()]


def list_relevant(
    connection: sa.Connection, terms: Sequence[Sequence[str]], project: str, most: int = 50
) -> list[Learning]:
    """What work in a project may be told: first what has its words, then the project's newest."""
    own = sa.select(learnings).where(learnings.c.status == "kept", learnings.c.scope == "project")
    own = own.where(learnings.c.project == project).order_by(learnings.c.id.desc()).limit(most)
    newest = [_learning(found) for found in connection.execute(own).mappings()]
    found = [*search(connection, terms, project, most), *newest]
    return list({learning.id: learning for learning in found}.values())


def list_due(connection: sa.Connection, before: datetime, limit: int) -> list[Learning]:
    """Those that nobody has reviewed yet, and those of agents whose last review is long ago."""
    columns = learnings.c
    old = sa.and_(
        columns.status == "kept", columns.author != "person", columns.reviewed_at < before
    )
    query = sa.select(learnings).where(sa.or_(columns.status == "reported", old))
    query = query.order_by(columns.id).limit(limit)
    return [_learning(found) for found in connection.execute(query).mappings()]


def delete_discarded(connection: sa.Connection, before: datetime) -> None:
    """Delete what was discarded so long ago that its task reports nothing any more."""
    old = sa.and_(learnings.c.status == "discarded", learnings.c.changed_at < before)
    for learning_id in connection.execute(sa.select(learnings.c.id).where(old)).scalars().all():
        delete(connection, learning_id)


def _learning(found: Row) -> Learning:
    return Learning.model_validate({**found})


def _told_to(project: str | None) -> list[sa.ColumnElement[bool]]:
    if project is None:
        return []
    return [sa.or_(learnings.c.scope == "global", learnings.c.project == project)]


def _tagged(tag: str | None) -> list[sa.ColumnElement[bool]]:
    tags = sa.cast(learnings.c.tags, sa.Text)
    if tag:
        return [tags.contains(json.dumps(tag), autoescape=True)]
    return []


def _is_indexed(connection: sa.Connection) -> bool:
    if connection.dialect.name != "sqlite":
        return True
    query = sa.text("SELECT 1 FROM sqlite_master WHERE name = :name")
    return connection.execute(query, {"name": INDEX}).scalar() is not None


def _expression(connection: sa.Connection, terms: Sequence[Sequence[str]]) -> str:
    """Any of the terms in the language of the index; words hold nothing that it could mistake."""
    if connection.dialect.name == "sqlite":
        return " OR ".join(f'"{" ".join(words)}"' for words in terms)
    return " | ".join("(" + " <-> ".join(f"'{word}'" for word in words) + ")" for words in terms)


def _index(connection: sa.Connection, values: Any) -> None:
    told = {**values, "tags": " ".join(values["tags"])}
    texts = {name: make_storable(told[name]) for name in ("title", "content", "tags")}
    _in_index(connection, _ADD, values["id"], **texts)


def _in_index(connection: sa.Connection, by: dict[str, str], learning_id: str, **told: str) -> None:
    # An FTS5 table finds its rows by words and by their numbers alone.
    number = int.from_bytes(hashlib.sha256(learning_id.encode()).digest()[:8]) >> 1
    known = {"id": learning_id, "number": number, **told}
    if _is_indexed(connection):
        connection.execute(sa.text(by[connection.dialect.name]), known)
