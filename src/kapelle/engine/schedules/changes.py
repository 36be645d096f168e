"""Each change of a schedule and its firings, inside one transaction.

The order that makes every slot start once: the slot is written down as starting together with the
next slot; what it starts is started with the slot as its key; then it is written down as started.
Whatever comes between, the next pass finds the slot as starting and starts it with the same key.
"""

from datetime import datetime

from kapelle.domain.schedule import OPEN, Outcome, ScheduleStatus
from kapelle.engine.schedules.facts import situation
from kapelle.engine.schedules.rules import decide, release, trigger_of
from kapelle.store import events, schedules
from kapelle.store.database import Connection
from kapelle.store.schedules import Row

_UNSETTLED = {Outcome.HELD, Outcome.STARTING}


def key_of(schedule_id: str, slot: datetime) -> str:
    """What lets a task or run know that it was started for this slot before."""
    return f"{schedule_id}/{slot.isoformat()}"


def is_due(connection: Connection, schedule_id: str, now: datetime) -> bool:
    """Whether anything is to be written down, which is asked far more often than it is so."""
    found = situation(connection, schedule_id, now)
    return decide(found).changes(found.schedule)


def advance(connection: Connection, schedule_id: str, now: datetime) -> list[datetime]:
    """Write down what is due; returns the slots that are to be started or held back."""
    schedule = schedules.row(connection, schedule_id)
    decided = decide(situation(connection, schedule_id, now))
    opened = []
    for slot, outcome, reason in decided.firings:
        if schedules.record_firing(connection, schedule_id, slot, outcome, now, reason):
            if outcome in _UNSETTLED:
                opened.append(slot)
            else:
                _tell(connection, schedule, slot, outcome, reason)
    if decided.next_at != schedule["next_at"]:
        schedules.update(connection, schedule_id, next_at=decided.next_at)
    if decided.status is not None:
        become(connection, schedule, *decided.status, now)
    return opened


def may_go(connection: Connection, schedule_id: str, slot: datetime, now: datetime) -> bool:
    """Whether what holds a slot back has ended."""
    return release(situation(connection, schedule_id, now, but=slot))[0] is not Outcome.HELD


def let_go(connection: Connection, schedule_id: str, slot: datetime, now: datetime) -> Outcome:
    """Have a slot that is held back started or skipped, if what holds it back has ended."""
    found = situation(connection, schedule_id, now, but=slot)
    outcome, reason = release(found)
    if outcome is Outcome.HELD:
        return outcome
    schedules.update_firing(connection, schedule_id, slot, outcome=outcome, reason=reason)
    if outcome is Outcome.SKIPPED:
        schedule = schedules.row(connection, schedule_id)
        _tell(connection, schedule, slot, outcome, reason)
        if _is_only(schedule, slot):
            become(connection, schedule, ScheduleStatus.FAILED, reason, now)
    return outcome


def started(
    connection: Connection, schedule_id: str, slot: datetime, subject: str, now: datetime
) -> None:
    """Write down what a slot started; that may have been the last one."""
    schedule = schedules.row(connection, schedule_id)
    count = schedule["started"] + 1
    schedules.update_firing(connection, schedule_id, slot, outcome=Outcome.STARTED, subject=subject)
    schedules.update(connection, schedule_id, started=count)
    _tell(connection, schedule, slot, Outcome.STARTED, None, subject)
    enough = schedule["max_runs"] is not None and count >= schedule["max_runs"]
    if enough or _is_only(schedule, slot):
        become(connection, schedule, ScheduleStatus.COMPLETED, None, now)


def not_started(
    connection: Connection, schedule_id: str, slot: datetime, reason: str, now: datetime
) -> None:
    """Write down why a slot could not start anything; a schedule that has further ones goes on."""
    schedule = schedules.row(connection, schedule_id)
    schedules.update_firing(connection, schedule_id, slot, outcome=Outcome.FAILED, reason=reason)
    _tell(connection, schedule, slot, Outcome.FAILED, reason)
    if _is_only(schedule, slot) or trigger_of(schedule) == "every":
        become(connection, schedule, ScheduleStatus.FAILED, f"it could not start: {reason}", now)


def _is_only(schedule: Row, slot: datetime) -> bool:
    """Whether no slot comes after this one, unless a person asks for it."""
    return bool(trigger_of(schedule) == "at" and slot == schedule["at"])


def skip(connection: Connection, schedule: Row, slot: datetime, reason: str) -> None:
    """Write down that a slot which was open starts nothing."""
    schedules.update_firing(
        connection, schedule["id"], slot, outcome=Outcome.SKIPPED, reason=reason
    )
    _tell(connection, schedule, slot, Outcome.SKIPPED, reason)


def become(
    connection: Connection,
    schedule: Row,
    status: ScheduleStatus,
    reason: str | None,
    now: datetime,
) -> None:
    """Change an open schedule's status; one that has ended meanwhile stays as it ended."""
    if schedules.row(connection, schedule["id"])["status"] not in OPEN:
        return
    if status not in OPEN:
        for firing in schedules.unsettled_firings(connection, schedule["id"]):
            if firing["outcome"] == Outcome.HELD:
                skip(connection, schedule, firing["slot"], "the schedule has ended")
    schedules.change(connection, schedule, status, reason, now)


def _tell(
    connection: Connection,
    schedule: Row,
    slot: datetime,
    outcome: Outcome,
    reason: str | None,
    subject: str | None = None,
) -> None:
    events.append(
        connection,
        f"firing.{outcome}",
        schedule_id=schedule["id"],
        title=schedule["title"],
        slot=slot.isoformat(),
        subject=subject,
        reason=reason,
    )
