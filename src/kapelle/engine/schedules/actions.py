"""What a person may do to a schedule, each inside one transaction."""

from datetime import datetime, timedelta

from kapelle.domain.errors import Conflict
from kapelle.domain.schedule import OPEN, Outcome, ScheduleStatus
from kapelle.domain.states import TaskStatus
from kapelle.engine.schedules.changes import become, key_of, skip, started
from kapelle.engine.schedules.facts import situation
from kapelle.engine.schedules.rules import next_by_cron, trigger_of
from kapelle.store import schedules
from kapelle.store.database import Connection
from kapelle.store.schedules import Row

_INSTANT = timedelta(microseconds=1)


def pause(connection: Connection, schedule_id: str, now: datetime) -> None:
    schedule = _require_open(connection, schedule_id, "paused")
    if schedule["status"] == ScheduleStatus.PAUSED:
        raise Conflict(f"{schedule_id} is paused already.")
    _settle_all(connection, schedule, "the schedule was paused", now)
    become(connection, schedule, ScheduleStatus.PAUSED, "paused by a person", now)


def resume(connection: Connection, schedule_id: str, now: datetime) -> None:
    """Go on from now; what came while it was paused is not made up for."""
    schedule = _require_open(connection, schedule_id, "resumed")
    if schedule["status"] != ScheduleStatus.PAUSED:
        raise Conflict(f"{schedule_id} is not paused.")
    next_at: datetime | None = schedule["next_at"]
    status, reason = ScheduleStatus.ACTIVE, None
    match trigger_of(schedule):
        case "cron":
            next_at = next_by_cron(schedule, now)
        case "at":
            if next_at is None or next_at <= now:
                status, reason = ScheduleStatus.EXPIRED, "its time passed while it was paused"
        case "every":
            latest = schedules.latest_firing(connection, schedule_id)
            cancelled = latest is not None and latest["subject_status"] == TaskStatus.CANCELLED
            next_at = now if cancelled else next_at
        case "after":
            _pass_over(connection, schedule, now)
    schedules.update(connection, schedule_id, next_at=next_at)
    schedules.change(connection, schedule, status, reason, now)


def cancel(connection: Connection, schedule_id: str, with_work: bool, now: datetime) -> list[str]:
    """End a schedule; returns what is to be cancelled with it, also if it has ended already."""
    schedule = schedules.row(connection, schedule_id)
    going = schedules.in_flight(connection, [schedule_id]).get(schedule_id, [])
    if schedule["status"] not in OPEN and not (with_work and going):
        raise Conflict(f"{schedule_id} is {schedule['status']} already.")
    _settle_all(connection, schedule, "the schedule was cancelled", now)
    become(connection, schedule, ScheduleStatus.CANCELLED, "cancelled by a person", now)
    if not with_work:
        return []
    return schedules.in_flight(connection, [schedule_id]).get(schedule_id, [])


def run_now(connection: Connection, schedule_id: str, now: datetime) -> datetime:
    """Have something started outside the order of slots; returns the slot that stands for it."""
    schedule = _require_open(connection, schedule_id, "run")
    found = situation(connection, schedule_id, now)
    if found.going and not schedule["overlap"]:
        raise Conflict(
            f"{found.going} of {schedule_id} is still going.",
            hint="Wait until it has ended, or cancel it first.",
        )
    slot = now if found.last_slot is None else max(now, found.last_slot + _INSTANT)
    # Whole minutes belong to cron.
    slot = slot if slot.microsecond else slot + _INSTANT
    reason = "run by a person"
    schedules.record_firing(connection, schedule_id, slot, Outcome.STARTING, now, reason)
    if trigger_of(schedule) == "every":
        schedules.update(connection, schedule_id, next_at=None)
    return slot


def _require_open(connection: Connection, schedule_id: str, verb: str) -> Row:
    schedule = schedules.row(connection, schedule_id)
    if schedule["status"] not in OPEN:
        raise Conflict(
            f"{schedule_id} is {schedule['status']} and cannot be {verb}.",
            hint="`kapelle schedule create` makes a new one.",
        )
    return schedule


def _settle_all(connection: Connection, schedule: Row, reason: str, now: datetime) -> None:
    """Leave no slot open: each was started, even if that was not written down, or never is."""
    for firing in schedules.unsettled_firings(connection, schedule["id"]):
        key = key_of(schedule["id"], firing["slot"])
        subject = schedules.subject_of_key(connection, key)
        if firing["outcome"] == Outcome.STARTING and subject is not None:
            started(connection, schedule["id"], firing["slot"], subject, now)
        else:
            skip(connection, schedule, firing["slot"], reason)


def _pass_over(connection: Connection, schedule: Row, now: datetime) -> None:
    since, reason = schedule["created_at"], "the schedule was paused"
    for slot in schedules.to_follow(connection, schedule["id"], schedule["after"], since):
        schedules.record_firing(connection, schedule["id"], slot, Outcome.SKIPPED, now, reason)
