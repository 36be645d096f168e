"""Waiting for the tasks and runs that a run has started, with an eye on wishes and the budget."""

import time

from kapelle.domain.errors import LimitReached
from kapelle.domain.states import FINAL, RUN_FINAL, RunStatus, TaskStatus
from kapelle.engine.notify import Bell
from kapelle.engine.parts import Stage
from kapelle.engine.runs.control import Going, end_run, end_task
from kapelle.engine.runs.limits import SPENT, RunBudget
from kapelle.store import runs, tasks

_PATIENCE_S = 60.0


class Waiting:
    """How one run waits."""

    def __init__(
        self, stage: Stage, bell: Bell, run_id: str, budget: RunBudget, going: Going
    ) -> None:
        self._stage = stage
        self._bell = bell
        self._run_id = run_id
        self._budget = budget
        self._going = going

    async def for_task(self, task_id: str, *, may_ask: bool) -> None:
        """Return when the task has ended; when nothing is left of the budget, end it and raise."""
        spent = False
        with self._bell.listen(task_id, self._run_id) as heard:
            while True:
                task = await self._stage.db.glance(tasks.row, task_id)
                if task["status"] in FINAL:
                    _require_not_spent(task["status"], task["reason"])
                    return
                await self._going.require(still=task["status"] == TaskStatus.RUNNING)
                if task["waiting_for"] == "input" and not may_ask:
                    reason = f"nobody is there to answer: {task['reason']}"
                    await end_task(self._stage, task_id, reason)
                if not spent and (problem := await self._overspent()):
                    spent = True
                    await end_task(self._stage, task_id, SPENT + problem)
                await heard.wait(_PATIENCE_S if spent else await self._budget.patience_s())

    async def for_run(self, run_id: str) -> None:
        """The same for a run inside this one."""
        spent = False
        with self._bell.listen(run_id, self._run_id) as heard:
            while True:
                run = await self._stage.db.glance(runs.row, run_id)
                if run["status"] in RUN_FINAL:
                    _require_not_spent(run["status"], run["reason"])
                    return
                await self._going.require(still=run["status"] == RunStatus.RUNNING)
                if not spent and (problem := await self._overspent()):
                    spent = True
                    await end_run(self._stage, run_id, SPENT + problem)
                await heard.wait(_PATIENCE_S if spent else await self._budget.patience_s())

    async def until(self, deadline: float) -> None:
        """Return at a time (seconds since 1970)."""
        with self._bell.listen(self._run_id) as heard:
            while (left := deadline - time.time()) > 0:
                await self._going.require()
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
