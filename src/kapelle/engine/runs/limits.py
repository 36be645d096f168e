"""What a run may use, its children included: held where attempts begin and while it waits."""

import time

from kapelle.domain.errors import LimitReached
from kapelle.domain.run import Run
from kapelle.domain.states import FINAL, RUN_FINAL, RunStatus, TaskStatus
from kapelle.engine.notify import Notifier
from kapelle.engine.parts import Parts
from kapelle.engine.runs.control import Control, end_run, end_task
from kapelle.patterns.results import Left
from kapelle.patterns.spec import PatternSpec
from kapelle.store import runs, tasks
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

    def __init__(self, parts: Parts, run_id: str, spec: PatternSpec) -> None:
        self._parts = parts
        self._run_id = run_id
        self._spec = spec

    async def _run(self) -> Run:
        return await self._parts.db.glance(runs.get, self._run_id)

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
        return max(0, limit - await self._parts.db.glance(runs.calls, self._run_id))

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
        """Raise LimitReached if a run inside this one, just stored, could call nobody."""
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


_PATIENCE_S = 60.0


class ChildWait:
    """How one run waits."""

    def __init__(
        self, parts: Parts, notifier: Notifier, run_id: str, budget: RunBudget, control: Control
    ) -> None:
        self._parts = parts
        self._notifier = notifier
        self._run_id = run_id
        self._budget = budget
        self._control = control

    async def for_task(self, task_id: str, *, may_ask: bool) -> None:
        """Return when the task has ended; when nothing is left of the budget, end it and raise."""
        spent = False
        with self._notifier.listen(task_id, self._run_id) as heard:
            while True:
                task = await self._parts.db.glance(tasks.row, task_id)
                if task["status"] in FINAL:
                    _require_not_spent(task["status"], task["reason"])
                    return
                await self._control.require(still=task["status"] == TaskStatus.RUNNING)
                if task["waiting_for"] == "input" and not may_ask:
                    reason = f"nobody is there to answer: {task['reason']}"
                    await end_task(self._parts, task_id, reason)
                if not spent and (problem := await self._overspent()):
                    spent = True
                    await end_task(self._parts, task_id, SPENT + problem)
                await heard.wait(_PATIENCE_S if spent else await self._budget.patience_s())

    async def for_run(self, run_id: str) -> None:
        """Return when a run inside this one has ended; out of budget, end it and raise."""
        spent = False
        with self._notifier.listen(run_id, self._run_id) as heard:
            while True:
                run = await self._parts.db.glance(runs.row, run_id)
                if run["status"] in RUN_FINAL:
                    _require_not_spent(run["status"], run["reason"])
                    return
                await self._control.require(still=run["status"] == RunStatus.RUNNING)
                if not spent and (problem := await self._overspent()):
                    spent = True
                    await end_run(self._parts, run_id, SPENT + problem)
                await heard.wait(_PATIENCE_S if spent else await self._budget.patience_s())

    async def until(self, deadline: float) -> None:
        """Return at a time (seconds since 1970)."""
        with self._notifier.listen(self._run_id) as heard:
            while (left := deadline - time.time()) > 0:
                await self._control.require()
                await self._budget.require_time_and_money()
                await heard.wait(min(left, await self._budget.patience_s()))

    async def _overspent(self) -> str | None:
        try:
            await self._budget.require_time_and_money()
        except LimitReached as error:
            return error.message
        return None


def _require_not_spent(status: str, reason: str | None) -> None:
    """Raise what ended the task or run, as its row tells also after a restart."""
    if status in {TaskStatus.CANCELLED, RunStatus.CANCELLED} and (reason or "").startswith(SPENT):
        raise LimitReached((reason or "").removeprefix(SPENT))
