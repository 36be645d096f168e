"""Held locks, so that the next daemon knows them.

Waits for locks are not stored: only the running daemon knows them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from kapelle.store import events
from kapelle.store.query import Row, select_in_parts
from kapelle.store.tables import attempts, locks


def list_all(connection: sa.Connection) -> list[Row]:
    """Return all held locks, the oldest first."""
    query = sa.select(locks).order_by(locks.c.taken_at, locks.c.path)
    return list(connection.execute(query).mappings())


def find_ended_owners(connection: sa.Connection, owners: Sequence[str]) -> set[str]:
    """Return the owners that are not running attempts: they ended or do not exist."""
    query = sa.select(attempts.c.id).where(attempts.c.ended_at.is_(None))
    return set(owners) - {
        row.id for row in select_in_parts(connection, query, attempts.c.id, owners)
    }


def take(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Store new locks of one owner."""
    _delete(connection, rows)
    connection.execute(locks.insert(), list(rows))
    _append_event(connection, "lock.taken", rows, reason=rows[0]["reason"])


def release(connection: sa.Connection, rows: Sequence[dict[str, Any]], why: str) -> None:
    """Delete locks of one or several owners."""
    _delete(connection, rows)
    for owner in {row["owner"] for row in rows}:
        own_rows = [row for row in rows if row["owner"] == owner]
        _append_event(connection, "lock.released", own_rows, why=why)


def _delete(connection: sa.Connection, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        same = (locks.c[name] == row[name] for name in ("checkout", "path", "owner"))
        connection.execute(locks.delete().where(*same))


def _append_event(
    connection: sa.Connection, kind: str, rows: Sequence[dict[str, Any]], **data: Any
) -> None:
    """Store one event for the locks of one owner."""
    first = rows[0]
    attempt_id = None
    if first["task_id"]:
        attempt_id = first["owner"]
    data |= {"checkout": first["checkout"], "paths": [row["path"] for row in rows]}
    events.append(connection, kind, first["task_id"], attempt_id, **data)
