"""The append-only history that every live view is fed from."""

from datetime import UTC, datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from kapelle.domain.ids import read_kind
from kapelle.domain.task import Event, Record
from kapelle.store.database import notify_watches
from kapelle.store.statements import Statement
from kapelle.store.tables import events, positions, tasks

R = TypeVar("R", bound=Record)
_INSERT = Statement(events.insert())
# An event of a run's task is one of the run as well.
_run_of_task = sa.select(tasks.c.run_id).where(tasks.c.id == sa.bindparam("of_task"))
_INSERT_OF_TASK = Statement(
    events.insert().values(run_id=_run_of_task.scalar_subquery()).returning(events.c.run_id)
)


def append(
    connection: sa.Connection,
    kind: str,
    work_id: str | None = None,
    attempt_id: str | None = None,
    /,
    **data: Any,
) -> None:
    """Record what happened to a task or a run, and wake whoever watches for it or this kind."""
    is_run = work_id is not None and read_kind(work_id) == "run"
    task_id, run_id = (None, work_id) if is_run else (work_id, None)
    subject = {"kind": kind, "task_id": task_id, "attempt_id": attempt_id}
    values = {**subject, "at": datetime.now(UTC), "data": data}
    if task_id is not None:
        run_id = _INSERT_OF_TASK.scalar(connection, **values, of_task=task_id)
    else:
        _INSERT.write(connection, **values, run_id=run_id)
    notify_watches(connection, filter(None, (kind, task_id, run_id)))


def list_after(
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
        query = query.where(events.c.run_id == run_id)
    return [Event.model_validate(row) for row in connection.execute(query).mappings()]


CHECKED = "task.checked"


def find_last(connection: sa.Connection, task_id: str, kind: str, shape: type[R]) -> R | None:
    """What the last event of a kind tells, and when, unless an attempt was started since then."""
    kinds = (kind, "attempt.started")
    query = sa.select(events).where(events.c.task_id == task_id, events.c.kind.in_(kinds))
    found = connection.execute(query.order_by(events.c.seq.desc()).limit(1)).first()
    if found and found.kind == kind:
        told = {**found.data, "at": found.at}
    else:
        told = None
    if told:
        return shape.model_validate(told)
    return None


def find_merged_branch(connection: sa.Connection, work_id: str) -> str | None:
    """The branch that a task or a run was last merged into, if the history still tells."""
    kind = read_kind(work_id)
    query = sa.select(events.c.data).where(events.c.kind == f"{kind}.merged")
    query = query.where((events.c.task_id if kind == "task" else events.c.run_id) == work_id)
    data = connection.execute(query.order_by(events.c.seq.desc()).limit(1)).scalar()
    return data["base"] if data else None


def delete_oldest(connection: sa.Connection, before: datetime, limit: int) -> None:
    """Forget events from before a time, so many of the oldest at most."""
    oldest = sa.select(events.c.seq).order_by(events.c.seq).limit(limit).subquery()
    last = sa.select(sa.func.max(oldest.c.seq)).scalar_subquery()
    # By the date of each: where the clock was wrong for a while, they are not in order.
    connection.execute(events.delete().where(events.c.seq <= last, events.c.at < before))


def list_of_runs(
    connection: sa.Connection, seq: int, limit: int = 500
) -> tuple[list[tuple[str, Event]], int]:
    """The events of runs and of their tasks above seq, each with its run, and how far that is."""
    query = sa.select(events).where(events.c.seq > seq, events.c.run_id.is_not(None))
    rows = connection.execute(query.order_by(events.c.seq).limit(limit)).mappings()
    found = [(row["run_id"], Event.model_validate(row)) for row in rows]
    if len(found) == limit:
        reached = found[-1][1].seq
    else:
        reached = load_last_seq(connection)
    return found, max(reached, seq)


def move_reader(connection: sa.Connection, reader: str, seq: int | None = None) -> int:
    """How far a reader has come, from now on so far; a new one begins at the end."""
    query = sa.select(positions.c.seq).where(positions.c.reader == reader)
    known: int | None = connection.execute(query).scalar()
    if seq is not None:
        reached = seq
    elif known is None:
        reached = load_last_seq(connection)
    else:
        reached = known
    if known is None:
        connection.execute(positions.insert().values(reader=reader, seq=reached))
    elif known != reached:
        changed = positions.update().where(positions.c.reader == reader)
        connection.execute(changed.values(seq=reached))
    return reached


def forget_reader(connection: sa.Connection, reader: str) -> None:
    """Have a reader begin at the end the next time."""
    connection.execute(positions.delete().where(positions.c.reader == reader))


def load_last_seq(connection: sa.Connection) -> int:
    return connection.execute(sa.select(sa.func.max(events.c.seq))).scalar() or 0
