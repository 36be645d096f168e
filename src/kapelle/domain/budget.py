"""A budget: limits on time, money and agent calls, and what remains of them."""

from dataclasses import dataclass

from kapelle.domain.errors import LimitReached
from kapelle.domain.task import Record

# The sum of ten costs of $0.01 is slightly below $0.10 in floating-point arithmetic.
_ROUNDING_USD = 1e-9


class Spent(Record):
    """The time, agent calls and money that a run and its children have used so far."""

    seconds: float
    agent_calls: int
    cost_usd: float | None


NOTHING = Spent(seconds=0.0, agent_calls=0, cost_usd=None)


class RemainingBudget(Record):
    """The remaining amounts of a run's limits; None where there is no limit."""

    seconds: float | None
    usd: float | None
    agent_calls: int | None


@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """Limits of a budget, None for an unlimited amount. The owner counts what is spent."""

    max_seconds: float | None = None
    max_usd: float | None = None
    max_agent_calls: int | None = None

    def left(self, spent: Spent) -> RemainingBudget:
        """Return the remaining amounts, never less than 0."""
        seconds = None
        if self.max_seconds is not None:
            seconds = max(0.0, self.max_seconds - spent.seconds)
        usd = None
        if self.max_usd is not None:
            usd = subtract_usd(self.max_usd, spent.cost_usd)
        calls = None
        if self.max_agent_calls is not None:
            calls = max(0, self.max_agent_calls - spent.agent_calls)
        return RemainingBudget(seconds=seconds, usd=usd, agent_calls=calls)

    def require(self, spent: Spent) -> RemainingBudget:
        """Return the remaining amounts; raise LimitReached if no time or no money remains.

        Agent calls are not checked here: work that is under way needs no further call.
        """
        remaining = self.left(spent)
        if remaining.seconds == 0:
            raise LimitReached(f"Time limit of {self.max_seconds:g} s reached.")
        if remaining.usd == 0:
            raise LimitReached(format_money_limit(self.max_usd or 0.0))
        return remaining

    def require_call(self, spent: Spent) -> RemainingBudget:
        """Return the remaining amounts; raise LimitReached if no agent may be called any more."""
        remaining = self.require(spent)
        if remaining.agent_calls == 0:
            raise LimitReached(format_call_limit(self.max_agent_calls or 0))
        return remaining


def subtract_usd(budget_usd: float, cost_usd: float | None) -> float:
    """Return the remaining money; it is exactly 0 once the budget is used up."""
    remaining = budget_usd - (cost_usd or 0.0)
    if remaining <= _ROUNDING_USD:
        return 0.0
    return remaining


def format_money_limit(budget_usd: float) -> str:
    """Return the reason of work that has used up its budget."""
    return f"Budget of ${budget_usd:g} reached."


def format_call_limit(limit: int, run_id: str | None = None) -> str:
    """Return the reason of work that has used up its agent calls, or those of an outer run."""
    reason = f"Limit of {limit} agent calls reached."
    if limit == 1:
        reason = "Limit of 1 agent call reached."
    if run_id is None:
        return reason
    return f"{reason} It is a limit of the outer run {run_id}."


def format_limit_reason(limit: str) -> str:
    """Return the reason of a cancelled task or run whose outer run has reached a limit."""
    return f"its run reached a limit: {limit}"
