"""Reach a goal with a conductor: an agent that plans, delegates, and changes its plan."""

from functools import partial

from pydantic import BaseModel, ConfigDict, Field

from kapelle.domain.errors import InvalidInput
from kapelle.domain.options import command
from kapelle.domain.specs import field, prompt_argument
from kapelle.domain.task import CheckResult
from kapelle.domain.text import format_count, take_first_line
from kapelle.patterns.context import Context
from kapelle.patterns.orchestrate.plan import PROMPTS, PlannedPart, Turn, Verdict
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, RunResult, TaskResult, select_failed
from kapelle.patterns.spec import OptionalAgentName, PatternSpec, Prompt, Role, RunChecks
from kapelle.patterns.subgoals import pursue_subgoals

# Characters of an answer and of a log that the conductor gets to read.
_ANSWER = 800
_LOG = 3_000
_MAX_PARTS = 100
_PROBLEM = "What was wrong with your last answer, which changed nothing"


class OrchestrateSpec(PatternSpec):
    """A goal for a conductor, who delegates work to other agents until the goal is reached."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Reach a goal with an agent that conducts others.",
            "With --until the commands decide whether the goal is reached; otherwise a judge "
            "decides, who is not the conductor.",
            foreground=True,
            examples=('kapelle orchestrate "port the library to Python 3.14" --until "make test"',),
        )
    )

    goal: Prompt = Field(
        description="goal to reach",
        json_schema_extra=prompt_argument("goal", "What to reach"),
    )
    until: RunChecks = field([], "commands that must all pass for the goal to be reached")
    worker: OptionalAgentName = field(None, "agent of the workers; by default the run's agent")
    judge: OptionalAgentName = field(None, "agent that judges where there is no command")
    max_workers: int = field(5, "number of parts worked on at the same time", ge=1, le=20)
    max_iterations: int = field(20, "maximum number of turns of the conductor", ge=1, le=200)
    max_depth: int = field(3, "levels of conductors, this one included", ge=1, le=10)
    patience: int = field(3, "end after this many iterations without progress", ge=1, le=200)
    ask: bool = field(False, "let the conductor ask a person what only a person can decide")

    @property
    def never_blocks(self) -> bool:
        return not self.ask

    @property
    def roles(self) -> list[Role]:
        roles = [self.role(None), self.role(self.worker)]
        if not self.until:
            roles.append(self.role(self.judge))
        return roles


class OrchestrateResult(BaseModel):
    reason: str = ""
    goal_complete: bool = False
    iterations: int = 0
    plan: list[PlannedPart] = []
    checks: list[CheckResult] = []
    verdict: Verdict | None = None
    commit: str | None = None

    @property
    def lack(self) -> str:
        """Return in words what is missing: failed checks first, unfinished parts last."""
        failures = select_failed(self.checks)
        if failures:
            verdicts = ", ".join(check.verdict for check in failures)
            return f"{verdicts} failed"
        if self.verdict is not None:
            return self.verdict.reason
        undone = [f"{part.id} is {part.status}" for part in self.plan if part.status != "merged"]
        return ", ".join(undone) or "the conductor did not say that it is done"


@pattern("orchestrate", spec=OrchestrateSpec, prompts=PROMPTS)
async def orchestrate(ctx: Context, spec: OrchestrateSpec) -> OrchestrateResult:
    """Have an agent plan, delegate and change its plan until checks or a judge see the goal."""
    result = ctx.keep(OrchestrateResult(commit=await ctx.commit("Before the conductor")))
    answers = dict[str, str]()
    problem = ""
    idle = 0
    for number in range(1, spec.max_iterations + 1):
        result.iterations = number
        await _report(ctx, result, "conduct")
        turn = Turn()
        try:
            turn = await _take_turn(ctx, spec, result, {**answers, _PROBLEM: problem})
        except Failed as failure:
            problem = failure.reason
        else:
            problem = _change_plan(result, turn)
        if turn.impossible:
            await _report(ctx, result, "failed", turn.impossible)
            raise Failed(f"the conductor gave up: {turn.impossible}", result)
        has_asked = bool(turn.questions) and spec.ask
        if has_asked:
            answers |= await _ask(ctx, turn.questions)
        merges = await _work(ctx, spec, result)
        is_reached = False
        if merges or (turn.done and not problem):
            is_reached = await _verify(ctx, spec, result, has_claim=turn.done)
        if is_reached:
            await _report(ctx, result, "done")
            result.goal_complete = True
            result.reason = f"reached in iteration {number}"
            return result
        lack = problem or result.lack
        await _report(ctx, result, "not done", lack)
        idle = 0 if merges or has_asked else idle + 1
        if idle >= spec.patience:
            raise Failed(f"no progress in {format_count(idle, 'iteration')}: {lack}", result)
    iterations = format_count(spec.max_iterations, "iteration")
    raise Failed(f"the goal was not reached in {iterations}: {result.lack}", result)


def _change_plan(result: OrchestrateResult, turn: Turn) -> str:
    """Apply the conductor's changes; return what is wrong with them, if they are not possible."""
    try:
        result.plan = turn.change(result.plan, _MAX_PARTS)
    except ValueError as error:
        return str(error)
    return ""


async def _take_turn(
    ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult, facts: dict[str, str]
) -> Turn:
    """Ask the conductor for changes of the plan; facts follow its prompt by their headings."""
    sections = [await _conductor_prompt(ctx, spec, result)]
    for heading, text in facts.items():
        if text:
            sections.append(f"## {heading}\n{text}")
    return await ctx.query(
        "\n\n".join(sections),
        Turn,
        title=f"Conductor {result.iterations}",
        role="conduct",
        cycle=result.iterations,
        coordinate=True,
    )


async def _conductor_prompt(ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult) -> str:
    plan = "\n".join(part.description for part in result.plan)
    evidence = ""
    if result.verdict:
        evidence = result.verdict.reason
    failures = select_failed(result.checks)
    if failures:
        evidence = "\n".join(f"{one.verdict}:\n{one.output[-_LOG:]}" for one in failures)
    limits = await _describe_limits(ctx, spec, result)
    return ctx.prompt(
        "conduct",
        PROMPTS["conduct"],
        questions="" if spec.ask else "Nobody can be asked: leave questions empty.",
        the_goal=spec.goal,
        what_decides=", ".join(check.label for check in spec.until) or "a judge, who looks",
        the_plan=plan or "There is none yet: make one.",
        what_the_last_verification_found=evidence,
        what_was_changed_so_far=await ctx.changes() if result.plan else "",
        limits=limits,
    )


async def _describe_limits(ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult) -> str:
    limits = [
        f"this is turn {result.iterations} of {spec.max_iterations}",
        f"{spec.max_workers} parts at the same time",
        f"{_MAX_PARTS} parts in all",
    ]
    if spec.max_depth == 1:
        limits.append("no conductor below you")
    for name, value in await ctx.budget():
        if value is not None:
            limits.append(f"{value:g} {name} left")
    return "; ".join(limits)


async def _ask(ctx: Context, questions: list[str]) -> dict[str, str]:
    """Ask a person the conductor's questions; return the answers by heading."""
    replies = await ctx.gather(*(ctx.ask(question, "") for question in questions))
    pairs = zip(questions, replies, strict=True)
    return {f"You asked: {question}": reply or "(no answer)" for question, reply in pairs}


async def _work(ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult) -> int:
    """Do all open parts, concurrently where possible; return how many were merged."""
    open_parts = [part for part in result.plan if part.status == "open"]
    parts = {part.id: part for part in result.plan}

    def may_begin(part: PlannedPart) -> bool:
        undone = [other for other in part.depends_on if parts[other].status != "merged"]
        if undone:
            part.status = "blocked"
            part.reason = f"waits for {', '.join(undone)}"
        return not undone

    await _report(ctx, result, "work")
    work_on = partial(_work_on, ctx, spec, result)
    await pursue_subgoals(ctx, open_parts, spec.max_workers, may_begin, work_on)
    if open_parts:
        result.commit = await ctx.commit(f"Iteration {result.iterations}")
    return sum(part.status == "merged" for part in open_parts)


async def _work_on(
    ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult, part: PlannedPart
) -> None:
    """Delegate a part, merge its work and record the outcome."""
    prompt = part.task
    if part.work:
        prompt += f"\n\n## It was tried before and failed: {part.reason}\n{part.log}"
    try:
        work = await _delegate(ctx, spec, part, prompt)
    except InvalidInput as error:
        part.status = "failed"
        part.reason = error.with_hint
        return
    _record(part, work)
    if work.ok and work.changed:
        async with ctx.lock("merge"):
            merge = await ctx.merge(work)
        if not merge.ok:
            part.status = "conflict" if merge.conflict else "failed"
            part.reason = merge.problem
    if part.status == "merged":
        part.log = ""  # the answer is enough
    await _report(ctx, result, "work")


def _record(part: PlannedPart, work: TaskResult | RunResult) -> None:
    """Record the end of the task or run that did a part."""
    part.work.append(work.id)
    part.reason = work.reason
    part.status = "merged" if work.ok else "failed"
    if isinstance(work, TaskResult):
        part.said = work.text[-_ANSWER:]
        outputs = [f"{check.name}:\n{check.output}" for check in work.failed_checks]
        part.log = "\n".join([*outputs, work.text]).strip()[-_LOG:]
    elif isinstance(work.result, dict):
        part.said = str(work.result.get("reason") or "")[-_ANSWER:]
        part.log = part.said


async def _delegate(
    ctx: Context, spec: OrchestrateSpec, part: PlannedPart, prompt: str
) -> TaskResult | RunResult:
    """Do a part by a task, a loop or another conductor; raise InvalidInput if it is too deep."""
    title = take_first_line(part.title)
    if part.kind == "orchestrate":
        if spec.max_depth == 1:
            raise InvalidInput("No conductor may be below this one (--max-depth).")
        inner_spec = spec.model_dump(include={"max_workers", "max_iterations", "patience", "judge"})
        inner_spec["goal"] = prompt
        inner_spec["title"] = title
        inner_spec["until"] = part.checks
        inner_spec["max_depth"] = spec.max_depth - 1
        inner_spec["worker"] = spec.worker
        return await ctx.run("orchestrate", inner_spec)
    if part.kind == "loop" and part.checks:
        loop_spec = {"prompt": prompt, "title": title, "until": part.checks}
        if spec.worker:
            loop_spec["agent"] = spec.worker
        return await ctx.run("loop", loop_spec)
    checks = list(part.checks)
    if ctx.is_git and not part.text_only:
        # A worker that reports success without a change has not done its part.
        checks.insert(0, "diff_not_empty")
    return await ctx.task(
        prompt,
        title=part.title,
        workspace="own",
        checks=checks,
        role="work",
        agent=spec.worker,
    )


async def _verify(
    ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult, *, has_claim: bool
) -> bool:
    """Tell whether the goal is reached: by its commands, or by a judge if the conductor claims so.

    The evidence becomes part of the result.
    """
    await _report(ctx, result, "verify")
    if spec.until:
        result.checks = (await ctx.check(*spec.until)).checks
        if result.commit is not None:
            # Discard the files that the checks leave behind.
            await ctx.revert(result.commit)
        return not select_failed(result.checks)
    if not has_claim:
        return False
    prompt = ctx.prompt(
        "judge", PROMPTS["judge"], the_goal=spec.goal, what_was_changed=await ctx.changes()
    )
    number = result.iterations
    try:
        result.verdict = await ctx.query(
            prompt, Verdict, title="Judge", role="judge", cycle=number, agent=spec.judge
        )
    except Failed as failure:
        result.verdict = Verdict(reached=False, reason=failure.reason)
    return result.verdict.reached


async def _report(ctx: Context, result: OrchestrateResult, phase: str, lack: str = "") -> None:
    """Report the phase and the plan, and at the end of an iteration what is missing."""
    fields = {"id", "title", "kind", "depends_on", "status", "reason", "work"}
    plan = [part.model_dump(include=fields) for part in result.plan]
    await ctx.progress(iteration=result.iterations, phase=phase, plan=plan, lack=lack or None)
