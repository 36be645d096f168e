"""What a run has used of its budget, told also while agents are still at work."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kapelle.domain.errors import LimitReached
from kapelle.library.agent import Response
from kapelle.library.budget import Budget
from kapelle.library.stop import Stop

# Ten times a cent is a little less than ten cents, to a computer.
_ROUNDING_USD = 1e-9


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used; a cost of None is unknown."""

    agent_calls: int = 0
    seconds: float = 0.0
    cost_usd: float | None = None


class Call:
    """One call of an agent that is under way."""

    def __init__(self, ledger: "Ledger", stop: Stop) -> None:
        self._ledger = ledger
        self.stop = stop
        self.cost_usd: float | None = None

    def tell(self, cost_usd: float) -> None:
        """What it has cost so far; called from any thread."""
        self.cost_usd = cost_usd
        self._ledger.look()


class Ledger:
    """Counts for one run, from what an earlier part of it had used."""

    def __init__(self, budget: Budget, before: Spent | None = None) -> None:
        before = before or Spent()
        self._budget = budget
        self._lock = threading.Lock()
        self._began_at = time.monotonic() - before.seconds
        self._calls = before.agent_calls
        self._cost_usd = before.cost_usd
        self._under_way: list[Call] = []
        self.exhausted: str | None = None
        """The sentence about the limit that ended the run, if one did."""

    @property
    def spent(self) -> Spent:
        with self._lock:
            return Spent(self._calls, time.monotonic() - self._began_at, self._cost())

    def _cost(self) -> float | None:
        known = [self._cost_usd, *(call.cost_usd for call in self._under_way)]
        costs = [cost for cost in known if cost is not None]
        return sum(costs) if costs else None

    @property
    def left_s(self) -> float | None:
        limit = self._budget.max_seconds
        return None if limit is None else max(0.0, limit - self.spent.seconds)

    @property
    def left_usd(self) -> float | None:
        limit = self._budget.max_usd
        if limit is None:
            return None
        left = limit - (self.spent.cost_usd or 0.0)
        return 0.0 if left <= _ROUNDING_USD else left

    @property
    def left_calls(self) -> int | None:
        limit = self._budget.max_agent_calls
        return None if limit is None else max(0, limit - self.spent.agent_calls)

    def require(self) -> None:
        """Raise LimitReached when time or money is used up."""
        if self.left_s == 0:
            self._end(f"Its {self._budget.max_seconds:g} s are over.")
        if self.left_usd == 0:
            self._end(f"Its budget of ${self._budget.max_usd:g} is spent.")

    def require_call(self) -> None:
        """Raise LimitReached when no agent may be called any more."""
        self.require()
        if self.left_calls == 0:
            self._end(f"It may call agents {self._budget.max_agent_calls} times, and has.")

    @contextmanager
    def call(self, stop: Stop) -> Iterator[Call]:
        """Count a call of an agent; raises LimitReached when there may be none."""
        self.require_call()
        call = Call(self, stop)
        with self._lock:
            self._calls += 1
            self._under_way.append(call)
        try:
            yield call
        finally:
            with self._lock:
                self._under_way.remove(call)
                if call.cost_usd is not None:
                    self._cost_usd = (self._cost_usd or 0.0) + call.cost_usd

    def look(self) -> None:
        """End all that is under way when the money is spent."""
        if self.left_usd == 0:
            with self._lock:
                calls = list(self._under_way)
            for call in calls:
                call.stop.ask(f"the budget of ${self._budget.max_usd:g} is spent")

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Time that does not count, such as that of a person who thinks about an answer."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._began_at += time.monotonic() - began

    def _end(self, sentence: str) -> None:
        self.exhausted = sentence
        raise LimitReached(sentence)


def told_by(response: Response) -> float | None:
    """What a response says that the work cost."""
    if response.cost_usd is not None:
        return response.cost_usd
    return response.usage.cost_usd if response.usage else None
