"""What one attempt may use, and what is said when it has."""

from dataclasses import dataclass

from kapelle.domain.task import Usage
from kapelle.engine.parts import Stage
from kapelle.engine.work import Work
from kapelle.store import attempts

# Ten times a cent is a little less than ten cents, to a computer.
_ROUNDING_USD = 1e-9


@dataclass(frozen=True)
class Limits:
    """Turns of one attempt, and money of the whole task less what was spent before."""

    max_turns: int | None
    budget_usd: float | None
    spent_usd: float
    strict: bool  # whether somebody asked for them, rather than being capped for safety

    @property
    def budget_left_usd(self) -> float | None:
        return None if self.budget_usd is None else max(0.0, self.budget_usd - self.spent_usd)

    def exceeded(self, usage: Usage) -> str | None:
        """The sentence about the limit that was reached; None while there is room."""
        if self.max_turns is not None and usage.turns > self.max_turns:
            return f"stopped at its limit of {self.max_turns} turns"
        spent = self.spent_usd + (usage.cost_usd or 0)
        if self.budget_usd is not None and spent + _ROUNDING_USD >= self.budget_usd:
            return f"stopped at its budget: ${spent:.4f} spent of ${self.budget_usd:g}"
        return None

    def is_blind(self, usage: Usage) -> bool:
        """Whether there is a budget and no way to tell what was spent of it."""
        return self.budget_usd is not None and usage.cost_usd is None and usage.output_tokens > 0

    def near(self, usage: Usage, share: float) -> list[tuple[str, str]]:
        """The limits of which this share is used, each with a sentence."""
        found = []
        if self.max_turns is not None and usage.turns >= share * self.max_turns:
            found.append(("turns", f"{usage.turns} of {self.max_turns} turns are used"))
        spent = self.spent_usd + (usage.cost_usd or 0)
        if self.budget_usd is not None and spent + _ROUNDING_USD >= share * self.budget_usd:
            found.append(("budget", f"${spent:.4f} of ${self.budget_usd:g} are spent"))
        return found


async def limits_of(stage: Stage, work: Work) -> Limits:
    task, defaults = work.task, work.settings.tasks
    budget: float | None = task["budget_usd"] or defaults.budget_usd
    spent = 0.0
    if budget is not None:
        rows = await stage.db.read(attempts.of_task, work.task_id)
        spent = sum(row["cost_usd"] or 0.0 for row in rows if row["id"] != work.attempt_id)
    return Limits(
        max_turns=task["max_turns"] or defaults.max_turns,
        budget_usd=budget,
        spent_usd=spent,
        strict=task["max_turns"] is not None or budget is not None,
    )
