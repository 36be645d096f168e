"""A goal: planned, worked on by several at once, verified and reviewed, again until done."""

import asyncio

from pydantic import ConfigDict, Field

from kapelle.domain.options import argument, command
from kapelle.domain.specs import CheckKind, CheckSpec, Text, field
from kapelle.domain.text import counted
from kapelle.patterns import team_roles
from kapelle.patterns.context import Context, Who
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult
from kapelle.patterns.spec import AgentName, ModelName, PatternSpec, Prompt, Role, RunChecks
from kapelle.patterns.team_roles import (
    Intake,
    Iteration,
    Outcome,
    Plan,
    Review,
    Subgoal,
    TeamResult,
)

_PLAYWRIGHT = "npx playwright test"
_CONFIRM = "Is that right? Otherwise write what must be true, separated by semicolons."
_AS_STATED = "The goal is reached as it is stated."


class TeamSpec(PatternSpec):
    """A goal: planned, worked on by several at once, verified and reviewed, again until done."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have a team reach a goal: plan, work in parallel, verify, review, again until done.",
            "With -f it asks its questions in the terminal, and with -f --json the run is printed "
            "when it has ended. Without a goal a terminal is asked for it.",
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
            asked={"ask": True, "confirm": True},
        ),
    )
    success_criteria: list[Text] = field(
        [], "what must be true then; where nothing is given, the planner proposes it", "--criteria",
        metavar="TEXT",
        file=("--criteria-file", "Read further criteria from a file, one in each line."),
        max_length=100,
    )  # fmt: skip
    verify: RunChecks = field(
        [], "commands that must pass before a reviewer is asked", kind="check",
        timeout=("--verify-timeout", "Stop such a command after this long."),
    )  # fmt: skip
    playwright: bool = field(
        False,
        f"test what is seen in a browser: verifies with `{_PLAYWRIGHT}`, has workers "
        "write such tests, and the reviewer ask for them",
    )
    planner: AgentName = field(None, "the agent that plans; by default the run's agent")
    worker: AgentName = field(None, "the agent of the workers")
    reviewer: AgentName = field(None, "the agent that reviews")
    planner_model: ModelName = field(None, "the planner's model")
    worker_model: ModelName = field(None, "the workers' model")
    reviewer_model: ModelName = field(None, "the reviewer's model")
    max_iterations: int = field(4, "how often it may plan, work and review", ge=1, le=1000)
    max_workers: int = field(4, "how many subgoals are worked on at the same time", ge=1, le=100)
    max_subgoals: int = field(
        12, "the most subgoals of one plan; the next plan takes up the rest", ge=1, le=100
    )
    max_task_retries: int = field(1, "how often a worker that failed is asked again", ge=0, le=100)
    ask: bool = field(
        False,
        "let planner and reviewer ask a person what only a person can decide",
        flags={"--non-interactive": (False, "It never asks; this is the default.")},
    )
    max_questions: int = field(4, "how many questions each of them may ask at a time", ge=0, le=20)
    confirm: bool = field(False, "have a person confirm the criteria that the planner proposes")

    @property
    def subject(self) -> str:
        return self.goal

    @property
    def never_blocks(self) -> bool:
        return not (self.ask or self.confirm)

    @property
    def needs_git(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.verify)

    @property
    def final_checks(self) -> list[CheckSpec]:
        """All that must pass before a reviewer is asked."""
        known = any(_PLAYWRIGHT in (check.command or "") for check in self.verify)
        more = [CheckSpec(command=_PLAYWRIGHT)] if self.playwright and not known else []
        return [*self.verify, *more]

    @property
    def roles(self) -> list[Role]:
        return [
            self.role(self.planner, self.planner_model),
            self.role(self.worker, self.worker_model),
            self.role(self.reviewer, self.reviewer_model),
        ]


@pattern("team", spec=TeamSpec, prompts=team_roles.PROMPTS)
async def team(ctx: Context, spec: TeamSpec) -> TeamResult:
    """Reach a goal: plan it, have several work at once, verify, review, and go on until done."""
    result = ctx.keep(TeamResult(reason="", success_criteria=spec.success_criteria))
    result.commit = await ctx.commit("Before the team")
    answers = await _intake(ctx, spec, result)
    for number in range(1, spec.max_iterations + 1):
        iteration = Iteration(number=number)
        result.iterations.append(iteration)
        try:
            await _plan(ctx, spec, result, answers)
        except Failed as failure:
            iteration.problem = failure.reason
            await ctx.progress(iteration=number, phase="failed", lack=failure.reason)
            continue
        await _work(ctx, spec, result)
        await _verify(ctx, spec, iteration)
        if iteration.verified:
            await _review(ctx, spec, result.success_criteria, iteration)
        await ctx.progress(iteration=number, **iteration.facts)
        if iteration.is_done:
            result.reason = f"the goal is reached after iteration {number}"
            result.goal_complete, result.stopped_by = True, "goal"
            return result
        if iteration.review and number < spec.max_iterations:
            answers |= await _answers(ctx, spec, iteration.review.questions, "")
    result.stopped_by = "max_iterations"
    rounds = counted(spec.max_iterations, "iteration")
    raise Failed(f"the goal was not reached in {rounds}: {result.iterations[-1].lack}")


async def _intake(ctx: Context, spec: TeamSpec, result: TeamResult) -> dict[str, str]:
    """Agree on what success means, and ask what only a person can know: questions and answers."""
    if result.success_criteria and not spec.ask:
        return {}
    await ctx.progress(phase="intake")
    asked = team_roles.intake(ctx, spec)
    planner = Who(agent=spec.planner, model=spec.planner_model)
    try:
        found = await ctx.query(asked, Intake, title="Intake", **planner)
    except Failed as failure:
        # The goal itself says enough to begin with.
        await ctx.progress(phase="intake", lack=failure.reason)
        found = Intake(success_criteria=[])
    if result.success_criteria:
        return await _answers(ctx, spec, found.questions)
    result.success_criteria = found.success_criteria or [_AS_STATED]
    listed = "".join(f"\n- {text}" for text in result.success_criteria)
    proposal = f"It is reached when{listed}\n{_CONFIRM}" if spec.confirm else ""
    answers = await _answers(ctx, spec, found.questions, proposal=proposal)
    said = answers.pop(proposal, "")
    own = [part.strip() for part in said.replace("\n", ";").split(";") if part.strip()]
    if own and said.strip().lower() not in {"y", "yes", "ok"}:
        result.success_criteria = own
    return answers


async def _answers(
    ctx: Context,
    spec: TeamSpec,
    questions: list[str],
    default: str | None = None,
    proposal: str = "",
) -> dict[str, str]:
    """What a person says to a proposal and to questions, if any may be asked."""
    asked: dict[str, str | None] = {proposal: "yes"} if proposal else {}
    asked |= dict.fromkeys(questions[: spec.max_questions] if spec.ask else [], default)
    answers = await ctx.gather(*(ctx.ask(text, known) for text, known in asked.items()))
    return {text: said for text, said in zip(asked, answers, strict=True) if said.strip()}


async def _plan(ctx: Context, spec: TeamSpec, result: TeamResult, answers: dict[str, str]) -> None:
    """The subgoals of the last iteration; raises Failed if there is no usable plan."""
    *before, iteration = result.iterations
    await ctx.progress(iteration=iteration.number, phase="plan", lack=None)
    asked = prompt = team_roles.plan(ctx, spec, result.success_criteria, answers, before)
    planner = Who(agent=spec.planner, model=spec.planner_model)
    for title in ("Plan", "Plan (again)"):
        plan = await ctx.query(asked, Plan, title=title, **planner)
        ordered, problem = plan.in_order()
        if problem is None:
            break
        asked = f"{prompt}\n\n## Your plan before this one could not be used\n{problem}"
    else:
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


async def _work(ctx: Context, spec: TeamSpec, result: TeamResult) -> None:
    iteration = result.iterations[-1]
    number = iteration.number
    subgoals = [{"id": subgoal.id, "title": subgoal.title} for subgoal in iteration.subgoals]
    await ctx.progress(iteration=number, phase="work", subgoals=subgoals)
    workers = _Workers(ctx, spec, result)
    await ctx.gather(*(workers.pursue(subgoal) for subgoal in iteration.subgoals))
    iteration.commit = result.commit = await ctx.commit(f"Iteration {number}")
    result.final_output = iteration.said or result.final_output


async def _verify(ctx: Context, spec: TeamSpec, iteration: Iteration) -> None:
    if not spec.final_checks:
        return
    await ctx.progress(iteration=iteration.number, phase="verify")
    iteration.checks = (await ctx.check(*spec.final_checks)).checks
    if iteration.commit is not None:
        # What a check leaves behind does not join the work.
        await ctx.revert(iteration.commit)


async def _review(ctx: Context, spec: TeamSpec, criteria: list[str], iteration: Iteration) -> None:
    await ctx.progress(iteration=iteration.number, phase="review")
    asked = team_roles.review(ctx, spec, criteria, iteration, await ctx.changes())
    reviewer = Who(agent=spec.reviewer, model=spec.reviewer_model)
    try:
        iteration.review = await ctx.query(asked, Review, title="Review", **reviewer)
    except Failed as failure:
        iteration.problem = failure.reason


class _Workers:
    """Do the subgoals of the last iteration at the same time, each merged when it is done, and keep
    the result up to date with each."""

    def __init__(self, ctx: Context, spec: TeamSpec, result: TeamResult) -> None:
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
        asked = prompt = team_roles.work(self._ctx, self._spec, subgoal, before)
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
        asked = team_roles.resolve(self._ctx, subgoal, conflicts)
        resolved = await self._ask(asked, subgoal, task)
        outcome.tasks.append(resolved.id)
        left = await self._ctx.conflicted(resolved, conflicts) if resolved.ok else []
        await self._ctx.put_away(task)
        if resolved.ok and not left:
            return resolved
        why = f"conflict markers are left in {', '.join(left)}" if left else resolved.reason
        outcome.reason = f"its conflict with others' work was not resolved: {why}"
        return None
