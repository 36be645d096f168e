"""What a run may use, and what it has used, counted also while agents are still at work."""

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
    """Limits of one run, None for any amount; they hold while agents work, and for all calls."""

    max_iterations: int = 5
    max_task_retries: int = 1

    def __post_init__(self) -> None:
        for name, least in (("max_iterations", 1), ("max_task_retries", 0), ("max_agent_calls", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                what = f"a whole number from {least} on"
                raise InvalidInput(f"{name} must be {what}; it is {value!r}.")
        for name in ("max_seconds", "max_usd"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"{name} must be more than 0, or None; it is {value!r}.")


class Account:
    """What one run has used of its limits, from what an earlier part of it had used."""

    def __init__(self, budget: Budget, before: Spent = NOTHING) -> None:
        self._limits = budget
        self._lock = threading.Lock()
        self._began_at = time.monotonic() - before.seconds
        self._calls = before.agent_calls
        self._cost_usd = before.cost_usd
        # What each call that is under way has cost so far, if it says so.
        self._under_way: dict[Stop, float | None] = {}

    @property
    def spent(self) -> Spent:
        with self._lock:
            known = [self._cost_usd, *self._under_way.values()]
            costs = [cost for cost in known if cost is not None]
            return Spent(
                seconds=time.monotonic() - self._began_at,
                agent_calls=self._calls,
                cost_usd=sum(costs) if costs else None,
            )

    @property
    def left(self) -> RemainingBudget:
        return self._limits.left(self.spent)

    def within(self, limit_s: float | None) -> float | None:
        """A time limit, cut down to what is left of the run's time."""
        limits = [limit for limit in (limit_s, self.left.seconds) if limit is not None]
        return min(limits, default=None)

    def require(self) -> None:
        """Raise LimitReached when time or money is used up."""
        self._limits.require(self.spent)

    def require_call(self) -> None:
        """Raise LimitReached when no agent may be called any more."""
        self._limits.require_call(self.spent)

    @contextmanager
    def call(self, stop: Stop) -> Iterator[None]:
        """Count a call of an agent; raises LimitReached when there may be none."""
        self.require_call()
        with self._lock:
            self._calls += 1
            self._under_way[stop] = None
        try:
            yield
        finally:
            with self._lock:
                cost_usd = self._under_way.pop(stop)
                if cost_usd is not None:
                    self._cost_usd = (self._cost_usd or 0.0) + cost_usd

    def report(self, stop: Stop, cost_usd: float) -> None:
        """Take what a call has cost so far, from any thread; all end when the money is spent."""
        with self._lock:
            if stop in self._under_way:
                self._under_way[stop] = cost_usd
        if self.left.usd == 0:
            with self._lock:
                calls = list(self._under_way)
            for call in calls:
                call.request(f"the budget of ${self._limits.max_usd:g} is spent")

    @contextmanager
    def free_time(self) -> Iterator[None]:
        """Time that does not count, such as that of a person who thinks about an answer."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._began_at += time.monotonic() - began
