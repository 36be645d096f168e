"""What the end of an attempt means for its task: one pure decision."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from kapelle.domain.specs import RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import Exit

Waiting = Literal["input", "rate_limit"]

# A limit that does not say when it ends is asked again after this long.
_UNSTATED_RESET = timedelta(seconds=300)
# What an agent says of its limits is only words: no wait is longer, and repeated ones grow.
_LONGEST_WAIT = timedelta(days=8)
_LONGEST_FLOOR_S = 300


@dataclass(frozen=True)
class Evidence:
    """Everything known about an attempt that has ended."""

    exit: Exit
    wish: str | None  # "cancel" or "requeue": a person wanted it to end
    timed_out: bool
    detail: str | None
    success: bool
    reason: str | None
    failed_checks: tuple[str, ...]
    waiting_for: Waiting | None
    retry_at: datetime | None


@dataclass(frozen=True)
class Outcome:
    attempt: AttemptStatus
    task: TaskStatus
    reason: str | None
    waiting_for: Waiting | None = None
    not_before: datetime | None = None
    spends_a_try: bool = True


def decide(
    evidence: Evidence, retry: RetrySpec, tries: int, number: int, now: datetime, jitter: float
) -> Outcome:
    """The statuses that follow.

    tries counts the attempts of this round, this one included; number is the attempt's own;
    jitter is in [0, 1).
    """
    if evidence.wish == "requeue":
        return Outcome(AttemptStatus.CANCELLED, TaskStatus.QUEUED, "requeued", spends_a_try=False)
    if evidence.wish is not None:
        reason = evidence.detail or "cancelled"
        return Outcome(AttemptStatus.CANCELLED, TaskStatus.CANCELLED, reason)
    if evidence.success and not evidence.failed_checks:
        return Outcome(AttemptStatus.COMPLETED, TaskStatus.COMPLETED, None)
    status = AttemptStatus.LOST if evidence.exit.kind == "lost" else AttemptStatus.FAILED
    if evidence.waiting_for == "input":
        return Outcome(status, TaskStatus.WAITING, evidence.reason, "input")
    if evidence.waiting_for == "rate_limit":
        at = _reset(evidence.retry_at, number, now)
        return Outcome(
            status, TaskStatus.WAITING, evidence.reason, "rate_limit", at, spends_a_try=False
        )
    reason = _why(evidence)
    if retry.policy == "none" or tries >= retry.max_attempts:
        return Outcome(status, TaskStatus.FAILED, reason)
    at = now + timedelta(seconds=backoff_s(retry, tries, jitter))
    return Outcome(status, TaskStatus.QUEUED, reason, not_before=at)


def backoff_s(retry: RetrySpec, tries: int, jitter: float) -> float:
    """Doubles with every try, 30 % more or less so that not all come at once, up to the cap."""
    delay = retry.delay_s * 2.0 ** min(tries - 1, 60) * (0.7 + 0.6 * jitter)
    return min(delay, retry.max_delay_s)


def _reset(stated: datetime | None, number: int, now: datetime) -> datetime:
    floor = timedelta(seconds=min(2.0 ** min(number - 1, 20), _LONGEST_FLOOR_S))
    return min(max(stated or now + _UNSTATED_RESET, now + floor), now + _LONGEST_WAIT)


def _why(evidence: Evidence) -> str:
    if evidence.exit.kind == "lost":
        return f"lost: {evidence.detail or 'nobody saw how it ended'}"
    if evidence.timed_out:
        return evidence.detail or "timed out"
    if not evidence.success:
        return evidence.reason or evidence.detail or "the agent failed"
    return f"failed its check: {', '.join(evidence.failed_checks)}"
