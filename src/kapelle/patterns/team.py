"""What may be asked of a team."""

import asyncio
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from kapelle.domain.errors import LimitReached
from kapelle.domain.options import argument, command, option
from kapelle.domain.specs import CheckKind, Name, Text
from kapelle.domain.text import counted
from kapelle.patterns import team_roles
from kapelle.patterns.context import Context, Interrupted
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult
from kapelle.patterns.spec import PatternSpec, Prompt, Role, RunCheck
from kapelle.patterns.team_roles import (
    Intake,
    Iteration,
    Outcome,
    Plan,
    Review,
    Subgoal,
    TeamResult,
)


class TeamSpec(PatternSpec):
    """A goal: planned, worked on by several at once, verified and reviewed, again until done."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have a team reach a goal: plan, work in parallel, verify, review, again until done.",
            "It is followed to its end unless --detach is given: exit 0 done, 1 failed, 3 input "
            "needed. With --json the run is printed when it has ended. Without a goal a terminal "
            "is asked for it.",
            foreground=True,
        )
    )

    goal: Prompt = Field(
        description="what is to be reached",
        json_schema_extra=argument(
            "GOAL",
            help="What to build; - reads it from stdin.",
            file=("--goal-file", "Read the goal from a file, or - for stdin."),
            ask="What is the goal? ",
        ),
    )
    success_criteria: list[Text] = Field(
        default=[],
        max_length=100,
        description="what must be true then; where nothing is given, the planner proposes it",
        json_schema_extra=option("--criteria", metavar="TEXT"),
    )
    verify: list[RunCheck] = Field(
        default=[],
        max_length=100,
        description="commands that must pass before a reviewer is asked",
        json_schema_extra=option(metavar="COMMAND", kind="check"),
    )
    planner: Name | None = Field(
        default=None,
        description="the agent that plans; by default the run's agent",
        json_schema_extra=option(metavar="AGENT"),
    )
    worker: Name | None = Field(
        default=None,
        description="the agent of the workers",
        json_schema_extra=option(metavar="AGENT"),
    )
    reviewer: Name | None = Field(
        default=None,
        description="the agent that reviews",
        json_schema_extra=option(metavar="AGENT"),
    )
    planner_model: Name | None = Field(
        default=None, description="the planner's model", json_schema_extra=option(metavar="NAME")
    )
    worker_model: Name | None = Field(
        default=None, description="the workers' model", json_schema_extra=option(metavar="NAME")
    )
    reviewer_model: Name | None = Field(
        default=None, description="the reviewer's model", json_schema_extra=option(metavar="NAME")
    )
    max_iterations: int = Field(
        default=4, ge=1, le=1000, description="how often it may plan, work and review"
    )
    max_workers: int = Field(
        default=4, ge=1, le=100, description="how many subgoals are worked on at the same time"
    )
    max_subgoals: int = Field(
        default=12,
        ge=1,
        le=100,
        description="the most subgoals of one plan; the next plan takes up the rest",
    )
    max_task_retries: int = Field(
        default=1, ge=0, le=100, description="how often a worker that failed is asked again"
    )
    ask: bool = Field(
        default=False,
        description="let the planner ask a person up to four questions before it begins",
        json_schema_extra=option(
            flags={"--non-interactive": (False, "It never asks; this is the default.")}
        ),
    )

    @property
    def subject(self) -> str:
        return self.goal

    @property
    def never_blocks(self) -> bool:
        return not self.ask

    @property
    def needs_git(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.verify)

    @property
    def cast(self) -> list[Role]:
        return [
            self.role(self.planner, self.planner_model),
            self.role(self.worker, self.worker_model),
            self.role(self.reviewer, self.reviewer_model),
        ]


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
        prompt = team_roles.work(self._spec, subgoal, before)
        asked = prompt
        for _ in range(1 + self._spec.max_task_retries):
            task = await self._ask(asked, subgoal.title)
            outcome.tasks.append(task.id)
            outcome.said, outcome.reason = task.text, task.reason
            if task.ok:
                return await self._merge(subgoal, task, outcome)
            asked = team_roles.again(prompt, task)
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
        asked = team_roles.resolve(subgoal, conflicts)
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


_MOST_QUESTIONS = 4

M = TypeVar("M", bound=BaseModel)


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
        found = await self._query(team_roles.intake(self._spec), Intake, "Intake", "planner")
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
        asked = team_roles.plan(self._spec, self._criteria, self._answers, before)
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
        asked = team_roles.review(self._spec, self._criteria, iteration, changes)
        try:
            iteration.review = await self._query(asked, Review, "Review", "reviewer")
        except Failed as failure:
            iteration.problem = failure.reason

    async def _query(
        self, prompt: str, shape: type[M], title: str, role: Literal["planner", "reviewer"]
    ) -> M:
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
