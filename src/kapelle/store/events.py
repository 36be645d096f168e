"""The append-only history that every live view is fed from."""

from datetime import UTC, datetime

import sqlalchemy as sa

from kapelle.domain.task import Event
from kapelle.store.tables import events, tasks

Value = str | int | float | bool | None

_INSERT = events.insert()


def append(
    connection: sa.Connection,
    kind: str,
    task_id: str | None = None,
    attempt_id: str | None = None,
    /,
    *,
    run_id: str | None = None,
    **data: Value,
) -> None:
    values = {"kind": kind, "task_id": task_id, "attempt_id": attempt_id, "run_id": run_id}
    connection.execute(_INSERT, {"at": datetime.now(UTC), "data": data, **values})


def after(
    connection: sa.Connection,
    seq: int,
    *,
    task_id: str | None = None,
    run_id: str | None = None,
    limit: int = 500,
) -> list[Event]:
    """The events with a number above seq, oldest first; those of a run include its tasks'."""
    query = sa.select(events).where(events.c.seq > seq).order_by(events.c.seq).limit(limit)
    if task_id is not None:
        query = query.where(events.c.task_id == task_id)
    if run_id is not None:
        own = sa.select(tasks.c.id).where(tasks.c.run_id == run_id)
        query = query.where(sa.or_(events.c.run_id == run_id, events.c.task_id.in_(own)))
    return [Event.model_validate(dict(row._mapping)) for row in connection.execute(query)]


def subjects_after(
    connection: sa.Connection, seq: int, limit: int = 5000
) -> list[tuple[int, str | None, str | None]]:
    """Number, task and run of the events above seq; an event of a run's task counts as its own."""
    run_id = sa.func.coalesce(events.c.run_id, tasks.c.run_id)
    query = (
        sa.select(events.c.seq, events.c.task_id, run_id)
        .outerjoin(tasks, tasks.c.id == events.c.task_id)
        .where(events.c.seq > seq)
        .order_by(events.c.seq)
        .limit(limit)
    )
    return [(number, task, run) for number, task, run in connection.execute(query)]


def last_seq(connection: sa.Connection) -> int:
    return connection.execute(sa.select(sa.func.max(events.c.seq))).scalar() or 0
