"""A goal: an agent conducts others, changes its plan as they go, and ends with evidence only."""

from functools import partial

from pydantic import BaseModel, ConfigDict, Field

from kapelle.domain.errors import InvalidInput
from kapelle.domain.options import command
from kapelle.domain.specs import field, prompt_argument
from kapelle.domain.task import CheckResult
from kapelle.domain.text import format_count, take_first_line
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, RunResult, TaskResult
from kapelle.patterns.roles import CONDUCTOR, PlannedPart, Turn, Verdict
from kapelle.patterns.spec import OptionalAgentName, PatternSpec, Prompt, Role, RunChecks
from kapelle.patterns.subgoals import pursue

_SAID = 800
_LOG = 3_000
_MOST_PARTS = 100
_PROBLEM = "What was wrong with your last answer, which changed nothing"


class OrchestrateSpec(PatternSpec):
    """A goal: an agent conducts others until it is reached."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have an agent conduct others until a goal is reached, and its checks show it.",
            "With --until the commands decide that it is; otherwise a judge who is not the "
            "conductor.",
            foreground=True,
        )
    )

    goal: Prompt = Field(
        description="what is to be reached",
        json_schema_extra=prompt_argument("goal", "What to reach"),
    )
    until: RunChecks = field([], "commands that must all pass for the goal to be reached")
    worker: OptionalAgentName = field(None, "the agent of the workers; by default the run's agent")
    judge: OptionalAgentName = field(None, "the agent that judges where there is no command")
    max_workers: int = field(5, "how many parts are worked on at the same time", ge=1, le=20)
    max_iterations: int = field(20, "how often the conductor is called", ge=1, le=200)
    max_depth: int = field(3, "levels of conductors, this one included", ge=1, le=10)
    patience: int = field(3, "end after so many iterations without progress", ge=1, le=200)
    ask: bool = field(False, "let the conductor ask a person what only a person can decide")

    @property
    def never_blocks(self) -> bool:
        return not self.ask

    @property
    def roles(self) -> list[Role]:
        if self.until:
            judges = []
        else:
            judges = [self.role(self.judge)]
        return [self.role(None), self.role(self.worker), *judges]


class OrchestrateResult(BaseModel):
    reason: str = ""
    goal_complete: bool = False
    iterations: int = 0
    plan: list[PlannedPart] = []
    checks: list[CheckResult] = []
    verdict: Verdict | None = None
    commit: str | None = None


@pattern("orchestrate", spec=OrchestrateSpec, prompts=CONDUCTOR)
async def orchestrate(ctx: Context, spec: OrchestrateSpec) -> OrchestrateResult:
    """Have an agent plan, delegate and change its plan until checks or a judge see the goal."""
    result = ctx.keep(OrchestrateResult(commit=await ctx.commit("Before the conductor")))
    told = dict[str, str]()
    problem = ""
    idle = 0
    for number in range(1, spec.max_iterations + 1):
        result.iterations = number
        await _show(ctx, result, "conduct")
        try:
            asked = await _state(ctx, spec, result, {**told, _PROBLEM: problem})
            title = f"Conductor {number}"
            turn = await ctx.query(
                asked, Turn, title=title, role="conduct", cycle=number, coordinate=True
            )
        except Failed as failure:
            turn = Turn()
            problem = failure.reason
        else:
            result.plan, problem = turn.applied_to(result.plan, _MOST_PARTS)
        if turn.impossible:
            await _show(ctx, result, "failed", turn.impossible)
            raise Failed(f"the conductor gave up: {turn.impossible}", result)
        if turn.questions and spec.ask:
            said = await ctx.gather(*(ctx.ask(text, "") for text in turn.questions))
            told |= {f"You asked: {text}": reply or "(no answer)"
                     for text, reply in zip(turn.questions, said, strict=True)}  # fmt: skip
        merged = await _work(ctx, spec, result)
        looked = merged or (turn.done and not problem)
        reached = looked and await _is_reached(ctx, spec, result, claimed=turn.done)
        if reached:
            lack = ""
        else:
            lack = problem or _lack(result)
        await _show(ctx, result, "done" if reached else "not done", lack)
        if reached:
            result.goal_complete = True
            result.reason = f"reached in iteration {number}"
            return result
        if merged or (turn.questions and spec.ask):
            idle = 0
        else:
            idle = idle + 1
        if idle >= spec.patience:
            raise Failed(f"no progress in {format_count(idle, 'iteration')}: {lack}", result)
    rounds = format_count(spec.max_iterations, "iteration")
    raise Failed(f"the goal was not reached in {rounds}: {_lack(result)}", result)


async def _work(ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult) -> int:
    """Do what is open, all at once as far as it may be; how many parts were merged."""
    going = [part for part in result.plan if part.status == "open"]
    known = {part.id: part for part in result.plan}

    def may_begin(part: PlannedPart) -> bool:
        undone = [other for other in part.depends_on if known[other].status != "merged"]
        if undone:
            part.status = "blocked"
            part.reason = f"waits for {', '.join(undone)}"
        return not undone

    await _show(ctx, result, "work")
    await pursue(ctx, going, spec.max_workers, may_begin, partial(_do, ctx, spec, result))
    if going:
        result.commit = await ctx.commit(f"Iteration {result.iterations}")
    return sum(part.status == "merged" for part in going)


async def _do(
    ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult, part: PlannedPart
) -> None:
    if part.work:
        again = f"\n\n## It was tried before and failed: {part.reason}\n{part.log}"
    else:
        again = ""
    try:
        work = await _delegate(ctx, spec, part, part.task + again)
    except InvalidInput as error:
        part.status = "failed"
        part.reason = error.with_hint
        return
    part.work.append(work.id)
    part.reason = work.reason
    if work.ok:
        part.status = "merged"
    else:
        part.status = "failed"
    if isinstance(work, TaskResult):
        part.said = work.text[-_SAID:]
        failed = "\n".join(f"{one.name}:\n{one.output}" for one in work.failed_checks)
        part.log = f"{failed}\n{work.text}".strip()[-_LOG:]
    elif isinstance(work.result, dict):
        part.said = part.log = str(work.result.get("reason") or "")[-_SAID:]
    if work.ok and work.changed:
        async with ctx.lock("merge"):
            merged = await ctx.merge(work)
        if not merged.ok:
            if merged.conflict:
                part.status = "conflict"
            else:
                part.status = "failed"
            part.reason = merged.problem
    if part.status == "merged":
        part.log = ""  # what it said is enough
    await _show(ctx, result, "work")


async def _delegate(
    ctx: Context, spec: OrchestrateSpec, part: PlannedPart, prompt: str
) -> TaskResult | RunResult:
    if spec.worker:
        who = {"agent": spec.worker}
    else:
        who = {}
    named = {"title": take_first_line(part.title)}
    if part.kind == "orchestrate":
        if spec.max_depth == 1:
            raise InvalidInput("No conductor may be below this one (--max-depth).")
        below = spec.model_dump(include={"max_workers", "max_iterations", "patience", "judge"})
        below |= {"goal": prompt, "until": part.checks, "max_depth": spec.max_depth - 1}
        return await ctx.run("orchestrate", {**below, **named, "worker": spec.worker})
    if part.kind == "loop" and part.checks:
        return await ctx.run("loop", {"prompt": prompt, "until": part.checks, **named, **who})
    # Whoever says it is done and has changed nothing is not done.
    if ctx.is_git and not part.text_only:
        changes = ["diff_not_empty"]
    else:
        changes = []
    return await ctx.task(
        prompt, title=part.title, workspace="own", checks=[*changes, *part.checks],
        role="work", agent=spec.worker,
    )  # fmt: skip


async def _is_reached(
    ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult, claimed: bool
) -> bool:
    """Whether the goal is seen: by its commands, or by a judge once the conductor says so."""
    await _show(ctx, result, "verify")
    if spec.until:
        result.checks = (await ctx.check(*spec.until)).checks
        if result.commit is not None:
            # What a check leaves behind does not join the work.
            await ctx.revert(result.commit)
        return all(check.passed for check in result.checks)
    if not claimed:
        return False
    asked = ctx.prompt(
        "judge", CONDUCTOR["judge"], the_goal=spec.goal, what_was_changed=await ctx.changes()
    )
    try:
        result.verdict = await ctx.query(
            asked, Verdict, title="Judge", role="judge", cycle=result.iterations, agent=spec.judge
        )
    except Failed as failure:
        result.verdict = Verdict(reached=False, reason=failure.reason)
    return result.verdict.reached


def _lack(result: OrchestrateResult) -> str:
    """What is known to be missing, the evidence before the plan."""
    failed = [check.verdict for check in result.checks if not check.passed]
    if failed:
        return f"{', '.join(failed)} failed"
    if result.verdict is not None:
        return result.verdict.reason
    undone = [f"{one.id} is {one.status}" for one in result.plan if one.status != "merged"]
    return ", ".join(undone) or "the conductor did not say that it is done"


async def _show(ctx: Context, result: OrchestrateResult, phase: str, lack: str = "") -> None:
    """Tell what it is at, or how an iteration has ended and what it lacks then."""
    shown = {"id", "title", "kind", "depends_on", "status", "reason", "work"}
    plan = [part.model_dump(include=shown) for part in result.plan]
    await ctx.progress(iteration=result.iterations, phase=phase, plan=plan, lack=lack or None)


async def _state(
    ctx: Context, spec: OrchestrateSpec, result: OrchestrateResult, told: dict[str, str]
) -> str:
    """What the conductor is told at the beginning of a turn; told is what else it must know."""
    left = await ctx.budget()
    limits = [f"this is turn {result.iterations} of {spec.max_iterations}"]
    limits += [f"{spec.max_workers} parts at the same time", f"{_MOST_PARTS} parts in all"]
    limits += ["no conductor below you"] if spec.max_depth == 1 else []
    limits += [f"{value:g} {name} left" for name, value in left if value is not None]
    checks = [f"{one.verdict}:\n{one.output[-_LOG:]}" for one in result.checks if not one.passed]
    if result.verdict:
        verdict = result.verdict.reason
    else:
        verdict = ""
    prompt = ctx.prompt(
        "conduct",
        CONDUCTOR["conduct"],
        questions="" if spec.ask else "Nobody can be asked: leave questions empty.",
        the_goal=spec.goal,
        what_decides=", ".join(check.label for check in spec.until) or "a judge, who looks",
        the_plan="\n".join(part.told for part in result.plan) or "There is none yet: make one.",
        what_the_last_verification_found="\n".join(checks) or verdict,
        what_was_changed_so_far=await ctx.changes() if result.plan else "",
        limits="; ".join(limits),
    )
    return prompt + "".join(f"\n\n## {name}\n{text}" for name, text in told.items() if text)
