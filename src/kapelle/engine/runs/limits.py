"""How often a run may call agents, held where attempts begin."""

from kapelle.domain.errors import LimitReached
from kapelle.domain.run import Run
from kapelle.engine.parts import Stage
from kapelle.patterns.results import Left
from kapelle.patterns.spec import PatternSpec
from kapelle.store import runs
from kapelle.store.database import Connection

# By this a run tells a task that ended for its sake from one that somebody cancelled.
SPENT = "the run has nothing left: "


def too_many_calls(connection: Connection, run_id: str, *, one_more: bool) -> str | None:
    """Why a run, or one around it, may not have called that often; one_more counts one to come."""
    around: str | None = run_id
    while around is not None:
        run = runs.row(connection, around)
        limit = run["spec"].get("max_agent_calls")
        if limit is not None:
            if one_more:
                called = runs.attempts_made(connection, around) + 1
            else:
                called = runs.calls(connection, around)
            if called > limit:
                who = "It" if around == run_id else f"{around}, around it,"
                return f"{who} may call agents {limit} times, and has."
        around = run["parent_id"]
    return None


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

    async def left_calls(self) -> int | None:
        """Calls of agents that nobody has been promised."""
        limit = self._spec.max_agent_calls
        if limit is None:
            return None
        return max(0, limit - await self._stage.db.glance(runs.calls, self._run_id))

    async def left(self) -> Left:
        return Left(
            seconds=await self.left_s(),
            usd=await self.left_usd(),
            agent_calls=await self.left_calls(),
        )

    def require_call(self, connection: Connection) -> None:
        """Raise LimitReached if a task that was just stored is one too many.

        Counted in its own transaction, for branches may begin theirs at the same time, and for
        the runs around this one as well.
        """
        problem = too_many_calls(connection, self._run_id, one_more=False)
        if problem is not None:
            raise LimitReached(problem)

    def require_more_calls(self, connection: Connection) -> None:
        """The same for a run inside this one, which is of no use if it may call nobody."""
        problem = too_many_calls(connection, self._run_id, one_more=True)
        if problem is not None:
            raise LimitReached(problem)

    async def require_time_and_money(self) -> Left:
        """What is left; LimitReached when that is nothing of what runs out while one waits."""
        left = await self.left()
        if left.seconds == 0:
            raise LimitReached(f"Its {self._spec.max_seconds:g} s are over.")
        if left.usd == 0:
            raise LimitReached(f"Its budget of ${self._spec.budget_usd:g} is spent.")
        return left

    async def patience_s(self) -> float:
        """How long one may wait before looking again."""
        left = await self.left_s()
        longest = _LONG_S if self._spec.budget_usd is None else _LOOK_S
        return longest if left is None else max(0.01, min(left, longest))
