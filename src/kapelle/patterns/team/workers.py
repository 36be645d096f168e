"""The workers of a team: each does a subgoal in its own worktree, which is merged then."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kapelle.patterns.context import Context
from kapelle.patterns.results import TaskResult, fenced
from kapelle.patterns.subgoals import Subgoal
from kapelle.patterns.team.progress import SubgoalOutcome, TeamIteration, TeamResult
from kapelle.patterns.team.roles import ANSWER_ONLY, BROWSER_TESTS, PROMPTS

if TYPE_CHECKING:
    from kapelle.patterns.team import TeamSpec


@dataclass
class Workers:
    """The workers of one team; their outcomes join the last iteration of the result."""

    ctx: Context
    spec: "TeamSpec"
    result: TeamResult

    @property
    def iteration(self) -> TeamIteration:
        return self.result.iterations[-1]

    def _dependencies(self, subgoal: Subgoal) -> list[SubgoalOutcome]:
        """Return the outcomes of the subgoals that a subgoal depends on."""
        outcomes = self.iteration.outcomes
        return [outcome for outcome in outcomes if outcome.id in subgoal.depends_on]

    def may_begin(self, subgoal: Subgoal) -> bool:
        """Tell whether every dependency is merged; otherwise record the subgoal as blocked."""
        outcomes = self._dependencies(subgoal)
        undone = [outcome.title for outcome in outcomes if outcome.status != "merged"]
        if not undone and len(outcomes) == len(set(subgoal.depends_on)):
            return True
        reason = f"it depends on what was not done: {', '.join(undone)}"
        self.iteration.add(SubgoalOutcome.of(subgoal, "blocked", reason))
        return False

    async def work_on(self, subgoal: Subgoal) -> None:
        """Have a worker do a subgoal, and again after a failure, as often as allowed."""
        outcome = SubgoalOutcome.of(subgoal, "failed")
        prompt = self._prompt(subgoal)
        attempt_prompt = prompt
        for _ in range(1 + self.spec.max_task_retries):
            task = await self._ask(attempt_prompt, subgoal)
            outcome.tasks.append(task.id)
            outcome.said = task.text
            outcome.reason = task.reason
            if task.ok:
                await self._merge(subgoal, task, outcome)
                break
            attempt_prompt = _retry_prompt(prompt, task, in_place=not self.ctx.is_git)
        self.iteration.add(outcome)

    def _prompt(self, subgoal: Subgoal) -> str:
        dependencies = []
        for outcome in self._dependencies(subgoal):
            dependencies.append(f"{outcome.title}: {outcome.excerpt(500) or 'done'}")
        parts = self.ctx.prompt(
            "work",
            PROMPTS["work"],
            what_this_is_part_of=self.spec.goal,
            what_is_wanted=ANSWER_ONLY if subgoal.text_only else "",
            in_a_browser=BROWSER_TESTS if self.spec.playwright else "",
            what_was_done_before_and_is_in_your_files=dependencies,
        )
        return f"{subgoal.task}\n\n{parts}"

    async def _ask(
        self, prompt: str, subgoal: Subgoal, earlier: TaskResult | None = None
    ) -> TaskResult:
        # A worker that reports success without a change has not done its subgoal.
        must_change = self.ctx.is_git and not subgoal.text_only
        return await self.ctx.task(
            prompt,
            title=f"{subgoal.title} (conflict)" if earlier else subgoal.title,
            role="work",
            cycle=self.iteration.number,
            agent=self.spec.worker,
            model=self.spec.worker_model,
            workspace="own",
            checks=["diff_not_empty"] if must_change else [],
            continue_from=earlier.id if earlier else None,
        )

    async def _merge(self, subgoal: Subgoal, task: TaskResult, outcome: SubgoalOutcome) -> None:
        """Merge the work of a task, with its conflicts resolved, and record the outcome."""
        if self.ctx.is_git and (task.changed or not subgoal.text_only):
            async with self.ctx.lock("merge"):
                merge = await self.ctx.merge(task)
                if merge.conflict:
                    outcome.status = "conflict"
                    resolution = await self._resolve(subgoal, task, outcome)
                    if resolution is None:
                        return
                    merge = await self.ctx.merge(resolution)
            if not merge.ok:
                outcome.status = "conflict" if merge.conflict else "failed"
                outcome.reason = merge.problem
                return
            self.result.commit = merge.commit
        outcome.status = "merged"
        outcome.reason = None

    async def _resolve(
        self, subgoal: Subgoal, task: TaskResult, outcome: SubgoalOutcome
    ) -> TaskResult | None:
        """Have the worker resolve the conflicts of its work with the run's branch.

        Return None, and record the reason, if conflicts remain.
        """
        conflicts = await self.ctx.take_in(task)
        prompt = self.ctx.prompt(
            "resolve",
            PROMPTS["resolve"],
            files_from_the_top_of_the_repository=conflicts,
            what_your_work_was=subgoal.task,
        )
        resolution = await self._ask(prompt, subgoal, task)
        outcome.tasks.append(resolution.id)
        open_conflicts = []
        if resolution.ok:
            open_conflicts = await self.ctx.conflicted(resolution, conflicts)
        await self.ctx.put_away(task)
        if resolution.ok and not open_conflicts:
            return resolution
        reason = resolution.reason
        if open_conflicts:
            reason = f"conflict markers are left in {', '.join(open_conflicts)}"
        outcome.reason = f"its conflict with others' work was not resolved: {reason}"
        return None


def _retry_prompt(prompt: str, task: TaskResult, *, in_place: bool) -> str:
    """Return the prompt for another attempt, with the reason why the last one was rejected."""
    lines = [prompt, "", "## An earlier try was not accepted", task.reason or task.status]
    for check in task.failed_checks:
        lines.append(f"`{check.name}`:\n{fenced(check.output)}")
    if in_place:
        lines.append(
            "Part of its changes may be in your files: look at them first, keep what is right, "
            "go on, and avoid what went wrong."
        )
    else:
        lines.append("Its changes are not in your files: begin anew, and avoid what went wrong.")
    return "\n".join(lines)
