"""Define an agent of the library: one method that takes a request and returns a response."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kapelle.domain.task import Usage


class Stop:
    """A request, from any thread, to stop a piece of work; the first reason counts.

    Long-running code checks `wanted` regularly, or uses `wait` to sleep.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reasons: list[str] = []

    @property
    def wanted(self) -> bool:
        """True once the work must stop."""
        return self._event.is_set()

    @property
    def reason(self) -> str:
        """The reason for the stop; empty before it is requested."""
        if self._reasons:
            return self._reasons[0]
        return ""

    def request(self, reason: str) -> None:
        """Request the stop."""
        self._reasons.append(reason)
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until the stop is requested or the time is over; tell whether it is requested."""
        return self._event.wait(timeout_s)


@dataclass(frozen=True, slots=True)
class Request:
    """One piece of work; an agent that ignores limits needs only prompt and cwd."""

    prompt: str
    system: str | None = None
    cwd: Path | None = None
    role: str = "worker"  # planner, worker or reviewer in a team
    title: str = ""
    timeout_s: float | None = None
    budget_usd: float | None = None  # the remaining budget
    stop: Stop = field(default_factory=Stop, repr=False, compare=False)
    """Tells the agent to stop its work."""
    spent: Callable[[float], None] = field(default=lambda _cost: None, repr=False, compare=False)
    """The agent calls this regularly with the cost of the work so far."""


@dataclass(frozen=True, slots=True)
class Response:
    """The result of a request; reason explains a failure."""

    text: str = ""
    ok: bool = True
    reason: str | None = None
    stderr: str = ""  # the end of a program's standard error
    cost_usd: float | None = None
    usage: Usage | None = None
    session_id: str | None = None
    hopeless: bool = False
    """True if the agent cannot work at all, so that every other request would fail, too."""


class Agent(ABC):
    """The base of all agents of the library.

    run() is called in threads, for several requests at once. An exception that it raises is a
    failed result, never a crash.
    """

    name: str = "agent"
    cwd: Path | None = None  # the directory for requests that name none
    ends_within_s: float = 0.5
    """Seconds that run() may take to return after a stop; then its thread is abandoned."""

    @abstractmethod
    def run(self, request: Request) -> Response:
        """Do the work and return its result."""
