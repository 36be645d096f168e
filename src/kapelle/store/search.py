"""The full-text index over the prompts, messages and output of ended work.

The index is a separate SQLite file, also with PostgreSQL. It holds words and positions, not texts.
A lost index is rebuilt.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kapelle.store.query import Row
from kapelle.store.repository import resolve_path
from kapelle.store.rows import rows_of_work
from kapelle.store.tables import WORK, runs, tasks

Damaged = sqlite3.DatabaseError
with closing(sqlite3.connect(":memory:")) as _probe:
    HAS_FTS5 = ("ENABLE_FTS5",) in _probe.execute("PRAGMA compile_options").fetchall()
# A document is a part of a source: a stream of an attempt, or the row of a task or run.
_TABLES = """
PRAGMA journal_mode=WAL;
PRAGMA synchronous=NORMAL;
CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, owner TEXT NOT NULL,
    project TEXT NOT NULL, source TEXT NOT NULL, attempt INTEGER NOT NULL, begin INTEGER NOT NULL,
    length INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS documents_owner ON documents (owner);
CREATE TABLE IF NOT EXISTS progress (source TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, content='', detail=none);
"""
_FIND = """
SELECT documents.* FROM words JOIN documents ON documents.id = words.rowid
WHERE words MATCH :words AND words.rowid < :before {more} ORDER BY words.rowid DESC LIMIT :most
"""


@dataclass(frozen=True)
class Document:
    """The position of some words: `length` bytes of a stream from `begin` on, or a whole field."""

    kind: str
    owner: str
    project: str
    source: str
    attempt: int = 0
    begin: int = 0
    length: int = 0
    id: int = 0


class SearchIndex:
    """The index on one connection, for one thread at a time.

    Raise OperationalError if SQLite was built without FTS5.
    """

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600)
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.executescript(_TABLES)

    def add(self, texts: Iterable[tuple[Document, str]], **progress: Any) -> None:
        """Add documents with their texts and the progress of their sources in one transaction."""
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            for document, text in texts:
                values = {**vars(document), "id": None}
                names = ",".join(values)
                parameters = ",".join(f":{name}" for name in values)
                sql = f"INSERT INTO documents ({names}) VALUES ({parameters})"
                number = connection.execute(sql, values).lastrowid
                connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, text))
            for source, value in progress.items():
                connection.execute(
                    "INSERT OR REPLACE INTO progress VALUES (?, ?)", (source, str(value))
                )

    def progress(self, source: str) -> str | None:
        """Return the stored progress of a source; None for a new source."""
        query = "SELECT value FROM progress WHERE source = ?"
        row = self._connection.execute(query, (source,)).fetchone()
        if row is None:
            return None
        value: str = row[0]
        return value

    def forget(self, owner: str, kinds: Sequence[str] = ()) -> None:
        """Delete the documents of a task or run, or those of some kinds.

        Their words stay in the index, but lead to no document.
        """
        sql = "DELETE FROM documents WHERE owner = ?"
        if kinds:
            placeholders = ",".join("?" for _ in kinds)
            sql += f" AND kind IN ({placeholders})"
        self._connection.execute(sql, (owner, *kinds))

    def rename(self, project: str, to: str) -> None:
        """Rename a project in all documents."""
        change = "UPDATE documents SET project = ? WHERE project = ?"
        self._connection.execute(change, (to, project))

    def owners(self) -> list[str]:
        """Return the tasks and runs that have documents."""
        rows = self._connection.execute("SELECT DISTINCT owner FROM documents")
        return [row[0] for row in rows]

    def waste(self) -> float:
        """Return the share of deleted documents, whose words still take space."""
        query = "SELECT count(*), coalesce(max(id), 0) FROM documents"
        number, number_ever = self._connection.execute(query).fetchone()
        if not number_ever:
            return 0.0
        return 1.0 - int(number) / int(number_ever)

    def find(
        self,
        words: Sequence[str],
        only: dict[str, str],
        before: int,
        most: int,
        owners: Sequence[str] | None = None,
    ) -> list[Document]:
        """Return documents that contain all words, the newest first; if given, only of owners."""
        more = "".join(f"AND documents.{name} = :{name} " for name in only)
        values = {"words": " ".join(f'"{word}"' for word in words), "before": before, "most": most}
        if owners is not None:
            more += "AND documents.owner IN (SELECT value FROM json_each(:owners)) "
            values["owners"] = json.dumps(owners)
        rows = self._connection.execute(_FIND.format(more=more), {**values, **only})
        return [Document(**dict(row)) for row in rows]

    def close(self) -> None:
        self._connection.close()


def list_ended_after(
    connection: sa.Connection, noun: str, last: str | None, limit: int
) -> list[Row]:
    """Return ended tasks or runs that are not archived, in the order of their ends.

    They start after the last one that was read, given as its end and its id with a space between.
    """
    table = {"task": tasks, "run": runs}[noun]
    query = sa.select(table).where(table.c.ended_at.is_not(None), table.c.archived_at.is_(None))
    if last is not None:
        moment, _, id_ = last.partition(" ")
        ended_at = table.c.ended_at
        end = datetime.fromisoformat(moment)
        later = sa.and_(ended_at == end, table.c.id > id_)
        query = query.where(sa.or_(ended_at > end, later))
    query = query.order_by(table.c.ended_at, table.c.id).limit(limit)
    return list(connection.execute(query).mappings())


def list_work_in(connection: sa.Connection, repository: str) -> list[str]:
    """Return the ids of all work in a repository, by its path or its name."""
    path = resolve_path(connection, repository)
    ids: list[str] = []
    for table, _ in WORK:
        query = sa.select(table.c.id).where(table.c.repository == path)
        ids += connection.execute(query).scalars()
    return ids


def find_work(connection: sa.Connection, id_: str) -> Row | None:
    """Return the row of a task or run unless it is deleted or archived."""
    row = rows_of_work(id_).find(connection, id_)
    if row and row["archived_at"] is None:
        return row
    return None
