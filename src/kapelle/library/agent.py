"""What the library asks of an agent: one method, a request in and a response out."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kapelle.domain.task import Usage


class Stop:
    """A request, from any thread, that a piece of work ends; the first reason counts.

    Code that takes long looks at `wanted` now and then, or uses `wait` to sleep.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reasons: list[str] = []

    @property
    def wanted(self) -> bool:
        return self._event.is_set()

    @property
    def reason(self) -> str:
        """Why, once it is wanted."""
        if self._reasons:
            return self._reasons[0]
        return ""

    def request(self, reason: str) -> None:
        self._reasons.append(reason)
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until it is wanted or the time has passed; whether it is wanted."""
        return self._event.wait(timeout_s)


@dataclass(frozen=True, slots=True)
class Request:
    """One piece of work. An agent that knows nothing of limits needs prompt and cwd alone."""

    prompt: str
    system: str | None = None
    cwd: Path | None = None
    role: str = "worker"  # planner, worker or reviewer in a team
    title: str = ""
    timeout_s: float | None = None
    budget_usd: float | None = None  # what is left to be spent
    stop: Stop = field(default_factory=Stop, repr=False, compare=False)
    """Tells when the work must end."""
    spent: Callable[[float], None] = field(default=lambda _cost: None, repr=False, compare=False)
    """To be called, now and then, with what the work has cost so far."""


@dataclass(frozen=True, slots=True)
class Response:
    """What came of it; one that is not ok says why."""

    text: str = ""
    ok: bool = True
    reason: str | None = None
    stderr: str = ""  # the end of what a program wrote there
    cost_usd: float | None = None
    usage: Usage | None = None
    session_id: str | None = None
    hopeless: bool = False
    """Whether the agent itself cannot work as it is, so that no other request would help."""


class Agent(ABC):
    """Whoever does the work. An exception that run raises is a failed result, never a crash.

    run is called in threads, for several requests at once.
    """

    name: str = "agent"
    cwd: Path | None = None  # where it works when a request does not say
    ends_within_s: float = 0.5
    """How long run may take to return once it is told to stop; then it is left to itself."""

    @abstractmethod
    def run(self, request: Request) -> Response:
        """Do the work and return what came of it."""
