"""The workers of a team: each subgoal in a worktree of its own, merged when its time has come."""

import asyncio

from kapelle.domain.run_specs import TeamSpec
from kapelle.patterns.context import Context
from kapelle.patterns.results import TaskResult
from kapelle.patterns.team import prompts
from kapelle.patterns.team.shapes import Outcome, Subgoal


class Workers:
    """One iteration's work: a subgoal begins when those that it depends on are merged."""

    def __init__(self, ctx: Context, spec: TeamSpec, subgoals: list[Subgoal]) -> None:
        self._ctx = ctx
        self._spec = spec
        self._subgoals = subgoals
        self._outcomes: dict[str, Outcome] = {}
        self.tip: str | None = None  # what the run's branch holds since the last merge
        self._ended = {subgoal.id: asyncio.Event() for subgoal in subgoals}
        # In place there are no copies of the files, so that only one may work at a time.
        self._places = spec.max_workers if ctx.is_git else 1

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of each subgoal so far, in the order of the plan."""
        return [self._outcomes[item.id] for item in self._subgoals if item.id in self._outcomes]

    async def work(self) -> None:
        await self._ctx.gather(*(self._pursue(subgoal) for subgoal in self._subgoals))

    async def _pursue(self, subgoal: Subgoal) -> None:
        try:
            for other in subgoal.depends_on:
                await self._ended[other].wait()
            before = [self._outcomes[o] for o in subgoal.depends_on if o in self._outcomes]
            undone = [outcome.title for outcome in before if outcome.status != "merged"]
            if undone or len(before) < len(subgoal.depends_on):
                reason = f"it depends on what was not done: {', '.join(undone)}"
                outcome = Outcome(
                    id=subgoal.id, title=subgoal.title, status="blocked", reason=reason
                )
            else:
                async with self._ctx.lock("work", self._places):
                    outcome = await self._do(subgoal, before)
            self._outcomes[subgoal.id] = outcome
        finally:
            self._ended[subgoal.id].set()

    async def _do(self, subgoal: Subgoal, before: list[Outcome]) -> Outcome:
        outcome = Outcome(id=subgoal.id, title=subgoal.title, status="failed")
        prompt = prompts.work(self._spec, subgoal, before)
        asked = prompt
        for _ in range(1 + self._spec.max_task_retries):
            task = await self._ask(asked, subgoal.title)
            outcome.tasks.append(task.id)
            outcome.said, outcome.reason = task.text, task.reason
            if task.ok:
                return await self._merge(subgoal, task, outcome)
            asked = prompts.again(prompt, task)
        return outcome

    async def _ask(self, prompt: str, title: str, earlier: TaskResult | None = None) -> TaskResult:
        # Whoever says it is done and has changed nothing is not done.
        return await self._ctx.task(
            prompt,
            title=title,
            agent=self._spec.worker,
            model=self._spec.worker_model,
            workspace="own",
            checks=["diff_not_empty"] if self._ctx.is_git else [],
            continue_from=earlier.id if earlier else None,
        )

    async def _merge(self, subgoal: Subgoal, task: TaskResult, outcome: Outcome) -> Outcome:
        if not self._ctx.is_git:
            return outcome.model_copy(update={"status": "merged", "reason": None})
        async with self._ctx.lock("merge"):
            merged = await self._ctx.merge(task)
            if merged.conflict:
                resolved = await self._resolve(subgoal, task, outcome)
                if resolved is None:
                    return outcome.model_copy(update={"status": "conflict"})
                merged = await self._ctx.merge(resolved)
        if merged.ok:
            self.tip = merged.commit
            return outcome.model_copy(update={"status": "merged", "reason": None})
        status = "conflict" if merged.conflict else outcome.status
        return outcome.model_copy(update={"status": status, "reason": merged.problem})

    async def _resolve(
        self, subgoal: Subgoal, task: TaskResult, outcome: Outcome
    ) -> TaskResult | None:
        """Have both sides brought together; None, with the reason, if that did not come about."""
        conflicts = await self._ctx.take_in(task)
        asked = prompts.resolve(subgoal, conflicts)
        resolved = await self._ask(asked, f"{subgoal.title} (conflict)", task)
        outcome.tasks.append(resolved.id)
        left = await self._ctx.conflicted(resolved, conflicts) if resolved.ok else []
        await self._ctx.put_away(task)
        if resolved.ok and not left:
            return resolved
        why = f"conflict markers are left in {', '.join(left)}" if left else resolved.reason
        outcome.reason = f"its conflict with others' work was not resolved: {why}"
        return None


def in_order(subgoals: list[Subgoal]) -> tuple[list[Subgoal], str | None]:
    """The subgoals with their dependencies before them, or what is wrong with the plan."""
    known = {subgoal.id for subgoal in subgoals}
    if len(known) < len(subgoals):
        return [], "two subgoals have the same id"
    for subgoal in subgoals:
        missing = [other for other in subgoal.depends_on if other not in known]
        if missing:
            return [], f"{subgoal.id} depends on {missing[0]}, which is not in the plan"
    ordered: list[Subgoal] = []
    done: set[str] = set()
    while len(ordered) < len(subgoals):
        ready = [s for s in subgoals if s.id not in done and done.issuperset(s.depends_on)]
        if not ready:
            left = ", ".join(s.id for s in subgoals if s.id not in done)
            return [], f"these subgoals depend on each other in a circle: {left}"
        ordered += ready
        done |= {subgoal.id for subgoal in ready}
    return ordered, None
