"""The append-only history of events, from which all live views are updated."""

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
# An event of a run's task is an event of the run too.
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
    """Store an event of a task or run; wake the watches for the work and for this kind."""
    task_id = work_id
    run_id = None
    if work_id is not None and read_kind(work_id) == "run":
        task_id = None
        run_id = work_id
    values = {
        "kind": kind,
        "task_id": task_id,
        "attempt_id": attempt_id,
        "at": datetime.now(UTC),
        "data": data,
    }
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
    """Return the events after a number, the oldest first; those of a run include its tasks'."""
    query = sa.select(events).where(events.c.seq > seq).order_by(events.c.seq).limit(limit)
    if task_id is not None:
        query = query.where(events.c.task_id == task_id)
    if run_id is not None:
        query = query.where(events.c.run_id == run_id)
    return [Event.model_validate(row) for row in connection.execute(query).mappings()]


CHECKED = "task.checked"


def find_last(connection: sa.Connection, task_id: str, kind: str, shape: type[R]) -> R | None:
    """Return the data and time of the last event of a kind.

    None means that there is no such event, or that an attempt was started after it.
    """
    kinds = (kind, "attempt.started")
    query = sa.select(events).where(events.c.task_id == task_id, events.c.kind.in_(kinds))
    event = connection.execute(query.order_by(events.c.seq.desc()).limit(1)).first()
    if event is None or event.kind != kind:
        return None
    return shape.model_validate({**event.data, "at": event.at})


def find_merged_branch(connection: sa.Connection, work_id: str) -> str | None:
    """Return the branch of the last merge of a task or run, if the history still has it."""
    kind = read_kind(work_id)
    if kind == "task":
        column = events.c.task_id
    else:
        column = events.c.run_id
    query = sa.select(events.c.data).where(events.c.kind == f"{kind}.merged", column == work_id)
    data = connection.execute(query.order_by(events.c.seq.desc()).limit(1)).scalar()
    if not data:
        return None
    branch: str = data["base"]
    return branch


def delete_oldest(connection: sa.Connection, before: datetime, limit: int) -> None:
    """Delete events from before a time, at most `limit` of the oldest."""
    oldest = sa.select(events.c.seq).order_by(events.c.seq).limit(limit).subquery()
    last = sa.select(sa.func.max(oldest.c.seq)).scalar_subquery()
    # The time of each event counts: while the clock was wrong, they were not stored in order.
    connection.execute(events.delete().where(events.c.seq <= last, events.c.at < before))


def list_of_runs(
    connection: sa.Connection, seq: int, limit: int = 500
) -> tuple[list[tuple[str, Event]], int]:
    """Return the events of runs and their tasks after a number, each with its run.

    The second value is the number up to which the history was read.
    """
    query = sa.select(events).where(events.c.seq > seq, events.c.run_id.is_not(None))
    rows = connection.execute(query.order_by(events.c.seq).limit(limit)).mappings()
    events_of_runs = [(row["run_id"], Event.model_validate(row)) for row in rows]
    if len(events_of_runs) == limit:
        last_event = events_of_runs[-1][1]
        return events_of_runs, max(last_event.seq, seq)
    return events_of_runs, max(load_last_seq(connection), seq)


def move_reader(connection: sa.Connection, reader: str, seq: int | None = None) -> int:
    """Store the position of a reader in the history, if one is given, and return it.

    A new reader starts at the end of the history.
    """
    query = sa.select(positions.c.seq).where(positions.c.reader == reader)
    position: int | None = connection.execute(query).scalar()
    if position is None:
        if seq is None:
            seq = load_last_seq(connection)
        connection.execute(positions.insert().values(reader=reader, seq=seq))
        return seq
    if seq is None or seq == position:
        return position
    change = positions.update().where(positions.c.reader == reader)
    connection.execute(change.values(seq=seq))
    return seq


def forget_reader(connection: sa.Connection, reader: str) -> None:
    """Forget the position of a reader, so that it starts at the end the next time."""
    connection.execute(positions.delete().where(positions.c.reader == reader))


def load_last_seq(connection: sa.Connection) -> int:
    """Return the number of the last event; 0 without events."""
    return connection.execute(sa.select(sa.func.max(events.c.seq))).scalar() or 0
