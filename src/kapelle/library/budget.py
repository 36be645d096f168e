"""Limit what a run may use, and count its usage, also while agents are still at work."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kapelle.domain.budget import NOTHING, RemainingBudget, Spent
from kapelle.domain.budget import BudgetLimits as Limits
from kapelle.domain.errors import InvalidInput
from kapelle.library.agent import Stop


@dataclass(frozen=True)
class Budget(Limits):
    """Limits of one run; None is no limit. They are checked before and during all calls."""

    max_iterations: int = 5
    max_task_retries: int = 1

    def __post_init__(self) -> None:
        for name, least in (("max_iterations", 1), ("max_task_retries", 0), ("max_agent_calls", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                text = f"{name} must be a whole number of at least {least}; it is {value!r}."
                raise InvalidInput(text)
        for name in ("max_seconds", "max_usd"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"{name} must be more than 0, or None; it is {value!r}.")


class Account:
    """The usage of one run, added to that of its earlier parts."""

    def __init__(self, budget: Budget, before: Spent = NOTHING) -> None:
        self._limits = budget
        self._lock = threading.Lock()
        self._began_at = time.monotonic() - before.seconds
        self._calls = before.agent_calls
        self._cost_usd = before.cost_usd
        # The cost so far of each running call; None if its agent has not reported any.
        self._running: dict[Stop, float | None] = {}

    @property
    def spent(self) -> Spent:
        """The usage so far, with that of running calls."""
        with self._lock:
            costs = [cost for cost in self._running.values() if cost is not None]
            if self._cost_usd is not None:
                costs.insert(0, self._cost_usd)
            return Spent(
                seconds=time.monotonic() - self._began_at,
                agent_calls=self._calls,
                cost_usd=sum(costs) if costs else None,
            )

    @property
    def left(self) -> RemainingBudget:
        """The remaining budget."""
        return self._limits.left(self.spent)

    def within(self, limit_s: float | None) -> float | None:
        """Return a time limit, reduced to the run's remaining time."""
        limits = [limit for limit in (limit_s, self.left.seconds) if limit is not None]
        return min(limits, default=None)

    def require(self) -> None:
        """Raise LimitReached if time or money is used up."""
        self._limits.require(self.spent)

    def require_call(self) -> None:
        """Raise LimitReached if no further call of an agent is allowed."""
        self._limits.require_call(self.spent)

    @contextmanager
    def call(self, stop: Stop) -> Iterator[None]:
        """Count a call of an agent; raise LimitReached if no further call is allowed."""
        self.require_call()
        with self._lock:
            self._calls += 1
            self._running[stop] = None
        try:
            yield
        finally:
            with self._lock:
                cost_usd = self._running.pop(stop)
                if cost_usd is not None:
                    self._cost_usd = (self._cost_usd or 0.0) + cost_usd

    def report(self, stop: Stop, cost_usd: float) -> None:
        """Note the cost of a call so far, from any thread; stop all calls at the limit."""
        with self._lock:
            if stop in self._running:
                self._running[stop] = cost_usd
        if self.left.usd == 0:
            with self._lock:
                calls = list(self._running)
            for call in calls:
                call.request(f"the budget of ${self._limits.max_usd:g} is spent")

    @contextmanager
    def free_time(self) -> Iterator[None]:
        """Exclude the time of a block, such as that until a person answers a question."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._began_at += time.monotonic() - began
