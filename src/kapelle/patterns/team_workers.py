"""The work of a team in one iteration: subgoals at the same time, each merged when it is done."""

import asyncio
from typing import TYPE_CHECKING

from kapelle.patterns import team_roles
from kapelle.patterns.context import Context
from kapelle.patterns.results import TaskResult
from kapelle.patterns.team_roles import Outcome, Subgoal, TeamResult

if TYPE_CHECKING:
    from kapelle.patterns.team import TeamSpec


class Workers:
    """Do the subgoals of the last iteration, and keep the result up to date with each."""

    def __init__(self, ctx: Context, spec: "TeamSpec", result: TeamResult) -> None:
        self._ctx = ctx
        self._spec = spec
        self._result = result
        self._iteration = result.iterations[-1]
        self._ended = {subgoal.id: asyncio.Event() for subgoal in self._iteration.subgoals}
        # In place there are no copies of the files, so that only one may work at a time.
        self._places = spec.max_workers if ctx.is_git else 1

    async def pursue(self, subgoal: Subgoal) -> None:
        """Do a subgoal as soon as those that it depends on are merged."""
        outcome = Outcome(
            id=subgoal.id, title=subgoal.title, status="failed", text_only=subgoal.text_only
        )
        try:
            for other in subgoal.depends_on:
                await self._ended[other].wait()
            before = [item for item in self._iteration.outcomes if item.id in subgoal.depends_on]
            undone = [item.title for item in before if item.status != "merged"]
            if undone or len(before) < len(set(subgoal.depends_on)):
                outcome.status = "blocked"
                outcome.reason = f"it depends on what was not done: {', '.join(undone)}"
            else:
                async with self._ctx.lock("work", self._places):
                    await self._do(subgoal, before, outcome)
            self._add(outcome)
        finally:
            self._ended[subgoal.id].set()

    def _add(self, outcome: Outcome) -> None:
        """Outcomes are in the order of the plan, what it left out last."""
        places = {subgoal.id: place for place, subgoal in enumerate(self._iteration.subgoals)}
        self._iteration.outcomes.append(outcome)
        self._iteration.outcomes.sort(key=lambda item: places.get(item.id, len(places)))

    async def _do(self, subgoal: Subgoal, before: list[Outcome], outcome: Outcome) -> None:
        asked = prompt = team_roles.work(self._spec, subgoal, before)
        for _ in range(1 + self._spec.max_task_retries):
            task = await self._ask(asked, subgoal)
            outcome.tasks.append(task.id)
            outcome.said, outcome.reason = task.text, task.reason
            if task.ok:
                await self._merge(subgoal, task, outcome)
                return
            asked = team_roles.again(prompt, task, in_place=not self._ctx.is_git)

    async def _ask(
        self, prompt: str, subgoal: Subgoal, earlier: TaskResult | None = None
    ) -> TaskResult:
        # Whoever says it is done and has changed nothing is not done.
        return await self._ctx.task(
            prompt,
            title=f"{subgoal.title} (conflict)" if earlier else subgoal.title,
            agent=self._spec.worker,
            model=self._spec.worker_model,
            workspace="own",
            checks=["diff_not_empty"] if self._ctx.is_git and not subgoal.text_only else [],
            continue_from=earlier.id if earlier else None,
        )

    async def _merge(self, subgoal: Subgoal, task: TaskResult, outcome: Outcome) -> None:
        if self._ctx.is_git and (task.changed or not subgoal.text_only):
            async with self._ctx.lock("merge"):
                merged = await self._ctx.merge(task)
                if merged.conflict:
                    outcome.status = "conflict"
                    resolved = await self._resolve(subgoal, task, outcome)
                    if resolved is None:
                        return
                    merged = await self._ctx.merge(resolved)
            if not merged.ok:
                outcome.status = "conflict" if merged.conflict else "failed"
                outcome.reason = merged.problem
                return
            self._result.commit = merged.commit
        outcome.status, outcome.reason = "merged", None

    async def _resolve(
        self, subgoal: Subgoal, task: TaskResult, outcome: Outcome
    ) -> TaskResult | None:
        """Have both sides brought together; None, with the reason, if that did not come about."""
        conflicts = await self._ctx.take_in(task)
        asked = team_roles.resolve(subgoal, conflicts)
        resolved = await self._ask(asked, subgoal, task)
        outcome.tasks.append(resolved.id)
        left = await self._ctx.conflicted(resolved, conflicts) if resolved.ok else []
        await self._ctx.put_away(task)
        if resolved.ok and not left:
            return resolved
        why = f"conflict markers are left in {', '.join(left)}" if left else resolved.reason
        outcome.reason = f"its conflict with others' work was not resolved: {why}"
        return None
