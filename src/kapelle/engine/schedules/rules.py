"""What a schedule does now: pure rules from what is known of it to what becomes of its slots."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kapelle.domain.schedule import MissedPolicy, Outcome, ScheduleStatus, Trigger
from kapelle.domain.states import TaskStatus
from kapelle.engine.schedules.slots import PassedSlots, next_slot, passed, slots_between

# A slot that is found later than this was missed.
GRACE = timedelta(seconds=60)
INSTANT = timedelta(microseconds=1)

ScheduleRow = Mapping[Any, Any]  # a stored row, by the names of its columns


@dataclass(frozen=True)
class Leader:
    """What is known of the schedule that another one follows."""

    id: str
    is_open: bool
    # What it started and what is still going, and why the last of it was no success.
    in_flight: str | None
    failed: str | None
    # Its slots whose work has succeeded and that the follower has not answered.
    to_follow: tuple[datetime, ...] = ()


@dataclass(frozen=True)
class Situation:
    """All that decides about a schedule, read at one moment."""

    schedule: ScheduleRow
    now: datetime
    # What an earlier slot started and what is still going.
    in_flight: str | None
    holding: bool
    # Slots that are being started, which count as runs.
    starting: int
    latest: ScheduleRow | None
    last_slot: datetime | None
    leader: Leader | None

    @property
    def end_of_time(self) -> datetime:
        """The first moment whose slot does not count any more, or just after now."""
        expires_at: datetime | None = self.schedule["expires_at"]
        return min(expires_at or self.now + INSTANT, self.now + INSTANT)

    @property
    def expired(self) -> bool:
        expires_at: datetime | None = self.schedule["expires_at"]
        return expires_at is not None and expires_at <= self.now


@dataclass
class ScheduleDecision:
    """What becomes of slots, when the next one comes, and what the schedule becomes by it."""

    next_at: datetime | None
    firings: list[tuple[datetime, Outcome, str | None]] = field(default_factory=list)
    status: tuple[ScheduleStatus, str] | None = None

    def add(self, slot: datetime, outcome: Outcome, reason: str | None) -> None:
        self.firings.append((slot, outcome, reason))

    def count(self, outcome: Outcome) -> int:
        return sum(found is outcome for _, found, _ in self.firings)

    def changes(self, schedule: ScheduleRow) -> bool:
        """Whether anything is to be written down."""
        moved = self.next_at != schedule["next_at"]
        return moved or bool(self.firings) or self.status is not None


def trigger_of(schedule: ScheduleRow) -> Trigger:
    if schedule["cron"] is not None:
        return "cron"
    if schedule["at"] is not None:
        return "at"
    if schedule["every_s"] is None:
        return "after"
    return "every"


def next_by_cron(schedule: ScheduleRow, now: datetime) -> datetime | None:
    """The next slot that comes before the schedule expires."""
    slot = next_slot(schedule["cron"], schedule["timezone"], now)
    expires_at = schedule["expires_at"]
    if slot is None or (expires_at and slot >= expires_at):
        return None
    return slot


def decide(situation: Situation) -> ScheduleDecision:
    """What is due for an open schedule; a paused one can do nothing but expire."""
    decision = ScheduleDecision(next_at=situation.schedule["next_at"])
    if situation.schedule["status"] == ScheduleStatus.ACTIVE:
        match trigger_of(situation.schedule):
            case "cron":
                _decide_cron(situation, decision)
            case "at":
                _decide_at(situation, decision)
            case "every":
                _decide_every(situation, decision)
            case "after":
                _decide_after(situation, decision)
    if decision.status is None and situation.expired:
        decision.status = (ScheduleStatus.EXPIRED, "its time is over")
    return decision


def release(situation: Situation) -> tuple[Outcome, str | None]:
    """What becomes of a slot that was held back."""
    leader = situation.leader
    if leader is not None and leader.in_flight:
        return Outcome.HELD, None
    if situation.in_flight and not situation.schedule["overlap"]:
        return Outcome.SKIPPED, f"{situation.in_flight} is still going"
    if leader is not None and leader.failed:
        return Outcome.SKIPPED, leader.failed
    return Outcome.STARTING, "was held back until what it comes after had ended"


def _decide_cron(situation: Situation, decision: ScheduleDecision) -> None:
    schedule = situation.schedule
    now = situation.now
    if decision.next_at is None or decision.next_at > now:
        return
    late, fresh = _due(situation, decision.next_at)
    if late is not None and schedule["missed"] == MissedPolicy.FAIL:
        decision.add(late.newest, Outcome.MISSED, _missed(late))
        decision.status = (ScheduleStatus.FAILED, _missed(late))
        return
    if late is not None and schedule["missed"] == MissedPolicy.CATCHUP and not situation.expired:
        slot = fresh[-1] if fresh else late.newest
        _fire(situation, decision, slot, f"makes up for {_slots(late)}")
        fresh = []
    elif late is not None:
        decision.add(late.newest, Outcome.MISSED, _missed(late))
    for slot in fresh:
        _fire(situation, decision, slot)
    decision.next_at = next_by_cron(schedule, now)
    if decision.next_at is None and schedule["expires_at"] is None:
        decision.status = (ScheduleStatus.COMPLETED, "its last slot has passed")


def _due(situation: Situation, first: datetime) -> tuple[PassedSlots | None, list[datetime]]:
    """The slots from first on: those that were missed, and those that are just due."""
    cron = situation.schedule["cron"]
    zone = situation.schedule["timezone"]
    limit = situation.now - GRACE
    late = passed(cron, zone, first, min(limit, situation.end_of_time) - INSTANT)
    start = max(first, limit) - INSTANT
    end = situation.end_of_time - INSTANT
    return late, list(slots_between(cron, zone, start, end))


def _decide_at(situation: Situation, decision: ScheduleDecision) -> None:
    schedule = situation.schedule
    slot = decision.next_at
    if slot is None or slot > situation.now:
        return
    decision.next_at = None
    late = situation.now - slot > GRACE
    if late and (schedule["missed"] != MissedPolicy.CATCHUP or situation.expired):
        reason = f"its time {_shown(slot)} was missed: Kapelle was not running"
        decision.add(slot, Outcome.MISSED, reason)
        failed = schedule["missed"] == MissedPolicy.FAIL
        if failed:
            status = ScheduleStatus.FAILED
        else:
            status = ScheduleStatus.EXPIRED
        decision.status = (status, reason)
        return
    _fire(situation, decision, slot, "makes up for its time, which was missed" if late else None)
    _, outcome, reason_ = decision.firings[-1]
    if outcome is Outcome.SKIPPED:
        decision.status = (ScheduleStatus.FAILED, reason_ or "its only slot was skipped")


def _decide_every(situation: Situation, decision: ScheduleDecision) -> None:
    schedule = situation.schedule
    now = situation.now
    pause = timedelta(seconds=schedule["every_s"])
    if situation.expired:
        return
    if decision.next_at is None:
        if situation.in_flight:
            return
        _next_repetition(situation, decision, pause)
        if decision.status is not None or decision.next_at is None:
            return
    # Later than a whole pause from now can only mean that the clock went back.
    decision.next_at = min(decision.next_at, now + pause)
    if decision.next_at > now:
        return
    if not situation.in_flight:
        slot = decision.next_at
        if situation.last_slot is not None:
            slot = max(slot, situation.last_slot + INSTANT)
        _fire(situation, decision, slot)
    decision.next_at = None


def _next_repetition(situation: Situation, decision: ScheduleDecision, pause: timedelta) -> None:
    """When to repeat what has ended; only a success is repeated."""
    latest = situation.latest
    now = situation.now
    status = latest and latest["subject_status"]
    if latest is None or status is None:
        # What it started was forgotten meanwhile.
        decision.next_at = now
        return
    if latest["subject_reason"]:
        reason = f": {latest['subject_reason']}"
    else:
        reason = ""
    if status == TaskStatus.COMPLETED:
        decision.next_at = min(latest["subject_ended_at"] or now, now) + pause
    elif status == TaskStatus.FAILED:
        decision.status = (ScheduleStatus.FAILED, f"{latest['subject']} failed{reason}")
    else:
        # A person wanted it so, and may want it to go on later.
        decision.status = (ScheduleStatus.PAUSED, f"{latest['subject']} was cancelled{reason}")


def _decide_after(situation: Situation, decision: ScheduleDecision) -> None:
    leader = situation.leader
    if leader is None or situation.expired:
        return
    for slot in leader.to_follow:
        _fire(situation, decision, slot)
    at_rest = not leader.to_follow and leader.in_flight is None and not situation.starting
    if at_rest and not leader.is_open:
        decision.status = (ScheduleStatus.COMPLETED, f"{leader.id}, which it follows, has ended")


def _fire(
    situation: Situation, decision: ScheduleDecision, slot: datetime, reason: str | None = None
) -> None:
    schedule = situation.schedule
    leader = situation.leader
    if trigger_of(schedule) == "after":
        leader = None  # its success is what the slot is for
    starting = decision.count(Outcome.STARTING)
    in_flight = situation.in_flight or ("what the slot before it started" if starting else None)
    runs = schedule["started"] + situation.starting + starting
    if schedule["max_runs"] is not None and runs >= schedule["max_runs"]:
        decision.add(slot, Outcome.SKIPPED, "as many as it may start are started")
    elif in_flight and not schedule["overlap"]:
        decision.add(slot, Outcome.SKIPPED, f"{in_flight} is still going")
    elif leader and (situation.holding or decision.count(Outcome.HELD)):
        decision.add(slot, Outcome.SKIPPED, "the slot before it is still held back")
    elif leader and leader.in_flight:
        decision.add(slot, Outcome.HELD, f"waits for {leader.in_flight} of {leader.id}")
    elif leader and leader.failed:
        decision.add(slot, Outcome.SKIPPED, leader.failed)
    else:
        decision.add(slot, Outcome.STARTING, reason)


def _missed(late: PassedSlots) -> str:
    if late.count == 1:
        verb = "was missed,"
    else:
        verb = "were missed, the last"
    return f"{_slots(late)} {verb} at {_shown(late.newest)}"


def _slots(late: PassedSlots) -> str:
    if late.more:
        number = f"more than {late.count}"
    else:
        number = str(late.count)
    return f"{number} slot{'' if late.count == 1 else 's'}"


def _shown(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
