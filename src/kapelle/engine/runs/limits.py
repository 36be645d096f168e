"""What a run may use, its children included: held where attempts begin and while it waits."""

import time

from kapelle.domain.budget import NOTHING, Budget, Left, Spent, limit_reason
from kapelle.domain.errors import LimitReached
from kapelle.domain.states import FINAL, RUN_FINAL, RunStatus, TaskStatus
from kapelle.engine.parts import Parts
from kapelle.engine.runs.control import Control, end_run, end_task
from kapelle.patterns.spec import PatternSpec
from kapelle.store import runs, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row

# Running agents tell what they used every few seconds.
_LOOK_S = 2.0
_LONG_S = 60.0


class RunBudget:
    """The limits of one run against what it has spent."""

    def __init__(self, parts: Parts, run_id: str, spec: PatternSpec) -> None:
        self._parts = parts
        self._run_id = run_id
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
        return self._budget.require(await self._parts.db.glance(self._spent))

    async def patience_s(self) -> float:
        """How long one may wait before looking again."""
        left = (await self.left()).seconds
        longest = _LONG_S if self._budget.max_usd is None else _LOOK_S
        return longest if left is None else max(0.01, min(left, longest))


_PATIENCE_S = 60.0


class ChildWait:
    """How one run waits."""

    def __init__(self, parts: Parts, run_id: str, budget: RunBudget, control: Control) -> None:
        self._parts = parts
        self._run_id = run_id
        self._budget = budget
        self._control = control

    async def for_task(self, task_id: str, *, may_ask: bool) -> None:
        """Return when the task has ended; when nothing is left of the budget, end it and raise."""
        spent = False
        with self._parts.db.watch(task_id, self._run_id) as changed:
            while True:
                task = await self._parts.db.glance(tasks.row, task_id)
                if task["status"] in FINAL:
                    _require_not_spent(task)
                    return
                await self._control.require(still=task["status"] == TaskStatus.RUNNING)
                if task["waiting_for"] == "input" and not may_ask:
                    reason = f"nobody is there to answer: {task['reason']}"
                    await end_task(self._parts, task_id, reason)
                if not spent and (limit := await self._limit_reached()):
                    spent = True
                    await end_task(self._parts, task_id, limit_reason(limit), limit)
                await changed.wait(_PATIENCE_S if spent else await self._budget.patience_s())

    async def for_run(self, run_id: str) -> None:
        """Return when a run inside this one has ended; out of budget, end it and raise."""
        spent = False
        with self._parts.db.watch(run_id, self._run_id) as changed:
            while True:
                run = await self._parts.db.glance(runs.row, run_id)
                if run["status"] in RUN_FINAL:
                    _require_not_spent(run)
                    return
                await self._control.require(still=run["status"] == RunStatus.RUNNING)
                if not spent and (limit := await self._limit_reached()):
                    spent = True
                    reason = limit_reason(limit)
                    await end_run(self._parts, run_id, reason, limit_reached=limit)
                await changed.wait(_PATIENCE_S if spent else await self._budget.patience_s())

    async def until(self, deadline: float) -> None:
        """Return at a time (seconds since 1970)."""
        with self._parts.db.watch(self._run_id) as changed:
            while (left := deadline - time.time()) > 0:
                await self._control.require()
                await self._budget.require_time_and_money()
                await changed.wait(min(left, await self._budget.patience_s()))

    async def _limit_reached(self) -> str | None:
        try:
            await self._budget.require_time_and_money()
        except LimitReached as error:
            return error.message
        return None


def _require_not_spent(row: Row) -> None:
    """Raise what ended the task or run, as its row tells also after a restart."""
    if row["status"] == TaskStatus.CANCELLED and row["limit_reached"] is not None:
        raise LimitReached(row["limit_reached"])
