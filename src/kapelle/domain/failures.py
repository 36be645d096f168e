"""Failure classes of attempts, and the policy for each class."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class FailureClass(StrEnum):
    """Cause of a failed attempt."""

    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    AUTHENTICATION = "authentication"
    BILLING = "billing"
    CAPABILITY = "capability"
    CONTEXT_OVERFLOW = "context_overflow"
    TOOL = "tool"
    ENVIRONMENT = "environment"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    LIMIT = "limit"
    CRASH = "crash"
    SESSION_LOST = "session_lost"
    CHECKS = "checks"
    TASK = "task"
    LOST = "lost"
    TAMPERED = "tampered"
    UNKNOWN = "unknown"


class FailureResponse(StrEnum):
    """Response to a failure, in addition to the task's own retry policy."""

    WAIT_FOR_RESET = "wait_for_reset"  # pause the account; another agent may take over
    OUTLAST = "outlast"  # retry with growing delays for at least half an hour
    AGAIN = "again"  # retry once at once, without the session that caused the failure
    RETRY = "retry"  # follow the task's retry policy
    STOP = "stop"  # do not retry: another attempt would fail too


@dataclass(frozen=True, slots=True)
class Policy:
    """The response to one failure class, and the instructions for a person."""

    response: FailureResponse
    switches: bool = False  # whether a fallback agent takes over, if the task names one
    trips: bool = False  # whether the failure counts for the circuit breaker of its agent
    # Instructions where Kapelle stops: for the agent or the machine, and for the task.
    fix: str | None = None
    task_fix: str | None = None

    def fix_for(self, agent: str, task: str) -> str | None:
        """Return the instructions for a person to continue a task."""
        parts = [part for part in (self.fix, self.task_fix) if part is not None]
        if not parts:
            return None
        return ", then: ".join(parts).format(agent=agent, task=task)

    def fix_for_agent(self, agent: str) -> str | None:
        """Return the instructions that concern the agent or the machine and no task."""
        if self.fix is None:
            return None
        return self.fix.format(agent=agent)


_LOG_IN = "Log in with the agent's own program, or: kapelle agents config set {agent} api_key"
_PAY = "Add credit or raise the spend limit at the provider"
_RETRY = "kapelle retry {task}"
_LATER = "The rate limit did not reset at the announced time. Later: kapelle retry {task}"
_OTHER_MODEL = "Choose another model: kapelle agents config set {agent} model NAME"
_MAKE_ROOM = "Free disk space"
_LOOK = "Read its log: kapelle logs {task}; then: kapelle retry {task}"
_RAISE = "Raise the limit: kapelle resume {task} --max-turns 200, or --budget 5"

POLICIES: dict[FailureClass, Policy] = {
    **dict.fromkeys(FailureClass, Policy(FailureResponse.RETRY)),
    FailureClass.RATE_LIMIT: Policy(FailureResponse.WAIT_FOR_RESET, switches=True, task_fix=_LATER),
    FailureClass.OVERLOADED: Policy(FailureResponse.OUTLAST, switches=True),
    FailureClass.AUTHENTICATION: Policy(FailureResponse.STOP, fix=_LOG_IN),
    FailureClass.BILLING: Policy(FailureResponse.STOP, fix=_PAY, task_fix=_RETRY),
    FailureClass.CAPABILITY: Policy(FailureResponse.STOP, switches=True, fix=_OTHER_MODEL),
    FailureClass.ENVIRONMENT: Policy(FailureResponse.RETRY, switches=True, trips=True),
    FailureClass.DISK_FULL: Policy(FailureResponse.STOP, fix=_MAKE_ROOM, task_fix=_RETRY),
    FailureClass.LIMIT: Policy(FailureResponse.STOP, task_fix=_RAISE),
    FailureClass.CRASH: Policy(FailureResponse.RETRY, switches=True, trips=True),
    FailureClass.SESSION_LOST: Policy(FailureResponse.AGAIN),
    FailureClass.TAMPERED: Policy(FailureResponse.STOP, task_fix=_LOOK),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure class with its evidence, which is the text that it was recognized by."""

    kind: FailureClass
    evidence: str
    retry_at: datetime | None = None  # the announced reset of a rate limit
    of_model: bool = False  # whether the provider limits the model alone, not the account

    @property
    def policy(self) -> Policy:
        return POLICIES[self.kind]
