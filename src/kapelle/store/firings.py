"""Queries about firings: one row for each slot of a schedule, and what it started."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.schedule import Firing, Outcome
from kapelle.domain.states import FINAL, RUN_FINAL, TaskStatus
from kapelle.store.tables import firings, runs, schedules, tasks

Row = sa.RowMapping

# How many a schedule's history keeps.
KEPT = 1000

_status = sa.func.coalesce(tasks.c.status, runs.c.status)
_ended_at = sa.func.coalesce(tasks.c.ended_at, runs.c.ended_at, type_=tasks.c.ended_at.type)
# Each firing with what became of the task or run that it started.
_WITH_SUBJECT = (
    sa.select(
        firings,
        _status.label("subject_status"),
        _ended_at.label("subject_ended_at"),
        sa.func.coalesce(tasks.c.reason, runs.c.reason).label("subject_reason"),
    )
    .outerjoin(tasks, tasks.c.id == firings.c.subject)
    .outerjoin(runs, runs.c.id == firings.c.subject)
)


def record(
    connection: sa.Connection,
    schedule_id: str,
    slot: datetime,
    outcome: Outcome,
    at: datetime,
    reason: str | None = None,
) -> bool:
    """Write down what becomes of a slot; False when that was done before."""
    if get(connection, schedule_id, slot) is not None:
        return False
    values = {"schedule_id": schedule_id, "slot": slot, "outcome": outcome, "at": at}
    connection.execute(firings.insert(), {**values, "reason": reason})
    _trim(connection, schedule_id)
    return True


def get(connection: sa.Connection, schedule_id: str, slot: datetime) -> Row | None:
    query = _WITH_SUBJECT.where(firings.c.schedule_id == schedule_id, firings.c.slot == slot)
    return connection.execute(query).mappings().first()


def update(connection: sa.Connection, schedule_id: str, slot: datetime, /, **values: Any) -> None:
    query = firings.update().where(firings.c.schedule_id == schedule_id, firings.c.slot == slot)
    connection.execute(query.values(**values))


def unsettled(connection: sa.Connection, schedule_id: str | None = None) -> list[Row]:
    """The firings that are held back or being started, oldest first."""
    query = sa.select(firings).where(firings.c.outcome.in_([Outcome.HELD, Outcome.STARTING]))
    if schedule_id is not None:
        query = query.where(firings.c.schedule_id == schedule_id)
    return list(connection.execute(query.order_by(firings.c.slot)).mappings())


def latest(connection: sa.Connection, schedule_id: str) -> Row | None:
    """The newest firing that started something or could not."""
    tried = [Outcome.STARTED, Outcome.FAILED]
    query = _WITH_SUBJECT.where(
        firings.c.schedule_id == schedule_id, firings.c.outcome.in_(tried)
    ).order_by(firings.c.slot.desc())
    return connection.execute(query.limit(1)).mappings().first()


def last_slot(connection: sa.Connection, schedule_id: str) -> datetime | None:
    query = sa.select(firings.c.slot).where(firings.c.schedule_id == schedule_id)
    found: datetime | None = connection.execute(
        query.order_by(firings.c.slot.desc()).limit(1)
    ).scalar()
    return found


def to_follow(
    connection: sa.Connection, schedule_id: str, other: str, since: datetime
) -> list[datetime]:
    """Slots of another schedule whose work has succeeded since, and that this has no firing for."""
    own = firings.alias()
    followed = sa.select(sa.literal(1)).where(
        own.c.schedule_id == schedule_id, own.c.slot == firings.c.slot
    )
    query = (
        sa.select(firings.c.slot)
        .outerjoin(tasks, tasks.c.id == firings.c.subject)
        .outerjoin(runs, runs.c.id == firings.c.subject)
        .where(firings.c.schedule_id == other, firings.c.outcome == Outcome.STARTED)
        .where(_status == TaskStatus.COMPLETED, _ended_at >= since, ~followed.exists())
        .order_by(_ended_at, firings.c.slot)
    )
    return list(connection.execute(query).scalars())


def subject_of_key(connection: sa.Connection, key: str) -> str | None:
    """The task or run that was submitted with an idempotency key."""
    for table in (tasks, runs):
        query = sa.select(table.c.id).where(table.c.idempotency_key == key)
        found: str | None = connection.execute(query).scalar()
        if found is not None:
            return found
    return None


def page(
    connection: sa.Connection, schedule_id: str, *, before: datetime | None = None, limit: int = 50
) -> tuple[list[Firing], bool]:
    """A schedule's firings, newest first, and whether there are more."""
    query = _WITH_SUBJECT.where(firings.c.schedule_id == schedule_id)
    if before is not None:
        query = query.where(firings.c.slot < before)
    query = query.order_by(firings.c.slot.desc()).limit(limit + 1)
    found = [as_firing(row) for row in connection.execute(query).mappings()]
    return found[:limit], len(found) > limit


def as_firing(row: Row) -> Firing:
    return Firing.model_validate({name: row[name] for name in Firing.model_fields})


def _trim(connection: sa.Connection, schedule_id: str) -> None:
    """Forget the oldest firings, but none that something still depends on."""
    of_it = firings.c.schedule_id == schedule_id
    oldest = sa.select(firings.c.slot).where(of_it).order_by(firings.c.slot.desc())
    limit = connection.execute(oldest.offset(KEPT).limit(1)).scalar()
    if limit is None:
        return
    one = sa.select(sa.literal(1))
    going = [
        one.where(table.c.id == firings.c.subject, table.c.status.not_in(final)).exists()
        for table, final in ((tasks, FINAL), (runs, RUN_FINAL))
    ]
    # As long as the other one's firing is known, this one says that it was followed.
    other = firings.alias()
    leader = sa.select(schedules.c.after).where(schedules.c.id == schedule_id).scalar_subquery()
    followed = one.where(other.c.schedule_id == leader, other.c.slot == firings.c.slot).exists()
    settled = firings.c.outcome.not_in([Outcome.HELD, Outcome.STARTING])
    old = firings.delete().where(of_it, firings.c.slot <= limit, settled)
    connection.execute(old.where(*(~wanted for wanted in (*going, followed))))
