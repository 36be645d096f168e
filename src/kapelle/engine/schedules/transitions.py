"""Reads and changes of schedules and their firings around the rules, each in one transaction."""

from datetime import datetime

from kapelle.domain.errors import Conflict
from kapelle.domain.schedule import OPEN, Outcome, ScheduleStatus
from kapelle.domain.states import TaskStatus
from kapelle.engine.schedules import rules
from kapelle.engine.schedules.rules import ScheduleRow
from kapelle.store import events, schedules
from kapelle.store.database import Connection

_UNSETTLED = {Outcome.HELD, Outcome.STARTING}


def situation(
    connection: Connection, schedule_id: str, now: datetime, but: datetime | None = None
) -> rules.Situation:
    """All that decides about a schedule; but is a slot of its own that is being decided about."""
    schedule = schedules.row(connection, schedule_id)
    unsettled = schedules.unsettled_firings(connection, schedule_id)
    unsettled = [row for row in unsettled if row["slot"] != but]
    starting = sum(row["outcome"] == Outcome.STARTING for row in unsettled)
    leader = schedule["after"]
    return rules.Situation(
        schedule=schedule,
        now=now,
        in_flight=_in_flight(connection, schedule_id, bool(starting)),
        holding=len(unsettled) > starting,
        starting=starting,
        latest=schedules.latest_firing(connection, schedule_id),
        last_slot=schedules.last_slot(connection, schedule_id),
        leader=None if leader is None else _leader(connection, schedule, leader),
    )


def _leader(connection: Connection, schedule: ScheduleRow, leader_id: str) -> rules.Leader:
    to_follow: list[datetime] = []
    if rules.trigger_of(schedule) == "after":
        since = schedule["created_at"]
        to_follow = schedules.to_follow(connection, schedule["id"], leader_id, since)
    unsettled = bool(schedules.unsettled_firings(connection, leader_id))
    return rules.Leader(
        id=leader_id,
        is_open=schedules.row(connection, leader_id)["status"] in OPEN,
        in_flight=_in_flight(connection, leader_id, unsettled),
        failed=_failure(leader_id, schedules.latest_firing(connection, leader_id)),
        to_follow=tuple(to_follow),
    )


def _in_flight(connection: Connection, schedule_id: str, unsettled: bool) -> str | None:
    subjects = schedules.in_flight(connection, [schedule_id]).get(schedule_id, [])
    if subjects:
        return subjects[-1]
    if unsettled:
        return "the start of an earlier slot"
    return None


def _failure(leader_id: str, latest: ScheduleRow | None) -> str | None:
    """Why the last work of a schedule is nothing to build on."""
    if latest is None:
        return None
    if latest["outcome"] == Outcome.FAILED:
        return f"{leader_id} could not start its work: {latest['reason']}"
    if latest["subject_status"] == TaskStatus.FAILED:
        return f"{latest['subject']} of {leader_id} failed"
    if latest["subject_status"] == TaskStatus.CANCELLED:
        return f"{latest['subject']} of {leader_id} was cancelled"
    return None


def key_of(schedule_id: str, slot: datetime) -> str:
    """What lets a task or run know that it was started for this slot before."""
    return f"{schedule_id}/{slot.isoformat()}"


def is_due(connection: Connection, schedule_id: str, now: datetime) -> bool:
    """Whether anything is to be written down, which is asked far more often than it is so."""
    found = situation(connection, schedule_id, now)
    return rules.decide(found).changes(found.schedule)


def advance(connection: Connection, schedule_id: str, now: datetime) -> list[datetime]:
    """Write down what is due; returns the slots that are to be started or held back."""
    found = situation(connection, schedule_id, now)
    schedule = found.schedule
    decided = rules.decide(found)
    opened: list[datetime] = []
    for slot, outcome, reason in decided.firings:
        if schedules.record_firing(connection, schedule_id, slot, outcome, now, reason):
            _announce(connection, schedule, slot, outcome, reason=reason)
            opened += [slot] if outcome in _UNSETTLED else []
    if decided.next_at != schedule["next_at"]:
        schedules.update(connection, schedule_id, next_at=decided.next_at)
    if decided.status is not None:
        change_status(connection, schedule, *decided.status, now)
    return opened


def may_release(connection: Connection, schedule_id: str, slot: datetime, now: datetime) -> bool:
    """Whether what holds a slot back has ended."""
    return rules.release(situation(connection, schedule_id, now, but=slot))[0] is not Outcome.HELD


def release_slot(
    connection: Connection, schedule_id: str, slot: datetime, now: datetime
) -> Outcome:
    """Have a slot that is held back started or skipped, if what holds it back has ended."""
    found = situation(connection, schedule_id, now, but=slot)
    outcome, reason = rules.release(found)
    if outcome is Outcome.HELD:
        return outcome
    _settle(connection, found.schedule, slot, outcome, reason=reason)
    if outcome is Outcome.SKIPPED and _is_only(found.schedule, slot):
        change_status(connection, found.schedule, ScheduleStatus.FAILED, reason, now)
    return outcome


def started(
    connection: Connection, schedule_id: str, slot: datetime, subject: str, now: datetime
) -> None:
    """Write down what a slot started; that may have been the last one."""
    schedule = schedules.row(connection, schedule_id)
    count = schedule["started"] + 1
    schedules.update(connection, schedule_id, started=count)
    _settle(connection, schedule, slot, Outcome.STARTED, subject=subject)
    enough = schedule["max_runs"] is not None and count >= schedule["max_runs"]
    if enough or _is_only(schedule, slot):
        change_status(connection, schedule, ScheduleStatus.COMPLETED, None, now)


def not_started(
    connection: Connection, schedule_id: str, slot: datetime, reason: str, now: datetime
) -> None:
    """Write down why a slot could not start anything; a schedule that has further ones goes on."""
    schedule = schedules.row(connection, schedule_id)
    _settle(connection, schedule, slot, Outcome.FAILED, reason=reason)
    if _is_only(schedule, slot) or rules.trigger_of(schedule) == "every":
        told = f"it could not start: {reason}"
        change_status(connection, schedule, ScheduleStatus.FAILED, told, now)


def _is_only(schedule: ScheduleRow, slot: datetime) -> bool:
    """Whether no slot comes after this one, unless a person asks for it."""
    return bool(rules.trigger_of(schedule) == "at" and slot == schedule["at"])


def change_status(
    connection: Connection,
    schedule: ScheduleRow,
    status: ScheduleStatus,
    reason: str | None,
    now: datetime,
) -> None:
    """Change an open schedule's status; one that has ended meanwhile stays as it ended."""
    present = schedules.row(connection, schedule["id"])
    if present["status"] not in OPEN:
        return
    if status not in OPEN:
        for firing in schedules.unsettled_firings(connection, schedule["id"]):
            if firing["outcome"] == Outcome.HELD:
                told = {"reason": "the schedule has ended"}
                _settle(connection, schedule, firing["slot"], Outcome.SKIPPED, **told)
    schedules.change(connection, present, status, reason, now)


def _settle(
    connection: Connection,
    schedule: ScheduleRow,
    slot: datetime,
    outcome: Outcome,
    **told: str | None,
) -> None:
    """Write down what became of a slot that was open: told are its reason and its subject."""
    # A reason for which it was to start stays the reason of what it started.
    values = {name: value for name, value in told.items() if value is not None}
    schedules.update_firing(connection, schedule["id"], slot, outcome=outcome, **values)
    _announce(connection, schedule, slot, outcome, **told)


def _announce(
    connection: Connection,
    schedule: ScheduleRow,
    slot: datetime,
    outcome: Outcome,
    **told: str | None,
) -> None:
    """Add the end of a slot to the history; what is not settled yet has none."""
    if outcome not in _UNSETTLED:
        about = {"schedule_id": schedule["id"], "title": schedule["title"]}
        facts = {"slot": slot.isoformat(), "subject": None, "reason": None, **told}
        events.append(connection, f"firing.{outcome}", **about, **facts)


def pause(connection: Connection, schedule_id: str, now: datetime) -> None:
    schedule = _require_open(connection, schedule_id, "paused")
    if schedule["status"] == ScheduleStatus.PAUSED:
        raise Conflict(f"{schedule_id} is paused already.")
    _settle_all(connection, schedule, "the schedule was paused", now)
    change_status(connection, schedule, ScheduleStatus.PAUSED, "paused by a person", now)


def resume(connection: Connection, schedule_id: str, now: datetime) -> None:
    """Go on from now; what came while it was paused is not made up for."""
    schedule = _require_open(connection, schedule_id, "resumed")
    if schedule["status"] != ScheduleStatus.PAUSED:
        raise Conflict(f"{schedule_id} is not paused.")
    next_at: datetime | None = schedule["next_at"]
    status = ScheduleStatus.ACTIVE
    reason = None
    match rules.trigger_of(schedule):
        case "cron":
            next_at = rules.next_by_cron(schedule, now)
        case "at":
            if next_at is None or next_at <= now:
                status = ScheduleStatus.EXPIRED
                reason = "its time passed while it was paused"
        case "every":
            latest = schedules.latest_firing(connection, schedule_id)
            cancelled = latest is not None and latest["subject_status"] == TaskStatus.CANCELLED
            next_at = now if cancelled else next_at
        case "after":
            since = schedule["created_at"]
            skipped = "the schedule was paused"
            for slot in schedules.to_follow(connection, schedule_id, schedule["after"], since):
                what = (schedule_id, slot, Outcome.SKIPPED, now, skipped)
                schedules.record_firing(connection, *what)
    schedules.change(connection, schedule, status, reason, now, next_at=next_at)


def cancel(connection: Connection, schedule_id: str, with_work: bool, now: datetime) -> list[str]:
    """End a schedule; returns what is to be cancelled with it, also if it has ended already."""
    schedule = schedules.row(connection, schedule_id)
    in_flight = schedules.in_flight(connection, [schedule_id]).get(schedule_id, [])
    if schedule["status"] not in OPEN and not (with_work and in_flight):
        raise Conflict(f"{schedule_id} is {schedule['status']} already.")
    _settle_all(connection, schedule, "the schedule was cancelled", now)
    change_status(connection, schedule, ScheduleStatus.CANCELLED, "cancelled by a person", now)
    if not with_work:
        return []
    return schedules.in_flight(connection, [schedule_id]).get(schedule_id, [])


def run_now(connection: Connection, schedule_id: str, now: datetime) -> datetime:
    """Have something started outside the order of slots; returns the slot that stands for it."""
    schedule = _require_open(connection, schedule_id, "run")
    found = situation(connection, schedule_id, now)
    if found.in_flight and not schedule["overlap"]:
        raise Conflict(
            f"{found.in_flight} of {schedule_id} is still going.",
            hint="Wait until it has ended, or cancel it first.",
        )
    if found.last_slot is None:
        slot = now
    else:
        slot = max(now, found.last_slot + rules.INSTANT)
    # Whole minutes belong to cron.
    if slot.microsecond:
        slot = slot
    else:
        slot = slot + rules.INSTANT
    reason = "run by a person"
    schedules.record_firing(connection, schedule_id, slot, Outcome.STARTING, now, reason)
    if rules.trigger_of(schedule) == "every":
        schedules.update(connection, schedule_id, next_at=None)
    return slot


def _require_open(connection: Connection, schedule_id: str, verb: str) -> schedules.Row:
    schedule = schedules.row(connection, schedule_id)
    if schedule["status"] not in OPEN:
        raise Conflict(
            f"{schedule_id} is {schedule['status']} and cannot be {verb}.",
            hint="`kapelle schedule create` makes a new one.",
        )
    return schedule


def _settle_all(connection: Connection, schedule: ScheduleRow, reason: str, now: datetime) -> None:
    """Leave no slot open: each was started, even if that was not written down, or never is."""
    for firing in schedules.unsettled_firings(connection, schedule["id"]):
        key = key_of(schedule["id"], firing["slot"])
        subject = schedules.subject_of_key(connection, key)
        if firing["outcome"] == Outcome.STARTING and subject is not None:
            started(connection, schedule["id"], firing["slot"], subject, now)
        else:
            _settle(connection, schedule, firing["slot"], Outcome.SKIPPED, reason=reason)
