"""What a run may use, its children included: held where attempts begin and while it waits."""

import time

from kapelle.domain.budget import NOTHING, Budget, Left, Spent, left_usd, limit_reason, money_spent
from kapelle.domain.errors import LimitReached
from kapelle.domain.ids import is_id
from kapelle.domain.states import FINAL, TaskStatus
from kapelle.engine.parts import Parts
from kapelle.engine.runs.control import Control, end_child
from kapelle.patterns.results import MAKES_WAY, NOBODY
from kapelle.patterns.spec import PatternSpec
from kapelle.store import children, runs, tasks
from kapelle.store.database import Connection

# Running agents tell what they used every few seconds.
_LOOK_S = 2.0
_LONG_S = 60.0


class RunBudget:
    """The limits of one run against what it has spent, and how it waits within them."""

    def __init__(self, parts: Parts, run_id: str, spec: PatternSpec, control: Control) -> None:
        self._parts, self._run_id, self.control = parts, run_id, control
        self._budget = Budget(
            max_seconds=spec.max_seconds,
            max_usd=spec.budget_usd,
            max_agent_calls=spec.max_agent_calls,
        )

    async def left(self) -> Left:
        return self._budget.left(await self._parts.db.glance(self._spent))

    def _spent(self, connection: Connection) -> Spent:
        """What the run has used, calls that were promised to somebody included."""
        if self._budget == Budget():
            return NOTHING  # nobody asks how much it is
        spent = runs.get(connection, self._run_id).spent
        if self._budget.max_agent_calls is None:
            return spent
        return spent.model_copy(update={"agent_calls": runs.calls(connection, self._run_id)})

    def require_call(self, connection: Connection, *, one_more: bool = False) -> None:
        """Raise LimitReached if a task that was just stored, or one more to come, is too many.

        Counted in its own transaction, for branches may begin theirs at the same time, and for
        the runs around this one as well.
        """
        limit = runs.calls_limit(connection, self._run_id, one_more=one_more)
        if limit is not None:
            raise LimitReached(limit)

    async def require_time_and_money(self) -> Left:
        """What is left; LimitReached when that is nothing of what runs out while one waits."""
        left = self._budget.require(await self._parts.db.glance(self._spent))
        if not await self._parts.db.glance(children.in_tree, self._run_id):
            return left
        # What else the task spends that asked for the run is spent of the same budget.
        of_root = self._parts.settings().children.budget_usd
        found = await self._parts.db.read(children.tightest, self._run_id, of_root)
        if found is None:
            return left
        if not (usd := left_usd(*found)):
            raise LimitReached(money_spent(found[0]))
        return left.model_copy(update={"usd": usd})

    async def _look_again_s(self) -> float:
        """How long one may wait before looking again."""
        left = (await self.left()).seconds
        longest = _LONG_S if self._budget.max_usd is None else _LOOK_S
        return longest if left is None else max(0.01, min(left, longest))

    async def for_child(self, child_id: str, *, may_ask: bool = True, patient: bool = True) -> None:
        """Return when a task or run inside this one has ended; when nothing is left of the budget,
        end it and raise LimitReached."""
        row = runs.row if is_id("run", child_id) else tasks.row
        spent = False
        with self._parts.db.watch(child_id, self._run_id) as changed:
            while (child := await self._parts.db.glance(row, child_id))["status"] not in FINAL:
                await self.control.require(still=child["status"] == TaskStatus.RUNNING)
                if child["waiting_for"] == "input" and not may_ask:
                    reason = f"{NOBODY}: {child['reason']}"
                    await end_child(self._parts, child_id, reason)
                elif child["waiting_for"] == "rate_limit" and not patient:
                    await end_child(self._parts, child_id, f"{MAKES_WAY}: {child['reason']}")
                if not spent and (limit := await self._limit_reached()):
                    spent = True
                    reason = limit_reason(limit)
                    await end_child(self._parts, child_id, reason, limit=limit)
                await changed.wait(_LONG_S if spent else await self._look_again_s())
        # As its row tells also after a restart.
        if child["status"] == TaskStatus.CANCELLED and child["limit_reached"] is not None:
            raise LimitReached(child["limit_reached"])

    async def until(self, deadline: float) -> None:
        """Return at a time (seconds since 1970)."""
        with self._parts.db.watch(self._run_id) as changed:
            while (left := deadline - time.time()) > 0:
                await self.control.require()
                await self.require_time_and_money()
                await changed.wait(min(left, await self._look_again_s()))

    async def _limit_reached(self) -> str | None:
        try:
            await self.require_time_and_money()
        except LimitReached as error:
            return error.message
        return None
