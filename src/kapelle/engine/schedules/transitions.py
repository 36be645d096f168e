"""Reads and changes of schedules and their firings, each in one transaction."""

from datetime import datetime

from kapelle.domain.errors import Conflict
from kapelle.domain.schedule import OPEN, Outcome, ScheduleStatus
from kapelle.domain.states import TaskStatus
from kapelle.engine.schedules import rules
from kapelle.engine.schedules.rules import ScheduleRow
from kapelle.store import events, schedules
from kapelle.store.database import Connection

_UNSETTLED = {Outcome.HELD, Outcome.STARTING}


def read_situation(
    connection: Connection, schedule_id: str, now: datetime, but: datetime | None = None
) -> rules.Situation:
    """Read everything that decides about a schedule.

    but is a slot of this schedule that is being decided about, and is left out.
    """
    schedule = schedules.load_row(connection, schedule_id)
    open_firings = schedules.list_unsettled_firings(connection, schedule_id)
    open_firings = [row for row in open_firings if row["slot"] != but]
    starting = sum(row["outcome"] == Outcome.STARTING for row in open_firings)
    leader = schedule["after"]
    return rules.Situation(
        schedule=schedule,
        now=now,
        in_flight=_in_flight(connection, schedule_id, bool(starting)),
        has_held_slot=len(open_firings) > starting,
        starting=starting,
        latest=schedules.find_latest_firing(connection, schedule_id),
        last_slot=schedules.find_last_slot(connection, schedule_id),
        leader=None if leader is None else _leader(connection, schedule, leader),
    )


def _leader(connection: Connection, schedule: ScheduleRow, leader_id: str) -> rules.Leader:
    to_follow: list[datetime] = []
    if rules.trigger_of(schedule) == "after":
        since = schedule["created_at"]
        to_follow = schedules.list_slots_to_follow(connection, schedule["id"], leader_id, since)
    has_open_firings = bool(schedules.list_unsettled_firings(connection, leader_id))
    return rules.Leader(
        id=leader_id,
        is_open=schedules.load_row(connection, leader_id)["status"] in OPEN,
        in_flight=_in_flight(connection, leader_id, has_open_firings),
        failure=_failure(leader_id, schedules.find_latest_firing(connection, leader_id)),
        to_follow=tuple(to_follow),
    )


def _in_flight(connection: Connection, schedule_id: str, has_open_firings: bool) -> str | None:
    subjects = schedules.group_in_flight(connection, [schedule_id]).get(schedule_id, [])
    if subjects:
        return subjects[-1]
    if has_open_firings:
        return "the start of an earlier slot"
    return None


def _failure(leader_id: str, latest: ScheduleRow | None) -> str | None:
    """Return why the last work of a schedule did not succeed; None if it did."""
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
    """Return the idempotency key of the task or run that a slot starts."""
    return f"{schedule_id}/{slot.isoformat()}"


def is_due(connection: Connection, schedule_id: str, now: datetime) -> bool:
    """Return whether a schedule has to be written; a cheap check before advance()."""
    situation = read_situation(connection, schedule_id, now)
    return rules.decide(situation).changes(situation.schedule)


def advance(connection: Connection, schedule_id: str, now: datetime) -> list[datetime]:
    """Store what is due; return the slots to start or to hold back."""
    situation = read_situation(connection, schedule_id, now)
    schedule = situation.schedule
    decision = rules.decide(situation)
    open_slots: list[datetime] = []
    for slot, outcome, reason in decision.firings:
        if schedules.record_firing(connection, schedule_id, slot, outcome, now, reason):
            _announce(connection, schedule, slot, outcome, reason=reason)
            if outcome in _UNSETTLED:
                open_slots.append(slot)
    if decision.next_at != schedule["next_at"]:
        schedules.update(connection, schedule_id, next_at=decision.next_at)
    if decision.status is not None:
        change_status(connection, schedule, *decision.status, now)
    return open_slots


def may_release(connection: Connection, schedule_id: str, slot: datetime, now: datetime) -> bool:
    """Return whether a held slot can be started or skipped now."""
    return (
        rules.decide_held_slot(read_situation(connection, schedule_id, now, but=slot))[0]
        is not Outcome.HELD
    )


def release_slot(
    connection: Connection, schedule_id: str, slot: datetime, now: datetime
) -> Outcome:
    """Start or skip a held slot, if the reason for holding it has ended."""
    situation = read_situation(connection, schedule_id, now, but=slot)
    outcome, reason = rules.decide_held_slot(situation)
    if outcome is Outcome.HELD:
        return outcome
    _settle(connection, situation.schedule, slot, outcome, reason=reason)
    if outcome is Outcome.SKIPPED and _is_only(situation.schedule, slot):
        change_status(connection, situation.schedule, ScheduleStatus.FAILED, reason, now)
    return outcome


def record_start(
    connection: Connection, schedule_id: str, slot: datetime, subject: str, now: datetime
) -> None:
    """Store the work that a slot started; the schedule may be complete by that."""
    schedule = schedules.load_row(connection, schedule_id)
    count = schedule["started"] + 1
    schedules.update(connection, schedule_id, started=count)
    _settle(connection, schedule, slot, Outcome.STARTED, subject=subject)
    enough = schedule["max_runs"] is not None and count >= schedule["max_runs"]
    if enough or _is_only(schedule, slot):
        change_status(connection, schedule, ScheduleStatus.COMPLETED, None, now)


def record_failed_start(
    connection: Connection, schedule_id: str, slot: datetime, reason: str, now: datetime
) -> None:
    """Store why a slot could not start; the schedule goes on if it has further slots."""
    schedule = schedules.load_row(connection, schedule_id)
    _settle(connection, schedule, slot, Outcome.FAILED, reason=reason)
    if _is_only(schedule, slot) or rules.trigger_of(schedule) == "every":
        problem = f"it could not start: {reason}"
        change_status(connection, schedule, ScheduleStatus.FAILED, problem, now)


def _is_only(schedule: ScheduleRow, slot: datetime) -> bool:
    """Return whether no slot follows this one, unless a person asks for one."""
    return bool(rules.trigger_of(schedule) == "at" and slot == schedule["at"])


def change_status(
    connection: Connection,
    schedule: ScheduleRow,
    status: ScheduleStatus,
    reason: str | None,
    now: datetime,
) -> None:
    """Change the status of an open schedule; do nothing if it has ended meanwhile."""
    present = schedules.load_row(connection, schedule["id"])
    if present["status"] not in OPEN:
        return
    if status not in OPEN:
        for firing in schedules.list_unsettled_firings(connection, schedule["id"]):
            if firing["outcome"] == Outcome.HELD:
                facts = {"reason": "the schedule has ended"}
                _settle(connection, schedule, firing["slot"], Outcome.SKIPPED, **facts)
    schedules.change(connection, present, status, reason, now)


def _settle(
    connection: Connection,
    schedule: ScheduleRow,
    slot: datetime,
    outcome: Outcome,
    **facts: str | None,
) -> None:
    """Store the outcome of an open slot; facts are its reason and its subject."""
    # None keeps the stored value: the reason of the start remains the reason of the work.
    values = {name: value for name, value in facts.items() if value is not None}
    schedules.update_firing(connection, schedule["id"], slot, outcome=outcome, **values)
    _announce(connection, schedule, slot, outcome, **facts)


def _announce(
    connection: Connection,
    schedule: ScheduleRow,
    slot: datetime,
    outcome: Outcome,
    **details: str | None,
) -> None:
    """Record the end of a slot in the history; an open slot has none."""
    if outcome not in _UNSETTLED:
        about = {"schedule_id": schedule["id"], "title": schedule["title"]}
        facts = {"slot": slot.isoformat(), "subject": None, "reason": None, **details}
        events.append(connection, f"firing.{outcome}", **about, **facts)


def pause(connection: Connection, schedule_id: str, now: datetime) -> None:
    """Pause an open schedule. Raises Conflict."""
    schedule = _require_open(connection, schedule_id, "paused")
    if schedule["status"] == ScheduleStatus.PAUSED:
        raise Conflict(f"{schedule_id} is paused already.")
    _settle_all(connection, schedule, "the schedule was paused", now)
    change_status(connection, schedule, ScheduleStatus.PAUSED, "paused by a person", now)


def resume(connection: Connection, schedule_id: str, now: datetime) -> None:
    """Resume a paused schedule from now on; slots during the pause are not made up for."""
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
            latest = schedules.find_latest_firing(connection, schedule_id)
            is_cancelled = latest is not None and latest["subject_status"] == TaskStatus.CANCELLED
            next_at = now if is_cancelled else next_at
        case "after":
            since = schedule["created_at"]
            reason_to_skip = "the schedule was paused"
            for slot in schedules.list_slots_to_follow(
                connection, schedule_id, schedule["after"], since
            ):
                what = (schedule_id, slot, Outcome.SKIPPED, now, reason_to_skip)
                schedules.record_firing(connection, *what)
    schedules.change(connection, schedule, status, reason, now, next_at=next_at)


def cancel(connection: Connection, schedule_id: str, with_work: bool, now: datetime) -> list[str]:
    """End a schedule, and return the work to cancel with it, also if it has ended already."""
    schedule = schedules.load_row(connection, schedule_id)
    in_flight = schedules.group_in_flight(connection, [schedule_id]).get(schedule_id, [])
    if schedule["status"] not in OPEN and not (with_work and in_flight):
        raise Conflict(f"{schedule_id} is {schedule['status']} already.")
    _settle_all(connection, schedule, "the schedule was cancelled", now)
    change_status(connection, schedule, ScheduleStatus.CANCELLED, "cancelled by a person", now)
    if not with_work:
        return []
    return schedules.group_in_flight(connection, [schedule_id]).get(schedule_id, [])


def run_now(connection: Connection, schedule_id: str, now: datetime) -> datetime:
    """Record a start outside of the timetable, and return the slot that stands for it."""
    schedule = _require_open(connection, schedule_id, "run")
    situation = read_situation(connection, schedule_id, now)
    if situation.in_flight and not schedule["overlap"]:
        raise Conflict(
            f"{situation.in_flight} of {schedule_id} is still running.",
            hint="Wait until it has ended, or cancel it first.",
        )
    if situation.last_slot is None:
        slot = now
    else:
        slot = max(now, situation.last_slot + rules.INSTANT)
    # Slots at whole minutes belong to cron.
    if not slot.microsecond:
        slot = slot + rules.INSTANT
    reason = "run by a person"
    schedules.record_firing(connection, schedule_id, slot, Outcome.STARTING, now, reason)
    if rules.trigger_of(schedule) == "every":
        schedules.update(connection, schedule_id, next_at=None)
    return slot


def _require_open(connection: Connection, schedule_id: str, verb: str) -> schedules.Row:
    schedule = schedules.load_row(connection, schedule_id)
    if schedule["status"] not in OPEN:
        raise Conflict(
            f"{schedule_id} is {schedule['status']} and cannot be {verb}.",
            hint="`kapelle schedule create` makes a new one.",
        )
    return schedule


def _settle_all(connection: Connection, schedule: ScheduleRow, reason: str, now: datetime) -> None:
    """Close every open slot: record its start if there is one, else skip the slot."""
    for firing in schedules.list_unsettled_firings(connection, schedule["id"]):
        key = key_of(schedule["id"], firing["slot"])
        subject = schedules.find_subject(connection, key)
        if firing["outcome"] == Outcome.STARTING and subject is not None:
            record_start(connection, schedule["id"], firing["slot"], subject, now)
        else:
            _settle(connection, schedule, firing["slot"], Outcome.SKIPPED, reason=reason)
