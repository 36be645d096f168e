"""The append-only history that every live view is fed from."""

from datetime import UTC, datetime

import sqlalchemy as sa

from kapelle.domain.task import Event
from kapelle.store.tables import events, tasks

Value = str | int | float | bool | None

_INSERT = events.insert()
# An event of a run's task is one of the run as well.
_run_of_event: sa.ColumnElement[str] = sa.func.coalesce(events.c.run_id, tasks.c.run_id)
_with_run = sa.select(events, _run_of_event.label("of_run")).outerjoin(
    tasks, tasks.c.id == events.c.task_id
)


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
    query = _with_run.where(events.c.seq > seq).order_by(events.c.seq).limit(limit)
    if task_id is not None:
        query = query.where(events.c.task_id == task_id)
    if run_id is not None:
        query = query.where(_run_of_event == run_id)
    return [_event(row) for row in connection.execute(query).mappings()]


def delete_oldest(connection: sa.Connection, before: datetime, limit: int) -> None:
    """Forget events from before a time, so many of the oldest at most."""
    oldest = sa.select(events.c.seq, events.c.at).order_by(events.c.seq).limit(limit)
    last = None
    for seq, at in connection.execute(oldest):
        if at >= before:
            break
        last = seq
    if last is not None:
        connection.execute(events.delete().where(events.c.seq <= last))


def of_runs(
    connection: sa.Connection, seq: int, limit: int = 500
) -> tuple[list[tuple[str, Event]], int]:
    """The events of runs and of their tasks above seq, each with its run, and how far that is."""
    query = _with_run.where(events.c.seq > seq, _run_of_event.is_not(None)).order_by(events.c.seq)
    rows = connection.execute(query.limit(limit)).mappings()
    found = [(row["of_run"], _event(row)) for row in rows]
    reached = found[-1][1].seq if len(found) == limit else last_seq(connection)
    return found, max(reached, seq)


def _event(row: sa.RowMapping) -> Event:
    return Event.model_validate({**row, "run_id": row["of_run"]})


def subjects_after(
    connection: sa.Connection, seq: int, limit: int = 5000
) -> list[tuple[int, str | None, str | None]]:
    """Number, task and run of the events above seq; an event of a run's task counts as its own."""
    query = (
        sa.select(events.c.seq, events.c.task_id, _run_of_event)
        .outerjoin(tasks, tasks.c.id == events.c.task_id)
        .where(events.c.seq > seq)
        .order_by(events.c.seq)
        .limit(limit)
    )
    return [(number, task, run) for number, task, run in connection.execute(query)]


def last_seq(connection: sa.Connection) -> int:
    return connection.execute(sa.select(sa.func.max(events.c.seq))).scalar() or 0
