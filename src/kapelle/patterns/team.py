"""A goal: planned, worked on by several at once, verified and reviewed, again until done."""

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from kapelle.domain.options import argument, command, option
from kapelle.domain.specs import CheckKind, Name, Text
from kapelle.domain.text import counted
from kapelle.patterns import team_roles
from kapelle.patterns.context import Context
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

_MOST_QUESTIONS = 4
M = TypeVar("M", bound=BaseModel)


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


@pattern("team", spec=TeamSpec)
async def team(ctx: Context, spec: TeamSpec) -> TeamResult:
    """Reach a goal: plan it, have several work at once, verify, review, and go on until done."""
    result = ctx.keep(TeamResult(reason="", success_criteria=spec.success_criteria))
    result.commit = await ctx.commit("Before the team")
    answers = await _intake(ctx, spec, result)
    for number in range(1, spec.max_iterations + 1):
        iteration = Iteration(number=number)
        result.iterations.append(iteration)
        try:
            await ctx.progress(iteration=number, phase="plan")
            await _plan(ctx, spec, result, answers)
        except Failed as failure:
            iteration.problem = failure.reason
            await ctx.progress(iteration=number, phase="failed", problem=failure.reason)
            continue
        await _work(ctx, spec, result, iteration)
        await _verify(ctx, spec, iteration)
        if iteration.verified:
            await _review(ctx, spec, result.success_criteria, iteration)
        await ctx.progress(
            iteration=number,
            phase="done" if iteration.is_done else "not done",
            merged=len(iteration.outcomes) - len(iteration.unfinished),
            verified=iteration.verified,
            lack=None if iteration.is_done else iteration.lack,
        )
        if iteration.is_done:
            result.reason = f"the goal is reached after iteration {number}"
            result.goal_complete = True
            return result
    rounds = counted(spec.max_iterations, "iteration")
    raise Failed(f"the goal was not reached in {rounds}: {result.iterations[-1].lack}")


async def _intake(ctx: Context, spec: TeamSpec, result: TeamResult) -> dict[str, str]:
    """Agree on what success means, and ask what only a person can know: questions and answers."""
    if result.success_criteria and not spec.ask:
        return {}
    await ctx.progress(phase="intake")
    found = await _ask_planner(ctx, spec, team_roles.intake(spec), Intake, "Intake")
    result.success_criteria = result.success_criteria or found.success_criteria
    if not spec.ask or not found.questions:
        return {}
    questions = list(dict.fromkeys(found.questions))[:_MOST_QUESTIONS]
    answers = await ctx.gather(*(ctx.ask(text) for text in questions))
    return dict(zip(questions, answers, strict=True))


async def _plan(ctx: Context, spec: TeamSpec, result: TeamResult, answers: dict[str, str]) -> None:
    """The subgoals of the last iteration; raises Failed if there is no usable plan."""
    *before, iteration = result.iterations
    asked = team_roles.plan(spec, result.success_criteria, answers, before)
    plan = await _ask_planner(ctx, spec, asked, Plan, "Plan")
    ordered, problem = in_order(plan.subgoals)
    if problem is not None:
        asked = f"{asked}\n\n## Your plan before this one could not be used\n{problem}"
        plan = await _ask_planner(ctx, spec, asked, Plan, "Plan (again)")
        ordered, problem = in_order(plan.subgoals)
    if problem is not None:
        raise Failed(f"the plan is unusable: {problem}")
    most = spec.max_subgoals
    iteration.subgoals = ordered[:most]
    reason = f"left out, for a plan has at most {counted(most, 'subgoal')}"
    iteration.outcomes = [
        Outcome(id=subgoal.id, title=subgoal.title, status="blocked", reason=reason)
        for subgoal in ordered[most:]
    ]
    kept = {subgoal.id for subgoal in iteration.subgoals}
    for subgoal in iteration.subgoals:
        subgoal.depends_on = [other for other in subgoal.depends_on if other in kept]


async def _ask_planner(ctx: Context, spec: TeamSpec, prompt: str, shape: type[M], title: str) -> M:
    return await ctx.query(prompt, shape, title=title, agent=spec.planner, model=spec.planner_model)


async def _work(ctx: Context, spec: TeamSpec, result: TeamResult, iteration: Iteration) -> None:
    number = iteration.number
    await ctx.progress(iteration=number, phase="work", subgoals=len(iteration.subgoals))
    workers = Workers(ctx, spec, iteration.subgoals)
    left_out = iteration.outcomes
    try:
        await workers.work()
    finally:
        # Also what was done until a limit or a person ended it.
        iteration.outcomes = [*workers.outcomes, *left_out]
        result.commit = workers.tip or result.commit
    iteration.commit = result.commit = await ctx.commit(f"Iteration {number}")


async def _verify(ctx: Context, spec: TeamSpec, iteration: Iteration) -> None:
    if not spec.verify:
        return
    await ctx.progress(iteration=iteration.number, phase="verify")
    iteration.checks = (await ctx.check(*spec.verify)).checks
    if iteration.commit is not None:
        # What a check leaves behind does not join the work.
        await ctx.revert(iteration.commit)


async def _review(ctx: Context, spec: TeamSpec, criteria: list[str], iteration: Iteration) -> None:
    await ctx.progress(iteration=iteration.number, phase="review")
    asked = team_roles.review(spec, criteria, iteration, await ctx.changes())
    try:
        iteration.review = await ctx.query(
            asked, Review, title="Review", agent=spec.reviewer, model=spec.reviewer_model
        )
    except Failed as failure:
        iteration.problem = failure.reason


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
