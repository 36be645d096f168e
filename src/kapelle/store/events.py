"""The append-only history that every live view is fed from."""

from datetime import UTC, datetime

import sqlalchemy as sa

from kapelle.domain.task import Event
from kapelle.store.tables import events

Value = str | int | float | bool | None

_INSERT = events.insert()


def append(
    connection: sa.Connection,
    kind: str,
    task_id: str | None = None,
    attempt_id: str | None = None,
    /,
    **data: Value,
) -> None:
    values = {"kind": kind, "task_id": task_id, "attempt_id": attempt_id, "data": data}
    connection.execute(_INSERT, {"at": datetime.now(UTC), **values})


def after(
    connection: sa.Connection, seq: int, *, task_id: str | None = None, limit: int = 500
) -> list[Event]:
    """The events with a number above seq, oldest first."""
    query = sa.select(events).where(events.c.seq > seq).order_by(events.c.seq).limit(limit)
    if task_id is not None:
        query = query.where(events.c.task_id == task_id)
    return [Event.model_validate(dict(row._mapping)) for row in connection.execute(query)]


def last_seq(connection: sa.Connection) -> int:
    return connection.execute(sa.select(sa.func.max(events.c.seq))).scalar() or 0
