"""A budget: how much time, money and how many calls of agents something may use."""

from dataclasses import dataclass

from kapelle.domain.errors import LimitReached
from kapelle.domain.task import Record

# Ten times a cent is a little less than ten cents, to a computer.
_ROUNDING_USD = 1e-9


class Spent(Record):
    """What a run has used so far, its children included."""

    seconds: float
    agent_calls: int
    cost_usd: float | None


NOTHING = Spent(seconds=0.0, agent_calls=0, cost_usd=None)


class RemainingBudget(Record):
    """What is left of a run's limits; None where there is none."""

    seconds: float | None
    usd: float | None
    agent_calls: int | None


@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """The limits, None for any amount; what was spent is counted by whoever owns the budget."""

    max_seconds: float | None = None
    max_usd: float | None = None
    max_agent_calls: int | None = None

    def left(self, spent: Spent) -> RemainingBudget:
        """What may still be used, never less than 0."""
        seconds = self.max_seconds
        usd = self.max_usd
        calls = self.max_agent_calls
        return RemainingBudget(
            seconds=None if seconds is None else max(0.0, seconds - spent.seconds),
            usd=None if usd is None else subtract_usd(usd, spent.cost_usd),
            agent_calls=None if calls is None else max(0, calls - spent.agent_calls),
        )

    def require(self, spent: Spent) -> RemainingBudget:
        """What is left; LimitReached when time or money is used up, which work itself uses."""
        left = self.left(spent)
        if left.seconds == 0:
            raise LimitReached(f"Its {self.max_seconds:g} s are over.")
        if left.usd == 0:
            raise LimitReached(format_money_limit(self.max_usd or 0.0))
        return left

    def require_call(self, spent: Spent) -> RemainingBudget:
        """What is left; LimitReached when no agent may be called any more."""
        left = self.require(spent)
        if left.agent_calls == 0:
            raise LimitReached(format_call_limit("It", self.max_agent_calls or 0))
        return left


def subtract_usd(budget_usd: float, cost_usd: float | None) -> float:
    """What is left of an amount of money; 0 exactly when it is spent."""
    left = budget_usd - (cost_usd or 0.0)
    return 0.0 if left <= _ROUNDING_USD else left


def format_money_limit(budget_usd: float) -> str:
    return f"Its budget of ${budget_usd:g} is spent."


def format_call_limit(who: str, limit: int) -> str:
    return f"{who} may call agents {limit} times, and has."


def format_limit_reason(limit: str) -> str:
    """Why a task or run was cancelled whose run has reached this limit."""
    return f"the run has nothing left: {limit}"
