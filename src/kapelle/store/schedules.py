"""Schedules and their firings: one row for each slot, and what it started."""

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


def _is_going(subject: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Whether the task or run of this id has not ended."""
    of_kind = ((tasks, FINAL), (runs, RUN_FINAL))
    found = (sa.exists().where(own.c.id == subject, own.c.status.not_in(f)) for own, f in of_kind)
    return sa.or_(*found)


# A firing beside the task or run that it started.
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
            # What repeats when what it started last has ended, or when the clock went back.
            sa.and_(
                _ACTIVE,
                schedules.c.every_s.is_not(None),
                schedules.c.next_at.is_(None),
                ~_is_going(_last_subject),
            ),
            sa.and_(_ACTIVE, _micros > _latest_repetition),
            # What only comes after another schedule's work.
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
    """Move a schedule to a status and tell the history."""
    if status not in OPEN:
        values |= {"ended_at": now, "next_at": None}
    update(connection, schedule["id"], status=status, reason=reason, **values)
    facts = {"schedule_id": schedule["id"], "title": schedule["title"], "reason": reason}
    events.append(connection, f"schedule.{status}", **facts)


def get(connection: sa.Connection, text: str) -> Schedule:
    """A schedule by id or unique prefix."""
    return _shown(connection, [load_row(connection, resolve(connection, text))])[0]


def list_page(
    connection: sa.Connection, wanted: ScheduleFilter
) -> tuple[list[Schedule], str | None]:
    """Schedules, newest first, and the cursor of the next page, if there is one."""
    rows, cursor = _rows.list_page(connection, wanted, sa.select(schedules.c.id))
    return _shown(connection, rows), cursor


def list_needing_attention(connection: sa.Connection, now: datetime) -> list[str]:
    """The schedules that something may have to be done about, those whose slot is first first."""
    return _ATTENTION.scalars(connection, now=now, now_us=round(now.timestamp() * 1_000_000))


def find_next_moment(connection: sa.Connection) -> datetime | None:
    """When the next slot comes or the next schedule expires."""
    return min(filter(None, _NEXT.scalars(connection)), default=None)


def delete_ended(connection: sa.Connection, before: datetime, limit: int) -> None:
    """Forget schedules that ended before a time, but none that another comes after."""
    leaders = sa.select(schedules.c.after).where(schedules.c.after.is_not(None))
    leaders = leaders.where(schedules.c.status.in_(OPEN))
    ended = sa.select(schedules.c.id).where(schedules.c.ended_at < before)
    old = ended.where(schedules.c.id.not_in(leaders)).order_by(schedules.c.id).limit(limit)
    found = list(connection.execute(old).scalars())
    connection.execute(schedules.delete().where(schedules.c.id.in_(found)))


def filter_open(connection: sa.Connection, ids: Sequence[str]) -> set[str]:
    """Those of the schedules that have not ended."""
    query = sa.select(schedules.c.id).where(schedules.c.id.in_(ids), schedules.c.status.in_(OPEN))
    return set(connection.execute(query).scalars())


def group_in_flight(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    """By schedule, the tasks and runs that its firings started and that have not ended."""
    query = (
        sa.select(firings.c.schedule_id, firings.c.subject)
        .where(firings.c.schedule_id.in_(ids), firings.c.outcome == Outcome.STARTED)
        .where(_is_going(firings.c.subject))
        .order_by(firings.c.schedule_id, firings.c.slot)
    )
    return group((schedule_id, subject) for schedule_id, subject in connection.execute(query))


def _shown(connection: sa.Connection, rows: Sequence[Row]) -> list[Schedule]:
    going = group_in_flight(connection, [row["id"] for row in rows])
    shown = []
    for row in rows:
        # Of the shell the row keeps only the names of its parts, which tell nobody anything.
        spec = {name: value for name, value in row["spec"].items() if name != "shell"}
        about = {**row, "spec": spec, "in_flight": going.get(row["id"], [])}
        shown.append(Schedule.model_validate(about))
    return shown


# How many a schedule's history keeps.
KEPT = 1000

_subject_status = sa.func.coalesce(tasks.c.status, runs.c.status)
_subject_ended_at = sa.func.coalesce(tasks.c.ended_at, runs.c.ended_at, type_=tasks.c.ended_at.type)
# Each firing with what became of the task or run that it started.
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
    """Write down what becomes of a slot; False when that was done before."""
    if find_firing(connection, schedule_id, slot) is not None:
        return False
    values = {"schedule_id": schedule_id, "slot": slot, "outcome": outcome, "at": at}
    connection.execute(firings.insert(), {**values, "reason": reason})
    _trim_firings(connection, schedule_id)
    return True


def find_firing(connection: sa.Connection, schedule_id: str, slot: datetime) -> Row | None:
    query = _WITH_SUBJECT.where(firings.c.schedule_id == schedule_id, firings.c.slot == slot)
    return connection.execute(query).mappings().first()


def update_firing(
    connection: sa.Connection, schedule_id: str, slot: datetime, /, **values: Any
) -> None:
    query = firings.update().where(firings.c.schedule_id == schedule_id, firings.c.slot == slot)
    connection.execute(query.values(**values))


def list_unsettled_firings(connection: sa.Connection, schedule_id: str | None = None) -> list[Row]:
    """The firings that are held back or being started, oldest first."""
    query = sa.select(firings).where(firings.c.outcome.in_([Outcome.HELD, Outcome.STARTING]))
    if schedule_id is not None:
        query = query.where(firings.c.schedule_id == schedule_id)
    return list(connection.execute(query.order_by(firings.c.slot)).mappings())


def find_latest_firing(connection: sa.Connection, schedule_id: str) -> Row | None:
    """The newest firing that started something or could not."""
    tried = [Outcome.STARTED, Outcome.FAILED]
    query = _WITH_SUBJECT.where(
        firings.c.schedule_id == schedule_id, firings.c.outcome.in_(tried)
    ).order_by(firings.c.slot.desc())
    return connection.execute(query.limit(1)).mappings().first()


def find_last_slot(connection: sa.Connection, schedule_id: str) -> datetime | None:
    query = sa.select(sa.func.max(firings.c.slot)).where(firings.c.schedule_id == schedule_id)
    found: datetime | None = connection.execute(query).scalar()
    return found


def list_slots_to_follow(
    connection: sa.Connection, schedule_id: str, other: str, since: datetime
) -> list[datetime]:
    """Slots of another schedule whose work has succeeded since, and that this has no firing for."""
    own = firings.alias()
    followed = sa.exists().where(own.c.schedule_id == schedule_id, own.c.slot == firings.c.slot)
    query = (
        sa.select(firings.c.slot)
        .select_from(_with_work)
        .where(firings.c.schedule_id == other, firings.c.outcome == Outcome.STARTED)
        .where(_subject_status == TaskStatus.COMPLETED, _subject_ended_at >= since, ~followed)
        .order_by(_subject_ended_at, firings.c.slot)
    )
    return list(connection.execute(query).scalars())


def find_subject(connection: sa.Connection, key: str) -> str | None:
    """The task or run that was submitted with an idempotency key."""
    for table in (tasks, runs):
        query = sa.select(table.c.id).where(table.c.idempotency_key == key)
        if found := connection.execute(query).scalar():
            return str(found)
    return None


def list_firings(
    connection: sa.Connection, schedule_id: str, before: datetime | None, limit: int
) -> tuple[list[Firing], bool]:
    """A schedule's firings, newest first, and whether there are more."""
    query = _WITH_SUBJECT.where(firings.c.schedule_id == schedule_id)
    if before is not None:
        query = query.where(firings.c.slot < before)
    query = query.order_by(firings.c.slot.desc()).limit(limit + 1)
    found = [read_firing(row) for row in connection.execute(query).mappings()]
    return found[:limit], len(found) > limit


def read_firing(row: Row) -> Firing:
    return Firing.model_validate({**row})


def _trim_firings(connection: sa.Connection, schedule_id: str) -> None:
    """Forget the oldest firings, but none that something still depends on."""
    of_it = firings.c.schedule_id == schedule_id
    oldest = sa.select(firings.c.slot).where(of_it).order_by(firings.c.slot.desc())
    limit = connection.execute(oldest.offset(KEPT).limit(1)).scalar()
    if limit is None:
        return
    # As long as the other one's firing is known, this one says that it was followed.
    other = firings.alias()
    leader = sa.select(schedules.c.after).where(schedules.c.id == schedule_id).scalar_subquery()
    followed = sa.exists().where(other.c.schedule_id == leader, other.c.slot == firings.c.slot)
    settled = firings.c.outcome.not_in([Outcome.HELD, Outcome.STARTING])
    old = firings.delete().where(of_it, firings.c.slot <= limit, settled)
    connection.execute(old.where(~_is_going(firings.c.subject), ~followed))
