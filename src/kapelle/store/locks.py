"""Locks that are held, for the next daemon to know; who waits is known to this one alone."""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from kapelle.store import events
from kapelle.store.query import Row, select_in_parts
from kapelle.store.tables import attempts, locks


def list_all(connection: sa.Connection) -> list[Row]:
    query = sa.select(locks).order_by(locks.c.taken_at, locks.c.path)
    return list(connection.execute(query).mappings())


def find_ended_owners(connection: sa.Connection, owners: Sequence[str]) -> set[str]:
    """Those of the attempts that do not run any more, or that nobody knows."""
    query = sa.select(attempts.c.id).where(attempts.c.ended_at.is_(None))
    return set(owners) - {
        row.id for row in select_in_parts(connection, query, attempts.c.id, owners)
    }


def take(connection: sa.Connection, held: Sequence[dict[str, Any]]) -> None:
    """Store what one owner holds from now on."""
    _forget(connection, held)
    connection.execute(locks.insert(), list(held))
    _tell(connection, "lock.taken", held, reason=held[0]["reason"])


def release(connection: sa.Connection, held: Sequence[dict[str, Any]], why: str) -> None:
    """Forget what is held no more, of one owner or of several."""
    _forget(connection, held)
    for owner in {one["owner"] for one in held}:
        _tell(connection, "lock.released", [one for one in held if one["owner"] == owner], why=why)


def _forget(connection: sa.Connection, held: Iterable[dict[str, Any]]) -> None:
    for one in held:
        same = (locks.c[name] == one[name] for name in ("checkout", "path", "owner"))
        connection.execute(locks.delete().where(*same))


def _tell(
    connection: sa.Connection, kind: str, held: Sequence[dict[str, Any]], **more: Any
) -> None:
    first = held[0]
    paths = [one["path"] for one in held]
    if first["task_id"]:
        attempt_id = first["owner"]
    else:
        attempt_id = None
    events.append(
        connection, kind, first["task_id"], attempt_id, checkout=first["checkout"], paths=paths,
        **more,
    )  # fmt: skip
