"""Learnings, and the full-text index over them: FTS5 on SQLite, tsvector on PostgreSQL."""

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
# Words in titles count more than words in texts, and tags count in between.
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
_REMOVE = {
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
    """Return a learning by the part of its id that a person typed; raise NotFound."""
    return _read_learning(load_row(connection, resolve(connection, text)))


def has_any(connection: sa.Connection) -> bool:
    """Return whether there is any learning."""
    return connection.execute(sa.select(learnings.c.id).limit(1)).first() is not None


def count_reported(connection: sa.Connection, task_id: str) -> int:
    """Return the number of learnings that a task has reported, including discarded ones."""
    return count_rows(connection, learnings.c.task_id == task_id)


def list_kept_of_agents(
    connection: sa.Connection, since: datetime, until: datetime, project: str | None
) -> list[Learning]:
    """Return the kept learnings that agents reported in a time span, the oldest first."""
    query = sa.select(learnings).where(
        learnings.c.task_id.is_not(None),
        learnings.c.status == "kept",
        learnings.c.created_at.between(since, until),
    )
    if project is not None:
        query = query.where(learnings.c.project == project)
    rows = connection.execute(query.order_by(learnings.c.id)).mappings()
    return [_read_learning(row) for row in rows]


def insert(connection: sa.Connection, learning: Learning, reviewed_at: datetime | None) -> None:
    """Store a learning and add it to the index."""
    values = learning.model_dump()
    connection.execute(learnings.insert(), {**values, "reviewed_at": reviewed_at})
    _add_to_index(connection, values)


def update(connection: sa.Connection, learning_id: str, /, **values: Any) -> Learning:
    """Change a learning, and the index if its text changes; return the result."""
    _rows.update(connection, learning_id, **values)
    row = load_row(connection, learning_id)
    if values.keys() & {"title", "content", "tags"}:
        _execute_on_index(connection, _REMOVE, learning_id)
        _add_to_index(connection, row)
    return _read_learning(row)


def delete(connection: sa.Connection, learning_id: str) -> None:
    """Delete a learning, also from the index."""
    connection.execute(learnings.delete().where(learnings.c.id == learning_id))
    _execute_on_index(connection, _REMOVE, learning_id)


def list_page(
    connection: sa.Connection, filter_: LearningFilter, project: str | None
) -> tuple[list[Learning], str | None]:
    """Return one page of learnings, the newest first, and the cursor of the next page.

    A project has its own learnings and the global ones.
    """
    # The common filter would compare the project alone and leave out global learnings.
    other_fields = filter_.model_copy(update={"project": None})
    conditions = [*_match_scope(project), *_match_tag(filter_.tag)]
    base = sa.select(learnings.c.id).where(*conditions)
    length = sa.func.length(learnings.c.content)
    rows, cursor = _rows.list_page(connection, other_fields, base, length)
    return [_read_learning(row) for row in rows], cursor


def search(
    connection: sa.Connection,
    terms: Sequence[Sequence[str]],
    project: str | None,
    limit: int,
    tag: str | None = None,
) -> list[Learning]:
    """Return the kept learnings that contain any of the terms, the best match first."""
    if not terms:
        return []
    query = sa.select(learnings).where(learnings.c.status == "kept")
    query = query.where(*_match_scope(project), *_match_tag(tag)).limit(limit)
    if _has_index(connection):
        statement = sa.text(_MATCHES[connection.dialect.name]).columns(sa.column("id"), _RANK)
        matches = statement.bindparams(terms=_format_terms(connection, terms)).subquery()
        query = query.join(matches, matches.c.id == learnings.c.id)
        query = query.order_by(matches.c.rank, learnings.c.id.desc())
    else:
        text = learnings.c.title + "\n" + learnings.c.content
        likes = [text.icontains(" ".join(words), autoescape=True) for words in terms]
        query = query.where(sa.or_(*likes)).order_by(learnings.c.id.desc())
    return [_read_learning(row) for row in connection.execute(query).mappings()]


def list_relevant(
    connection: sa.Connection, terms: Sequence[Sequence[str]], project: str, most: int = 50
) -> list[Learning]:
    """Return the candidates for prompts in a project: matches of its words, then its newest."""
    own = sa.select(learnings).where(learnings.c.status == "kept", learnings.c.scope == "project")
    own = own.where(learnings.c.project == project).order_by(learnings.c.id.desc()).limit(most)
    newest = [_read_learning(row) for row in connection.execute(own).mappings()]
    matches = search(connection, terms, project, most)
    by_id = {learning.id: learning for learning in [*matches, *newest]}
    return list(by_id.values())


def list_due(connection: sa.Connection, before: datetime, limit: int) -> list[Learning]:
    """Return learnings to review: new ones, and those of agents with a review before a time."""
    columns = learnings.c
    old = sa.and_(
        columns.status == "kept", columns.author != "person", columns.reviewed_at < before
    )
    query = sa.select(learnings).where(sa.or_(columns.status == "reported", old))
    query = query.order_by(columns.id).limit(limit)
    return [_read_learning(row) for row in connection.execute(query).mappings()]


def delete_discarded(connection: sa.Connection, before: datetime) -> None:
    """Delete learnings that were discarded before a time, when their tasks had long ended."""
    old = sa.and_(learnings.c.status == "discarded", learnings.c.changed_at < before)
    for learning_id in connection.execute(sa.select(learnings.c.id).where(old)).scalars().all():
        delete(connection, learning_id)


def _read_learning(row: Row) -> Learning:
    return Learning.model_validate({**row})


def _match_scope(project: str | None) -> list[sa.ColumnElement[bool]]:
    if project is None:
        return []
    return [sa.or_(learnings.c.scope == "global", learnings.c.project == project)]


def _match_tag(tag: str | None) -> list[sa.ColumnElement[bool]]:
    if not tag:
        return []
    tags = sa.cast(learnings.c.tags, sa.Text)
    return [tags.contains(json.dumps(tag), autoescape=True)]


def _has_index(connection: sa.Connection) -> bool:
    """Return whether the index exists; SQLite may have been built without FTS5."""
    if connection.dialect.name != "sqlite":
        return True
    query = sa.text("SELECT 1 FROM sqlite_master WHERE name = :name")
    return connection.execute(query, {"name": INDEX}).scalar() is not None


def _format_terms(connection: sa.Connection, terms: Sequence[Sequence[str]]) -> str:
    """Return an expression that matches any of the terms, in the language of the index.

    Words contain only letters and digits, so they need no escapes.
    """
    if connection.dialect.name == "sqlite":
        return " OR ".join(f'"{" ".join(words)}"' for words in terms)
    phrases = []
    for words in terms:
        phrase = " <-> ".join(f"'{word}'" for word in words)
        phrases.append(f"({phrase})")
    return " | ".join(phrases)


def _add_to_index(connection: sa.Connection, values: Any) -> None:
    texts = {
        "title": make_storable(values["title"]),
        "content": make_storable(values["content"]),
        "tags": make_storable(" ".join(values["tags"])),
    }
    _execute_on_index(connection, _ADD, values["id"], **texts)


def _execute_on_index(
    connection: sa.Connection, statements: dict[str, str], learning_id: str, **texts: str
) -> None:
    if not _has_index(connection):
        return
    # An FTS5 table can find a row only by its words or by its number.
    number = int.from_bytes(hashlib.sha256(learning_id.encode()).digest()[:8]) >> 1
    values = {"id": learning_id, "number": number, **texts}
    connection.execute(sa.text(statements[connection.dialect.name]), values)
