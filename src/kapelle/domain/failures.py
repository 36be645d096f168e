"""Why an attempt failed, as one of a few classes, and what each class leads to."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class FailureClass(StrEnum):
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
    """What follows a failure, besides what the task's own retry policy says."""

    WAIT_FOR_RESET = "wait_for_reset"  # the account pauses; another agent may take over
    OUTLAST = "outlast"  # again and again with growing pauses, for half an hour at least
    AGAIN = "again"  # once more at once, without what made it fail
    RETRY = "retry"  # as the task's retry policy says
    STOP = "stop"  # no other attempt would end differently


@dataclass(frozen=True, slots=True)
class Policy:
    response: FailureResponse
    switches: bool = False  # whether a fallback agent, where there is one, takes over
    trips: bool = False  # whether it counts for the circuit breaker of its agent
    # What a person has to do, for those that stop: about the agent or the machine, then about the
    # task.
    fix: str | None = None
    task_fix: str | None = None

    def fix_for(self, agent: str, task: str) -> str | None:
        """Return what a person has to do for a task to go on."""
        parts = [part for part in (self.fix, self.task_fix) if part is not None]
        if not parts:
            return None
        return ", then: ".join(parts).format(agent=agent, task=task)

    def fix_for_agent(self, agent: str) -> str | None:
        """Return what a person has to do, as far as it is not about a task."""
        if self.fix is None:
            return None
        return self.fix.format(agent=agent)


_LOG_IN = "Log in with the agent's own program, or: kapelle agents config set {agent} api_key"
_PAY = "Add credit or raise the spend limit at the provider"
_RETRY = "kapelle retry {task}"
_LATER = "Its limit does not end as it says. Later: kapelle retry {task}"
_OTHER_MODEL = "Choose another model: kapelle agents config set {agent} model NAME"
_MAKE_ROOM = "Free some disk space"
_LOOK = "Look at what it did: kapelle logs {task}; then: kapelle retry {task}"
_RAISE = "Go on with more: kapelle resume {task} --max-turns 200, or --budget 5"

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
    """A class of failure with what it was told by; retry_at is when a limit says that it ends."""

    kind: FailureClass
    evidence: str
    retry_at: datetime | None = None
    of_model: bool = False  # whether the limit is said to be that of the model alone

    @property
    def policy(self) -> Policy:
        return POLICIES[self.kind]
