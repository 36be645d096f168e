"""Waiting for the tasks and runs that a run has started, with an eye on wishes and the budget."""

import asyncio
import time

from kapelle.domain.errors import Conflict, LimitReached
from kapelle.domain.states import FINAL, RUN_FINAL, RunStatus, TaskStatus
from kapelle.engine import actions, run_actions
from kapelle.engine.bell import Bell
from kapelle.engine.stage import Stage
from kapelle.patterns.budget import RunBudget
from kapelle.patterns.journal import Cancelled, Paused
from kapelle.store import runs, tasks

_SPENT = "the run has nothing left: "


class Waiting:
    """How one run waits."""

    def __init__(self, stage: Stage, bell: Bell, run_id: str, budget: RunBudget) -> None:
        self._stage = stage
        self._bell = bell
        self._run_id = run_id
        self._budget = budget

    async def for_task(self, task_id: str, *, may_ask: bool) -> None:
        """Return when the task has ended; when nothing is left of the budget, end it and raise."""
        spent: LimitReached | None = None
        with self._bell.listen(task_id, self._run_id) as heard:
            while True:
                task = await self._stage.db.glance(tasks.row, task_id)
                if task["status"] in FINAL:
                    if spent is not None:
                        raise spent
                    return
                await self._require_going(still=task["status"] == TaskStatus.RUNNING)
                if task["waiting_for"] == "input" and not may_ask:
                    await self._end_task(task_id, f"nobody is there to answer: {task['reason']}")
                if spent is None:
                    spent = await self._overspent()
                    if spent is not None:
                        await self._end_task(task_id, _SPENT + spent.message)
                        continue
                await heard.wait(await self._budget.patience_s() if spent is None else 60.0)

    async def for_run(self, run_id: str) -> None:
        """The same for a run inside this one."""
        spent: LimitReached | None = None
        with self._bell.listen(run_id, self._run_id) as heard:
            while True:
                run = await self._stage.db.glance(runs.row, run_id)
                if run["status"] in RUN_FINAL:
                    if spent is not None:
                        raise spent
                    return
                await self._require_going(still=run["status"] == RunStatus.RUNNING)
                if spent is None:
                    spent = await self._overspent()
                    if spent is not None:
                        await self._end_run(run_id, _SPENT + spent.message)
                        continue
                await heard.wait(await self._budget.patience_s() if spent is None else 60.0)

    async def until(self, deadline: float) -> None:
        """Return at a time (seconds since 1970)."""
        with self._bell.listen(self._run_id) as heard:
            while (left := deadline - time.time()) > 0:
                await self._require_going(still=False)
                await self._budget.require_time_and_money()
                await heard.wait(min(left, await self._budget.patience_s()))

    async def for_leftovers(self) -> None:
        """Return when no task of the run, nor of those inside it, is open; cancels what is."""
        with self._bell.listen(self._run_id) as heard:
            while True:
                family = await self._stage.db.read(runs.family, self._run_id)
                left = await self._stage.db.read(runs.open_tasks, family)
                if not left:
                    return
                for task in left:
                    await self._end_task(task["id"], f"{self._run_id} was cancelled")
                await heard.wait(1.0)

    async def _require_going(self, *, still: bool) -> None:
        """Stop waiting if a person wants so; a pause lets what is still at work end first."""
        run = await self._stage.db.glance(runs.row, self._run_id)
        if run["stop"] in {"cancel", "abandon"}:
            raise Cancelled
        if run["stop"] == "pause" and not still:
            raise Paused

    async def _overspent(self) -> LimitReached | None:
        try:
            await self._budget.require_time_and_money()
        except LimitReached as error:
            return error
        return None

    async def _end_task(self, task_id: str, reason: str) -> None:
        try:
            wish = await self._stage.db.write(actions.cancel, task_id, reason)
        except Conflict:
            return  # it has just ended by itself
        if wish is not None:
            self._stage.stop(*wish)
            await asyncio.sleep(0)

    async def _end_run(self, run_id: str, reason: str) -> None:
        try:
            await run_actions.cancel(self._stage, run_id, reason)
        except Conflict:
            return
