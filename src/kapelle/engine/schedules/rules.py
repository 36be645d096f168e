"""Pure rules of schedules: from a situation to a decision about slots and status."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kapelle.domain.schedule import MissedPolicy, Outcome, ScheduleStatus, Trigger
from kapelle.domain.states import TaskStatus
from kapelle.engine.schedules.calendar import PassedSlots, count_slots, next_slot, slots_between

# A slot that is detected later than this was missed.
GRACE = timedelta(seconds=60)
INSTANT = timedelta(microseconds=1)

ScheduleRow = Mapping[Any, Any]  # a stored row, by the names of its columns


@dataclass(frozen=True)
class Leader:
    """The state of the schedule that another schedule follows."""

    id: str
    is_open: bool
    # Its work that is still running, and why its last work did not succeed.
    in_flight: str | None
    failure: str | None
    # Its slots with successful work for which the follower has no slot yet.
    to_follow: tuple[datetime, ...] = ()


@dataclass(frozen=True)
class Situation:
    """Everything that decides about a schedule, read at one moment."""

    schedule: ScheduleRow
    now: datetime
    # Work of an earlier slot that is still running.
    in_flight: str | None
    has_held_slot: bool
    # Number of slots that are starting; they count as runs.
    starting: int
    latest: ScheduleRow | None
    last_slot: datetime | None
    leader: Leader | None

    @property
    def end_of_time(self) -> datetime:
        """Return the first moment whose slot no longer counts: the expiry, or just after now."""
        expires_at: datetime | None = self.schedule["expires_at"]
        return min(expires_at or self.now + INSTANT, self.now + INSTANT)

    @property
    def is_expired(self) -> bool:
        expires_at: datetime | None = self.schedule["expires_at"]
        return expires_at is not None and expires_at <= self.now


@dataclass
class ScheduleDecision:
    """The results of slots, the time of the next slot, and the new status."""

    next_at: datetime | None
    firings: list[tuple[datetime, Outcome, str | None]] = field(default_factory=list)
    status: tuple[ScheduleStatus, str] | None = None

    def add(self, slot: datetime, outcome: Outcome, reason: str | None) -> None:
        self.firings.append((slot, outcome, reason))

    def count(self, outcome: Outcome) -> int:
        return [firing[1] for firing in self.firings].count(outcome)

    def changes(self, schedule: ScheduleRow) -> bool:
        """Return whether the decision has to be stored."""
        is_moved = self.next_at != schedule["next_at"]
        return is_moved or bool(self.firings) or self.status is not None


def trigger_of(schedule: ScheduleRow) -> Trigger:
    if schedule["cron"] is not None:
        return "cron"
    if schedule["at"] is not None:
        return "at"
    if schedule["every_s"] is None:
        return "after"
    return "every"


def next_by_cron(schedule: ScheduleRow, now: datetime) -> datetime | None:
    """Return the next slot before the schedule expires."""
    slot = next_slot(schedule["cron"], schedule["timezone"], now)
    expires_at = schedule["expires_at"]
    if slot is None or (expires_at and slot >= expires_at):
        return None
    return slot


def decide(situation: Situation) -> ScheduleDecision:
    """Decide what is due for an open schedule; a paused one can only expire."""
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
    if decision.status is None and situation.is_expired:
        decision.status = (ScheduleStatus.EXPIRED, "expired")
    return decision


def decide_held_slot(situation: Situation) -> tuple[Outcome, str | None]:
    """Decide about a slot that was held back."""
    leader = situation.leader
    if leader is not None and leader.in_flight:
        return Outcome.HELD, None
    if situation.in_flight and not situation.schedule["overlap"]:
        return Outcome.SKIPPED, f"{situation.in_flight} is still running"
    if leader is not None and leader.failure:
        return Outcome.SKIPPED, leader.failure
    return Outcome.STARTING, "was held back until the followed schedule's work had ended"


def _decide_cron(situation: Situation, decision: ScheduleDecision) -> None:
    schedule = situation.schedule
    now = situation.now
    if decision.next_at is None or decision.next_at > now:
        return
    # Missed slots share one firing; slots within the grace period start normally.
    late, fresh = _due(situation, decision.next_at)
    if late is not None and schedule["missed"] == MissedPolicy.FAIL:
        decision.add(late.newest, Outcome.MISSED, _describe_missed(late))
        decision.status = (ScheduleStatus.FAILED, _describe_missed(late))
        return
    if late is not None and schedule["missed"] == MissedPolicy.CATCHUP and not situation.is_expired:
        slot = fresh[-1] if fresh else late.newest
        _fire(situation, decision, slot, f"makes up for {_format_count(late)}")
        fresh = []
    elif late is not None:
        decision.add(late.newest, Outcome.MISSED, _describe_missed(late))
    for slot in fresh:
        _fire(situation, decision, slot)
    decision.next_at = next_by_cron(schedule, now)
    if decision.next_at is None and schedule["expires_at"] is None:
        decision.status = (ScheduleStatus.COMPLETED, "its last slot has passed")


def _due(situation: Situation, first: datetime) -> tuple[PassedSlots | None, list[datetime]]:
    """Return the slots from first on: the missed ones, and those that are just due."""
    cron = situation.schedule["cron"]
    zone = situation.schedule["timezone"]
    limit = situation.now - GRACE
    late = count_slots(cron, zone, first, min(limit, situation.end_of_time) - INSTANT)
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
    if late and (schedule["missed"] != MissedPolicy.CATCHUP or situation.is_expired):
        reason = f"its time {_format_moment(slot)} was missed: Kapelle was not running"
        decision.add(slot, Outcome.MISSED, reason)
        if schedule["missed"] == MissedPolicy.FAIL:
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
    if situation.is_expired:
        return
    if decision.next_at is None:
        if situation.in_flight:
            return
        _next_repetition(situation, decision, pause)
        if decision.status is not None or decision.next_at is None:
            return
    # A slot later than a whole pause from now means that the clock was set back.
    decision.next_at = min(decision.next_at, now + pause)
    if decision.next_at > now:
        return
    if not situation.in_flight:
        slot = decision.next_at
        # A slot identifies its work, so it must be later than every earlier one.
        if situation.last_slot is not None:
            slot = max(slot, situation.last_slot + INSTANT)
        _fire(situation, decision, slot)
    decision.next_at = None


def _next_repetition(situation: Situation, decision: ScheduleDecision, pause: timedelta) -> None:
    """Decide when to repeat ended work; only successful work is repeated."""
    latest = situation.latest
    now = situation.now
    status = latest and latest["subject_status"]
    if latest is None or status is None:
        # The work of the last slot was deleted meanwhile.
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
        # A person cancelled the work, and may resume the schedule later.
        decision.status = (ScheduleStatus.PAUSED, f"{latest['subject']} was cancelled{reason}")


def _decide_after(situation: Situation, decision: ScheduleDecision) -> None:
    leader = situation.leader
    if leader is None or situation.is_expired:
        return
    for slot in leader.to_follow:
        _fire(situation, decision, slot)
    is_idle = not leader.to_follow and leader.in_flight is None and not situation.starting
    if is_idle and not leader.is_open:
        decision.status = (ScheduleStatus.COMPLETED, f"{leader.id}, which it follows, has ended")


def _fire(
    situation: Situation, decision: ScheduleDecision, slot: datetime, reason: str | None = None
) -> None:
    schedule = situation.schedule
    leader = situation.leader
    if trigger_of(schedule) == "after":
        leader = None  # such a slot exists because the leader succeeded
    starting = decision.count(Outcome.STARTING)
    in_flight = situation.in_flight or ("the work of the slot before it" if starting else None)
    runs = schedule["started"] + situation.starting + starting
    if schedule["max_runs"] is not None and runs >= schedule["max_runs"]:
        decision.add(slot, Outcome.SKIPPED, "max_runs reached")
    elif in_flight and not schedule["overlap"]:
        decision.add(slot, Outcome.SKIPPED, f"{in_flight} is still running")
    elif leader and (situation.has_held_slot or decision.count(Outcome.HELD)):
        decision.add(slot, Outcome.SKIPPED, "the slot before it is still held back")
    elif leader and leader.in_flight:
        decision.add(slot, Outcome.HELD, f"waits for {leader.in_flight} of {leader.id}")
    elif leader and leader.failure:
        decision.add(slot, Outcome.SKIPPED, leader.failure)
    else:
        decision.add(slot, Outcome.STARTING, reason)


def _describe_missed(late: PassedSlots) -> str:
    if late.count == 1:
        verb = "was missed,"
    else:
        verb = "were missed, the last"
    return f"{_format_count(late)} {verb} at {_format_moment(late.newest)}"


def _format_count(late: PassedSlots) -> str:
    if late.more:
        number = f"more than {late.count}"
    else:
        number = str(late.count)
    noun = "slot" if late.count == 1 else "slots"
    return f"{number} {noun}"


def _format_moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
