"""What a run may use, its children included, watched also while it waits."""

from kapelle.domain.errors import LimitReached
from kapelle.domain.run import Run
from kapelle.domain.run_specs import PatternSpec
from kapelle.engine.stage import Stage
from kapelle.store import runs

# Running agents tell what they used every few seconds.
_LOOK_S = 2.0
_LONG_S = 60.0


class RunBudget:
    """The limits of one run against what it has spent."""

    def __init__(self, stage: Stage, run_id: str, spec: PatternSpec) -> None:
        self._stage = stage
        self._run_id = run_id
        self._spec = spec

    async def _run(self) -> Run:
        return await self._stage.db.glance(runs.get, self._run_id)

    async def left_s(self) -> float | None:
        """Seconds that are left, None for any number."""
        if self._spec.max_seconds is None:
            return None
        return max(0.0, self._spec.max_seconds - (await self._run()).spent.seconds)

    async def left_usd(self) -> float | None:
        if self._spec.budget_usd is None:
            return None
        return max(0.0, self._spec.budget_usd - ((await self._run()).spent.cost_usd or 0.0))

    async def require(self) -> None:
        """Raise LimitReached when nothing is left of something, before an agent is called."""
        await self.require_time_and_money()
        limit = self._spec.max_agent_calls
        if limit is not None and (await self._run()).spent.agent_calls >= limit:
            raise LimitReached(f"It may call agents {limit} times, and has.")

    async def require_time_and_money(self) -> None:
        """The same for what runs out while one waits."""
        if await self.left_s() == 0:
            raise LimitReached(f"Its {self._spec.max_seconds:g} s are over.")
        if await self.left_usd() == 0:
            raise LimitReached(f"Its budget of ${self._spec.budget_usd:g} is spent.")

    async def patience_s(self) -> float:
        """How long one may wait before looking again."""
        left = await self.left_s()
        longest = _LONG_S if self._spec.budget_usd is None else _LOOK_S
        return longest if left is None else max(0.01, min(left, longest))
