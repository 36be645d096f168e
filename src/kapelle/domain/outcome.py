"""What the end of an attempt means for its task: one pure decision."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from kapelle.domain.failures import Failure, FailureClass, FailureResponse
from kapelle.domain.specs import RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import Exit, Usage

Waiting = Literal["input", "rate_limit"]
Mode = Literal["fresh", "resume", "merge"]

# A limit that does not say when it ends is asked again after this long, then after twice as long.
_UNSTATED = timedelta(seconds=60)
# What an agent says of its limits is only words: no wait is longer, and a task that is refused
# again and again waits for longer than the limit, so that others try before it.
_LONGEST_WAIT = timedelta(days=8)
_LONGEST_GROWTH_S = 900.0
# After so many refusals in a row over so long nobody believes that it ends.
_MOST_REFUSALS = 20
_LONGEST_REFUSED = timedelta(hours=6)
# How long a provider that is overloaded is asked again, whatever the retry policy says.
_OUTLAST = timedelta(minutes=30)
_OUTLAST_RETRY = RetrySpec(delay_s=5, max_delay_s=300)
# So many attempts may follow that neither a person nor the retry policy asked for.
MOST_UNCOUNTED = 100


@dataclass(frozen=True)
class Evidence:
    """Everything known about an attempt that has ended: the end of the agent's process, then what
    the agent reported and what the checks found."""

    exit: Exit
    detail: str | None = None  # what its supervisor says beside the exit
    timed_out: bool = False
    output_bytes: int = 0
    success: bool = False
    reason: str | None = None
    result: str | None = None
    claimed: Literal["success", "failure"] | None = None
    question: str | None = None  # what the agent asked a person
    failure: Failure | None = None
    session_id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    session_usage: dict[str, float] = field(default_factory=dict)
    can_nudge: bool = False
    agent: str = ""
    stop: str | None = None  # "cancel" or "requeue": a person wanted it to end


@dataclass(frozen=True)
class History:
    """What came before: the tries that the retry policy counts, this one included, and more."""

    tries: int
    overloads: int = 0  # attempts in a row that met an overload, this one included
    overloaded_since: datetime | None = None
    nudges: int = 0  # times that it was woken from a stall
    can_nudge: bool = False
    can_switch: bool = False  # whether another agent could take over
    others_free_at: datetime | None = None  # when the pause of the first other agent ends
    had_session: bool = False  # whether it went on with an earlier conversation
    refusals: int = 1  # attempts in a row that met a limit, this one included
    refused_since: datetime | None = None
    uncounted: int = 0  # attempts before this one that the retry policy did not count


@dataclass(frozen=True)
class AttemptOutcome:
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
    """The statuses that follow; jitter is in [0, 1)."""
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
        refused = f"was refused {history.refusals} times in a row"
        reason = f"{evidence.agent} {refused if history.refusals > 1 else 'is rate-limited'}"
    outcome = _respond(failure, status, reason, retry, history, now, jitter)
    if not outcome.spends_a_try and history.uncounted >= MOST_UNCOUNTED:
        reason = f"limit of {MOST_UNCOUNTED} uncounted attempts reached; the last: {reason}"
        return AttemptOutcome(status, TaskStatus.FAILED, reason)
    return outcome


def _respond(
    failure: Failure,
    status: AttemptStatus,
    reason: str,
    retry: RetrySpec,
    history: History,
    now: datetime,
    jitter: float,
) -> AttemptOutcome:
    again = TaskStatus.QUEUED
    if failure.policy.switches and history.can_switch:
        # What was begun is handed on; an agent that never worked has begun nothing.
        if failure.kind is FailureClass.CAPABILITY:
            mode: Mode = "fresh"
        else:
            mode = "resume"
        return AttemptOutcome(status, again, reason, spends_a_try=False, next_mode=mode)
    refused_for = now - (history.refused_since or now)
    hopeless = history.refusals >= _MOST_REFUSALS and refused_for >= _LONGEST_REFUSED
    overloaded_for = now - (history.overloaded_since or now)
    match failure.policy.response:
        case FailureResponse.WAIT_FOR_RESET if not hopeless:
            return _wait(failure, status, reason, history, now)
        case FailureResponse.OUTLAST if overloaded_for < _OUTLAST:
            pause = compute_backoff(_OUTLAST_RETRY, history.overloads, jitter)
            at = max(failure.retry_at or now, now + timedelta(seconds=pause))
            return AttemptOutcome(
                status, again, reason, None, at, spends_a_try=False, next_mode="resume"
            )
        case FailureResponse.AGAIN if history.had_session:
            return AttemptOutcome(status, again, reason, spends_a_try=False, next_mode="resume")
        case FailureResponse.STOP | FailureResponse.WAIT_FOR_RESET:
            return AttemptOutcome(status, TaskStatus.FAILED, reason)
        case FailureResponse.OUTLAST | FailureResponse.AGAIN | FailureResponse.RETRY:
            pass
    if failure.kind is FailureClass.STALLED and history.can_nudge and history.nudges == 0:
        message = "You were stuck, without any output, and were started again. Go on."
        return AttemptOutcome(status, again, reason, None, None, False, "resume", message)
    if retry.policy == "none" or history.tries >= retry.max_attempts:
        return AttemptOutcome(status, TaskStatus.FAILED, reason)
    at = now + timedelta(seconds=compute_backoff(retry, history.tries, jitter))
    return AttemptOutcome(status, again, reason, not_before=at)


def _wait(
    failure: Failure, status: AttemptStatus, reason: str, history: History, now: datetime
) -> AttemptOutcome:
    at = estimate_reset(failure.retry_at, now)
    again = history.refusals - 1
    if failure.retry_at:
        least_s = 1.0
    else:
        least_s = _UNSTATED.total_seconds()
    at += timedelta(seconds=min(least_s * (2.0 ** min(again, 20) - 1), _LONGEST_GROWTH_S))
    if history.others_free_at is not None:
        at = min(at, history.others_free_at)
        reason = f"all of its agents are limited; the last: {reason}"
    return AttemptOutcome(
        status, TaskStatus.WAITING, reason, "rate_limit", at, spends_a_try=False, next_mode="resume"
    )


def compute_backoff(retry: RetrySpec, tries: int, jitter: float) -> float:
    """Doubles with every try, 30 % more or less so that not all come at once, up to the cap."""
    delay = retry.delay_s * 2.0 ** min(max(tries, 1) - 1, 60) * (0.7 + 0.6 * jitter)
    return min(delay, retry.max_delay_s)


def estimate_reset(stated: datetime | None, now: datetime) -> datetime:
    """When a limit ends, by the word of whoever set it, within reason."""
    at = stated or now + _UNSTATED
    return min(max(at, now + timedelta(seconds=1)), now + _LONGEST_WAIT)
