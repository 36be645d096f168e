"""The outcome of an attempt: one pure decision about its task."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from kapelle.domain.failures import Failure, FailureClass, FailureResponse
from kapelle.domain.specs import RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import Exit, Usage

Waiting = Literal["input", "rate_limit"]
Mode = Literal["fresh", "resume", "merge"]

# The first delay after a rate limit without a reset time; it doubles with every refusal.
_UNSTATED = timedelta(seconds=60)
# An agent may announce any reset time: no wait is longer than this. A task that is refused again
# and again waits longer than announced, so that other tasks try first.
_LONGEST_WAIT = timedelta(days=8)
_LONGEST_GROWTH_S = 900.0
# After this many refusals in a row over this time, the limit counts as permanent.
_MOST_REFUSALS = 20
_LONGEST_REFUSED = timedelta(hours=6)
# How long requests to an overloaded provider are retried, whatever the retry policy says.
_OUTLAST = timedelta(minutes=30)
_OUTLAST_RETRY = RetrySpec(delay_s=5, max_delay_s=300)
# The maximum number of attempts that neither a person nor the retry policy requested.
MOST_UNCOUNTED = 100


@dataclass(frozen=True)
class Evidence:
    """Facts about an ended attempt: the end of its process, the agent's report, the checks."""

    exit: Exit
    detail: str | None = None  # the supervisor's remark about the exit
    timed_out: bool = False
    output_bytes: int = 0
    success: bool = False
    reason: str | None = None
    result: str | None = None
    claimed: Literal["success", "failure"] | None = None
    question: str | None = None  # the agent's question to a person
    failure: Failure | None = None
    session_id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    session_usage: dict[str, float] = field(default_factory=dict)
    can_nudge: bool = False
    agent: str = ""
    stop: str | None = None  # "cancel" or "requeue": the request of a person to stop


@dataclass(frozen=True)
class History:
    """Earlier attempts of the task, as far as they matter for the decision."""

    tries: int  # the tries that the retry policy counts, including this one
    overloads: int = 0  # overloads in a row, including this attempt
    overloaded_since: datetime | None = None
    nudges: int = 0  # restarts after a stall
    can_nudge: bool = False
    can_switch: bool = False  # whether another agent could take over
    others_free_at: datetime | None = None  # the end of the first pause of another agent
    had_session: bool = False  # whether the attempt continued an earlier conversation
    refusals: int = 1  # refusals by a rate limit in a row, including this attempt
    refused_since: datetime | None = None
    uncounted: int = 0  # earlier attempts that the retry policy did not count


@dataclass(frozen=True)
class AttemptOutcome:
    """The decision: the new statuses, and how and when the next attempt starts."""

    attempt: AttemptStatus
    task: TaskStatus
    reason: str | None
    waiting_for: Waiting | None = None
    not_before: datetime | None = None
    spends_a_try: bool = True
    next_mode: Mode = "fresh"
    next_message: str | None = None


def decide(
    evidence: Evidence, retry: RetrySpec, history: History, now: datetime, jitter: float
) -> AttemptOutcome:
    """Return what follows the end of an attempt.

    jitter is a random number in [0, 1) that spreads retries. The function has no side effects.
    """
    if evidence.stop == "requeue":
        return AttemptOutcome(
            AttemptStatus.CANCELLED, TaskStatus.QUEUED, "requeued", spends_a_try=False
        )
    if evidence.stop is not None:
        reason = evidence.detail or "cancelled"
        return AttemptOutcome(AttemptStatus.CANCELLED, TaskStatus.CANCELLED, reason)
    if evidence.success and evidence.failure is None:
        return AttemptOutcome(AttemptStatus.COMPLETED, TaskStatus.COMPLETED, None)
    if evidence.exit.kind == "lost":
        status = AttemptStatus.LOST
    else:
        status = AttemptStatus.FAILED
    if evidence.question is not None:
        return AttemptOutcome(
            status, TaskStatus.WAITING, evidence.reason, "input", next_mode="resume"
        )
    failure = evidence.failure or Failure(FailureClass.UNKNOWN, "")
    reason = evidence.reason or evidence.detail or "the agent failed"
    if failure.kind is FailureClass.RATE_LIMIT and not history.can_switch:
        reason = f"{evidence.agent} is rate-limited"
        if history.refusals > 1:
            reason = f"{evidence.agent} was refused {history.refusals} times in a row"
    outcome = _respond_to_failure(failure, status, reason, retry, history, now, jitter)
    if not outcome.spends_a_try and history.uncounted >= MOST_UNCOUNTED:
        reason = f"limit of {MOST_UNCOUNTED} uncounted attempts reached; the last: {reason}"
        return AttemptOutcome(status, TaskStatus.FAILED, reason)
    return outcome


def _respond_to_failure(
    failure: Failure,
    status: AttemptStatus,
    reason: str,
    retry: RetrySpec,
    history: History,
    now: datetime,
    jitter: float,
) -> AttemptOutcome:
    if failure.policy.switches and history.can_switch:
        # The other agent continues the work. An agent without the capability has done nothing.
        if failure.kind is FailureClass.CAPABILITY:
            mode: Mode = "fresh"
        else:
            mode = "resume"
        return AttemptOutcome(status, TaskStatus.QUEUED, reason, spends_a_try=False, next_mode=mode)
    refused_for = now - (history.refused_since or now)
    is_permanent = history.refusals >= _MOST_REFUSALS and refused_for >= _LONGEST_REFUSED
    overloaded_for = now - (history.overloaded_since or now)
    match failure.policy.response:
        case FailureResponse.WAIT_FOR_RESET if not is_permanent:
            return _wait_for_reset(failure, status, reason, history, now)
        case FailureResponse.OUTLAST if overloaded_for < _OUTLAST:
            return _outlast_overload(failure, status, reason, history, now, jitter)
        case FailureResponse.AGAIN if history.had_session:
            return AttemptOutcome(
                status, TaskStatus.QUEUED, reason, spends_a_try=False, next_mode="resume"
            )
        case FailureResponse.STOP | FailureResponse.WAIT_FOR_RESET:
            return AttemptOutcome(status, TaskStatus.FAILED, reason)
        case FailureResponse.OUTLAST | FailureResponse.AGAIN | FailureResponse.RETRY:
            pass
    if failure.kind is FailureClass.STALLED and history.can_nudge and history.nudges == 0:
        return AttemptOutcome(
            status,
            TaskStatus.QUEUED,
            reason,
            spends_a_try=False,
            next_mode="resume",
            next_message="You stalled without any output and were restarted. Continue.",
        )
    if retry.policy == "none" or history.tries >= retry.max_attempts:
        return AttemptOutcome(status, TaskStatus.FAILED, reason)
    at = now + timedelta(seconds=compute_backoff(retry, history.tries, jitter))
    return AttemptOutcome(status, TaskStatus.QUEUED, reason, not_before=at)


def _outlast_overload(
    failure: Failure,
    status: AttemptStatus,
    reason: str,
    history: History,
    now: datetime,
    jitter: float,
) -> AttemptOutcome:
    delay = compute_backoff(_OUTLAST_RETRY, history.overloads, jitter)
    at = max(failure.retry_at or now, now + timedelta(seconds=delay))
    return AttemptOutcome(
        status,
        TaskStatus.QUEUED,
        reason,
        not_before=at,
        spends_a_try=False,
        next_mode="resume",
    )


def _wait_for_reset(
    failure: Failure, status: AttemptStatus, reason: str, history: History, now: datetime
) -> AttemptOutcome:
    at = estimate_reset(failure.retry_at, now)
    # Each further refusal adds to the wait, because the announced reset time was wrong.
    earlier_refusals = history.refusals - 1
    unit_s = 1.0
    if not failure.retry_at:
        unit_s = _UNSTATED.total_seconds()
    growth_s = unit_s * (2.0 ** min(earlier_refusals, 20) - 1)
    at += timedelta(seconds=min(growth_s, _LONGEST_GROWTH_S))
    if history.others_free_at is not None:
        at = min(at, history.others_free_at)
        reason = f"all of its agents are rate-limited; the last: {reason}"
    return AttemptOutcome(
        status, TaskStatus.WAITING, reason, "rate_limit", at, spends_a_try=False, next_mode="resume"
    )


def compute_backoff(retry: RetrySpec, tries: int, jitter: float) -> float:
    """Return the delay before the next try in seconds.

    It doubles with every try up to the maximum, and varies by 30 % so that retries spread out.
    """
    delay = retry.delay_s * 2.0 ** min(max(tries, 1) - 1, 60) * (0.7 + 0.6 * jitter)
    return min(delay, retry.max_delay_s)


def estimate_reset(announcement: datetime | None, now: datetime) -> datetime:
    """Return when a rate limit ends: the announced time within bounds, or a default."""
    at = announcement or now + _UNSTATED
    return min(max(at, now + timedelta(seconds=1)), now + _LONGEST_WAIT)
