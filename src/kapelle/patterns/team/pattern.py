"""The team: intake, then plan, work, verify and review, again until the goal is reached."""

from typing import Literal, TypeVar

from pydantic import BaseModel

from kapelle.domain.errors import LimitReached
from kapelle.domain.run_specs import TeamSpec
from kapelle.domain.text import counted
from kapelle.patterns.context import Context
from kapelle.patterns.interruption import Interrupted
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed
from kapelle.patterns.team import prompts
from kapelle.patterns.team.shapes import Intake, Iteration, Outcome, Plan, Review, TeamResult
from kapelle.patterns.team.work import Workers, in_order

_MOST_QUESTIONS = 4

M = TypeVar("M", bound=BaseModel)
Role = Literal["planner", "reviewer"]


@pattern("team", spec=TeamSpec)
async def team(ctx: Context, spec: TeamSpec) -> TeamResult:
    """Reach a goal: plan it, have several work at once, verify, review, and go on until done."""
    return await _Team(ctx, spec).play()


class _Team:
    def __init__(self, ctx: Context, spec: TeamSpec) -> None:
        self._ctx = ctx
        self._spec = spec
        self._criteria = list(spec.success_criteria)
        self._answers: dict[str, str] = {}
        self._iterations: list[Iteration] = []
        self._tip: str | None = None

    async def play(self) -> TeamResult:
        try:
            self._tip = await self._ctx.commit("Before the team")
            await self._take_in()
            for number in range(1, self._spec.max_iterations + 1):
                iteration = Iteration(number=number)
                self._iterations.append(iteration)
                await self._iterate(iteration)
                if _is_done(iteration):
                    return self._result(f"the goal is reached after iteration {number}", True)
        except LimitReached as error:
            raise Failed(error.message, self._result(error.message, False)) from None
        except Interrupted as stop:
            stop.result = self._result("cancelled", False)
            raise
        rounds = counted(self._spec.max_iterations, "iteration")
        why = f"the goal was not reached in {rounds}: {self._lack()}"
        raise Failed(why, self._result(why, False))

    async def _take_in(self) -> None:
        """Agree on what success means, and ask what only a person can know."""
        if self._criteria and not self._spec.ask:
            return
        await self._ctx.progress(phase="intake")
        found = await self._query(prompts.intake(self._spec), Intake, "Intake", "planner")
        self._criteria = self._criteria or found.success_criteria
        if self._spec.ask and found.questions:
            questions = list(dict.fromkeys(found.questions))[:_MOST_QUESTIONS]
            answers = await self._ctx.gather(*(self._ctx.ask(text) for text in questions))
            self._answers = dict(zip(questions, answers, strict=True))

    async def _iterate(self, iteration: Iteration) -> None:
        number = iteration.number
        await self._ctx.progress(iteration=number, phase="plan")
        try:
            await self._plan(iteration)
        except Failed as failure:
            iteration.problem = failure.reason
            await self._ctx.progress(iteration=number, phase="failed", problem=failure.reason)
            return
        await self._ctx.progress(iteration=number, phase="work", subgoals=len(iteration.subgoals))
        workers = Workers(self._ctx, self._spec, iteration.subgoals)
        left_out = iteration.outcomes
        try:
            await workers.work()
        finally:
            # Also what was done until a limit or a person ended it.
            iteration.outcomes = [*workers.outcomes, *left_out]
            self._tip = workers.tip or self._tip
        self._tip = await self._ctx.commit(f"Iteration {number}")
        iteration.commit = self._tip
        await self._verify(iteration)
        if iteration.verified:
            await self._review(iteration)
        await self._ctx.progress(
            iteration=number,
            phase="done" if _is_done(iteration) else "not done",
            merged=len(iteration.outcomes) - len(iteration.unfinished),
            verified=iteration.verified,
            lack=None if _is_done(iteration) else self._lack(),
        )

    async def _plan(self, iteration: Iteration) -> None:
        before = self._iterations[:-1]
        asked = prompts.plan(self._spec, self._criteria, self._answers, before)
        plan = await self._query(asked, Plan, "Plan", "planner")
        ordered, problem = in_order(plan.subgoals)
        if problem is not None:
            asked = f"{asked}\n\n## Your plan before this one could not be used\n{problem}"
            plan = await self._query(asked, Plan, "Plan (again)", "planner")
            ordered, problem = in_order(plan.subgoals)
        if problem is not None:
            raise Failed(f"the plan is unusable: {problem}")
        most = self._spec.max_subgoals
        iteration.subgoals = ordered[:most]
        reason = f"left out, for a plan has at most {counted(most, 'subgoal')}"
        iteration.outcomes = [
            Outcome(id=subgoal.id, title=subgoal.title, status="blocked", reason=reason)
            for subgoal in ordered[most:]
        ]
        kept = {subgoal.id for subgoal in iteration.subgoals}
        for subgoal in iteration.subgoals:
            subgoal.depends_on = [other for other in subgoal.depends_on if other in kept]

    async def _verify(self, iteration: Iteration) -> None:
        if not self._spec.verify:
            return
        await self._ctx.progress(iteration=iteration.number, phase="verify")
        found = await self._ctx.check(*self._spec.verify)
        iteration.checks = found.checks
        if self._tip is not None:
            # What a check leaves behind does not join the work.
            await self._ctx.revert(self._tip)

    async def _review(self, iteration: Iteration) -> None:
        await self._ctx.progress(iteration=iteration.number, phase="review")
        changes = await self._ctx.changes()
        asked = prompts.review(self._spec, self._criteria, iteration, changes)
        try:
            iteration.review = await self._query(asked, Review, "Review", "reviewer")
        except Failed as failure:
            iteration.problem = failure.reason

    async def _query(self, prompt: str, shape: type[M], title: str, role: Role) -> M:
        agent, model = getattr(self._spec, role), getattr(self._spec, f"{role}_model")
        return await self._ctx.query(prompt, shape, title=title, agent=agent, model=model)

    def _lack(self) -> str:
        """What the last iteration was short of, in a sentence."""
        if not self._iterations:
            return "nothing was begun"
        last = self._iterations[-1]
        if last.problem:
            return last.problem
        failed = [check.name for check in last.checks if not check.passed]
        if failed:
            return f"failed its check: {', '.join(failed)}"
        if last.unfinished:
            return "; ".join(f"{item.title}: {item.reason}" for item in last.unfinished)
        if last.review is not None and not last.review.approves:
            return f"the reviewer says no to {', '.join(last.review.objections)}"
        return "it was not reviewed"

    def _result(self, reason: str, complete: bool) -> TeamResult:
        return TeamResult(
            reason=reason,
            goal_complete=complete,
            success_criteria=self._criteria,
            iterations=self._iterations,
            commit=self._tip,
        )


def _is_done(iteration: Iteration) -> bool:
    """The verify commands are a hard gate, and so are undone parts and the reviewer's yes."""
    if iteration.unfinished or not iteration.outcomes:
        return False
    return iteration.verified and iteration.review is not None and iteration.review.approves
