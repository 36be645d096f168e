"""Schedules and their firings: one row for each slot, with the work that it started."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.schedule import OPEN, Firing, Outcome, Schedule, ScheduleFilter, ScheduleStatus
from kapelle.domain.states import FINAL, RUN_FINAL, TaskStatus
from kapelle.store import events, projects
from kapelle.store.query import Row as Row
from kapelle.store.query import group
from kapelle.store.rows import Rows
from kapelle.store.statements import Statement
from kapelle.store.tables import firings, runs, schedules, tasks

_ACTIVE = schedules.c.status == ScheduleStatus.ACTIVE
_last_subject = (
    sa.select(firings.c.subject)
    .where(firings.c.schedule_id == schedules.c.id)
    .order_by(firings.c.slot.desc())
    .limit(1)
    .correlate(schedules)
    .scalar_subquery()
)


def _is_open(subject: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that the task or run of an id has not ended."""
    is_open_task = sa.exists().where(tasks.c.id == subject, tasks.c.status.not_in(FINAL))
    is_open_run = sa.exists().where(runs.c.id == subject, runs.c.status.not_in(RUN_FINAL))
    return sa.or_(is_open_task, is_open_run)


# Firings joined with the tasks and runs that they started.
_with_work = firings.outerjoin(tasks, tasks.c.id == firings.c.subject).outerjoin(
    runs, runs.c.id == firings.c.subject
)
_micros = sa.type_coerce(schedules.c.next_at, sa.BigInteger)
_latest_repetition = sa.bindparam("now_us", type_=sa.BigInteger) + schedules.c.every_s * 1_000_000
_ATTENTION = Statement(
    sa.select(schedules.c.id)
    .where(
        sa.or_(
            sa.and_(_ACTIVE, schedules.c.next_at <= sa.bindparam("now")),
            sa.and_(schedules.c.status.in_(OPEN), schedules.c.expires_at <= sa.bindparam("now")),
            # Schedules that repeat after the end of their last work.
            sa.and_(
                _ACTIVE,
                schedules.c.every_s.is_not(None),
                schedules.c.next_at.is_(None),
                ~_is_open(_last_subject),
            ),
            # The clock was set back, so that a repetition is too far in the future.
            sa.and_(_ACTIVE, _micros > _latest_repetition),
            # Schedules that only follow the work of another one.
            sa.and_(_ACTIVE, *(schedules.c[name].is_(None) for name in ("cron", "at", "every_s"))),
        )
    )
    .order_by(schedules.c.next_at, schedules.c.id)
)
_next = (sa.func.min(sa.case((_ACTIVE, schedules.c.next_at))), sa.func.min(schedules.c.expires_at))
_NEXT = Statement(sa.union_all(*(sa.select(m).where(schedules.c.status.in_(OPEN)) for m in _next)))

_rows = Rows(schedules, "schedule")


def load_row(connection: sa.Connection, schedule_id: str) -> Row:
    """Return the stored row of a schedule; raise NotFound if there is none."""
    return _rows.load(connection, schedule_id)


def update(connection: sa.Connection, schedule_id: str, /, **values: Any) -> None:
    """Change columns of a schedule."""
    _rows.update(connection, schedule_id, **values)


def resolve(connection: sa.Connection, text: str) -> str:
    """Return the whole id of a schedule for the part that a person typed, or raise NotFound."""
    return _rows.resolve(connection, text)


def find_by_key(connection: sa.Connection, key: str) -> Row | None:
    """Return the row that was stored with an idempotency key, if there is one."""
    return _rows.find_by_key(connection, key)


def insert(connection: sa.Connection, values: dict[str, Any]) -> None:
    """Store a new schedule."""
    projects.join(connection, values)
    connection.execute(schedules.insert(), values)


def change(
    connection: sa.Connection,
    schedule: Row,
    status: ScheduleStatus,
    reason: str | None,
    now: datetime,
    /,
    **values: Any,
) -> None:
    """Change the status of a schedule and store an event."""
    if status not in OPEN:
        values |= {"ended_at": now, "next_at": None}
    update(connection, schedule["id"], status=status, reason=reason, **values)
    data = {"schedule_id": schedule["id"], "title": schedule["title"], "reason": reason}
    events.append(connection, f"schedule.{status}", **data)


def get(connection: sa.Connection, text: str) -> Schedule:
    """Return a schedule by its whole id or a unique part of it; raise NotFound."""
    return _build_schedules(connection, [load_row(connection, resolve(connection, text))])[0]


def list_page(
    connection: sa.Connection, filter_: ScheduleFilter
) -> tuple[list[Schedule], str | None]:
    """Return one page of schedules, the newest first, and the cursor of the next page."""
    rows, cursor = _rows.list_page(connection, filter_, sa.select(schedules.c.id))
    return _build_schedules(connection, rows), cursor


def list_needing_attention(connection: sa.Connection, now: datetime) -> list[str]:
    """Return the schedules that may have to act now, the earliest slot first."""
    return _ATTENTION.scalars(connection, now=now, now_us=round(now.timestamp() * 1_000_000))


def find_next_moment(connection: sa.Connection) -> datetime | None:
    """Return the time of the next slot or of the next expiry, if there is one."""
    return min(filter(None, _NEXT.scalars(connection)), default=None)


def delete_ended(connection: sa.Connection, before: datetime, limit: int) -> None:
    """Delete schedules that ended before a time, except those that an open schedule follows."""
    leaders = sa.select(schedules.c.after).where(schedules.c.after.is_not(None))
    leaders = leaders.where(schedules.c.status.in_(OPEN))
    query = sa.select(schedules.c.id).where(schedules.c.ended_at < before)
    query = query.where(schedules.c.id.not_in(leaders)).order_by(schedules.c.id).limit(limit)
    ids = list(connection.execute(query).scalars())
    connection.execute(schedules.delete().where(schedules.c.id.in_(ids)))


def filter_open(connection: sa.Connection, ids: Sequence[str]) -> set[str]:
    """Return which of the schedules have not ended."""
    query = sa.select(schedules.c.id).where(schedules.c.id.in_(ids), schedules.c.status.in_(OPEN))
    return set(connection.execute(query).scalars())


def group_in_flight(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the open tasks and runs that the firings of each schedule started."""
    query = (
        sa.select(firings.c.schedule_id, firings.c.subject)
        .where(firings.c.schedule_id.in_(ids), firings.c.outcome == Outcome.STARTED)
        .where(_is_open(firings.c.subject))
        .order_by(firings.c.schedule_id, firings.c.slot)
    )
    return group((row.schedule_id, row.subject) for row in connection.execute(query))


def _build_schedules(connection: sa.Connection, rows: Sequence[Row]) -> list[Schedule]:
    in_flight = group_in_flight(connection, [row["id"] for row in rows])
    result = []
    for row in rows:
        # The row of the shell has only references to its variables, which are useless to people.
        spec = {name: value for name, value in row["spec"].items() if name != "shell"}
        values = {**row, "spec": spec, "in_flight": in_flight.get(row["id"], [])}
        result.append(Schedule.model_validate(values))
    return result


# The number of firings in the history of a schedule.
KEPT = 1000

_subject_status = sa.func.coalesce(tasks.c.status, runs.c.status)
_subject_ended_at = sa.func.coalesce(tasks.c.ended_at, runs.c.ended_at, type_=tasks.c.ended_at.type)
# Each firing with the result of the task or run that it started.
_WITH_SUBJECT = sa.select(
    firings,
    _subject_status.label("subject_status"),
    _subject_ended_at.label("subject_ended_at"),
    sa.func.coalesce(tasks.c.reason, runs.c.reason).label("subject_reason"),
).select_from(_with_work)


def record_firing(
    connection: sa.Connection,
    schedule_id: str,
    slot: datetime,
    outcome: Outcome,
    at: datetime,
    reason: str | None = None,
) -> bool:
    """Store the firing of a slot; return False if the slot already has one."""
    if find_firing(connection, schedule_id, slot) is not None:
        return False
    values = {"schedule_id": schedule_id, "slot": slot, "outcome": outcome, "at": at}
    connection.execute(firings.insert(), {**values, "reason": reason})
    _trim_firings(connection, schedule_id)
    return True


def find_firing(connection: sa.Connection, schedule_id: str, slot: datetime) -> Row | None:
    """Return the firing of a slot with the result of its work, if there is one."""
    query = _WITH_SUBJECT.where(firings.c.schedule_id == schedule_id, firings.c.slot == slot)
    return connection.execute(query).mappings().first()


def update_firing(
    connection: sa.Connection, schedule_id: str, slot: datetime, /, **values: Any
) -> None:
    """Change columns of a firing."""
    change = firings.update().where(firings.c.schedule_id == schedule_id, firings.c.slot == slot)
    connection.execute(change.values(**values))


def list_unsettled_firings(connection: sa.Connection, schedule_id: str | None = None) -> list[Row]:
    """Return the firings that are held back or being started, the oldest first."""
    query = sa.select(firings).where(firings.c.outcome.in_([Outcome.HELD, Outcome.STARTING]))
    if schedule_id is not None:
        query = query.where(firings.c.schedule_id == schedule_id)
    return list(connection.execute(query.order_by(firings.c.slot)).mappings())


def find_latest_firing(connection: sa.Connection, schedule_id: str) -> Row | None:
    """Return the newest firing that started work or failed to start it."""
    outcomes = [Outcome.STARTED, Outcome.FAILED]
    query = _WITH_SUBJECT.where(
        firings.c.schedule_id == schedule_id, firings.c.outcome.in_(outcomes)
    ).order_by(firings.c.slot.desc())
    return connection.execute(query.limit(1)).mappings().first()


def find_last_slot(connection: sa.Connection, schedule_id: str) -> datetime | None:
    """Return the last slot of a schedule that has a firing."""
    query = sa.select(sa.func.max(firings.c.slot)).where(firings.c.schedule_id == schedule_id)
    slot: datetime | None = connection.execute(query).scalar()
    return slot


def list_slots_to_follow(
    connection: sa.Connection, schedule_id: str, other: str, since: datetime
) -> list[datetime]:
    """Return slots of another schedule whose work succeeded since a time and that need a firing."""
    own = firings.alias()
    is_followed = sa.exists().where(own.c.schedule_id == schedule_id, own.c.slot == firings.c.slot)
    query = (
        sa.select(firings.c.slot)
        .select_from(_with_work)
        .where(firings.c.schedule_id == other, firings.c.outcome == Outcome.STARTED)
        .where(_subject_status == TaskStatus.COMPLETED, _subject_ended_at >= since, ~is_followed)
        .order_by(_subject_ended_at, firings.c.slot)
    )
    return list(connection.execute(query).scalars())


def find_subject(connection: sa.Connection, key: str) -> str | None:
    """Return the id of the task or run that was submitted with an idempotency key."""
    for table in (tasks, runs):
        query = sa.select(table.c.id).where(table.c.idempotency_key == key)
        work_id = connection.execute(query).scalar()
        if work_id:
            return str(work_id)
    return None


def list_firings(
    connection: sa.Connection, schedule_id: str, before: datetime | None, limit: int
) -> tuple[list[Firing], bool]:
    """Return firings of a schedule, the newest first, and whether there are more."""
    query = _WITH_SUBJECT.where(firings.c.schedule_id == schedule_id)
    if before is not None:
        query = query.where(firings.c.slot < before)
    query = query.order_by(firings.c.slot.desc()).limit(limit + 1)
    page = [read_firing(row) for row in connection.execute(query).mappings()]
    return page[:limit], len(page) > limit


def read_firing(row: Row) -> Firing:
    """Return the firing of a row."""
    return Firing.model_validate({**row})


def _trim_firings(connection: sa.Connection, schedule_id: str) -> None:
    """Delete the oldest firings of a schedule, except those that are still needed."""
    is_own = firings.c.schedule_id == schedule_id
    slots = sa.select(firings.c.slot).where(is_own).order_by(firings.c.slot.desc())
    newest_to_delete = connection.execute(slots.offset(KEPT).limit(1)).scalar()
    if newest_to_delete is None:
        return
    # A firing shows that the slot of the other schedule was followed, as long as that one exists.
    other = firings.alias()
    leader = sa.select(schedules.c.after).where(schedules.c.id == schedule_id).scalar_subquery()
    is_needed = sa.exists().where(other.c.schedule_id == leader, other.c.slot == firings.c.slot)
    is_final = firings.c.outcome.not_in([Outcome.HELD, Outcome.STARTING])
    deletion = firings.delete().where(is_own, firings.c.slot <= newest_to_delete, is_final)
    connection.execute(deletion.where(~_is_open(firings.c.subject), ~is_needed))
