"""Again and again: until a condition holds, or to make a number better and keep the best."""

import json
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from kapelle.domain.json_schema import check_schema
from kapelle.domain.options import command
from kapelle.domain.specs import CheckKind, Name, field, prompt_argument
from kapelle.patterns.context import Context
from kapelle.patterns.loop_progress import Iteration, LoopLog, LoopResult
from kapelle.patterns.pipeline import StepOutcome, StepSpec, play_steps
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Decision, Failed, Judgement, Rating
from kapelle.patterns.roles import JUDGE
from kapelle.patterns.spec import (
    Direction,
    PatternSpec,
    Prompt,
    Role,
    RunChecks,
    ScoreCommand,
    ScoreTimeout,
    refuse,
)

_OUTPUT = 12_000


class LoopSpec(PatternSpec):
    """Again and again: until a condition holds, or to make a number better."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have an agent try again until a condition holds, or to make a number better.",
            "With --until it goes on until the commands pass. With --eval and --minimize or "
            "--maximize it keeps the best iteration and puts the others back. A judge decides "
            "instead with --judge or --eval-prompt.",
        )
    )

    prompt: Prompt | None = Field(
        default=None,
        description="what every iteration is asked to do",
        json_schema_extra=prompt_argument(before="steps"),
    )
    steps: list[StepSpec] = field(
        [], "instead of a prompt: the steps of every iteration, as in a pipeline", "--step",
        metavar="PROMPT", kind="prompts",
        help="a further step of every iteration, after the prompt", max_length=20,
    )  # fmt: skip
    until: RunChecks = field(
        [], "commands, or diff_not_empty, that must all pass for the loop to be done"
    )
    eval: ScoreCommand = field(None, "a command whose last line is the number to make better")
    direction: Direction = field(
        None, "whether the number is to become smaller or larger; with it the loop optimises"
    )
    eval_mode: Literal["shell", "agent"] = field(
        "shell", "who decides: shell for commands, agent for a judging agent"
    )
    eval_prompt: Prompt | None = field(
        None, "how the judge is to judge", metavar="TEXT", implies={"eval_mode": "agent"}
    )
    eval_schema: dict[str, Any] | None = field(
        None, "a JSON schema for the judge's answer, with done or score in it", metavar="FILE|JSON",
        kind="json_file", implies={"eval_mode": "agent"},
    )  # fmt: skip
    eval_timeout_s: ScoreTimeout = field(
        600, "the longest that a command of until, or eval, may take"
    )
    judge: Name | None = field(
        None, "the agent that judges; by default the one that works", metavar="AGENT",
        complete="agents", implies={"eval_mode": "agent"},
    )  # fmt: skip
    judge_model: Name | None = field(
        None, "the judge's model", metavar="NAME", complete="model", implies={"eval_mode": "agent"}
    )
    target: Annotated[float, Field(allow_inf_nan=False)] | None = field(
        None, "the number that is good enough: done when it is reached, else failed"
    )
    max_iterations: int = field(10, "the most iterations; 0 for any number", ge=0, le=1_000_000)
    max_failures: int = field(
        3, "how many iterations in a row may fail; 0 for any number", ge=0, le=1_000_000
    )
    cooldown_s: float = field(
        0, "how long to wait between iterations", "--cooldown", kind="duration", ge=0,
        le=31_536_000, allow_inf_nan=False,
    )  # fmt: skip
    checkpoint: bool = field(False, "carry the conversation on from one iteration to the next")
    convergence: int = field(
        3, "end after so many without a change, or with the same number; 0 for never", ge=0, le=1000
    )

    @property
    def subject(self) -> str:
        return self.prompt or " → ".join(step.label for step in self.steps)

    @property
    def needs_git(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.until)

    @property
    def roles(self) -> list[Role]:
        if self.eval_mode == "agent":
            judges = [self.role(self.judge, self.judge_model)]
        else:
            judges = []
        workers = [self.role(step.agent, step.model, step.system_prompt) for step in self.steps]
        return [*(workers or [self.role(None)]), *judges]

    @property
    def places(self) -> list[tuple[str, bool]]:
        return [(step.directory, True) for step in self.steps if step.directory]

    @property
    def optimises(self) -> bool:
        return self.direction is not None

    @field_validator("eval_schema")
    @classmethod
    def _schema_is_usable(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            check_schema(value)
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> "LoopSpec":
        judged = self.eval_mode == "agent"
        scored = self.eval is not None
        better = self.optimises
        if self.eval_schema is not None:
            Judgement.require(self.eval_schema, scored=better)
        refuse(
            (
                (self.prompt is None) == (not self.steps),
                "a loop has either a prompt or steps",
                (),
            ),
            (
                judged and (scored or self.until),
                "a judge decides (`eval_mode` agent), so leave `until` and `eval` out and tell the "
                "judge what counts with `eval_prompt`",
                ("eval_mode", "until", "eval", "eval_prompt"),
            ),
            (
                not judged and (self.eval_prompt or self.judge or self.eval_schema),
                "`eval_prompt`, `eval_schema` and `judge` need `eval_mode` agent",
                ("eval_prompt", "eval_schema", "judge", "eval_mode"),
            ),
            (
                better and self.until,
                "`until` passes or not, so there is no number to better: give `eval` instead",
                ("until", "eval"),
            ),
            (
                better and not scored and not judged,
                "there is no number to make better: add `eval`, a command that prints it",
                ("eval",),
            ),
            (
                not better and (scored or self.target is not None),
                "`eval` and `target` need to know which way the number is to go: add `direction`",
                ("eval", "target", "direction"),
            ),
            (
                not better and not self.until and not judged,
                "a loop needs a condition: `until`, or `eval` with `direction`, or `judge`",
                ("until", "eval", "direction", "judge"),
            ),
        )
        return self


@pattern("loop", spec=LoopSpec, prompts={"judge": JUDGE})
async def loop(ctx: Context, spec: LoopSpec) -> LoopResult:
    """Repeat a prompt or steps until a condition holds, or to make a number better."""
    log = ctx.keep(LoopLog(spec, await ctx.commit("Before the loop"), is_git=ctx.is_git))
    if spec.optimises:
        # Without the number at the start nobody can tell whether anything got better.
        await _put_back(ctx, log.start(await _judge(ctx, spec, 0, None)))
    for item in log.rounds():
        if item.number > 1 and spec.cooldown_s:
            await ctx.sleep(spec.cooldown_s)
        await ctx.progress(iteration=item.number, failures=log.failures, best=log.best_score)
        problem = await _work(ctx, spec, log, item)
        commit = await ctx.commit(f"Iteration {item.number}")
        if problem:
            found = None
        else:
            found = await _judge(ctx, spec, item.number, log.last_task)
        await _put_back(ctx, log.settle(item, commit, found, problem))
        await ctx.progress(
            iteration=item.number, verdict=item.verdict, score=item.score,
            problem=item.problem and item.problem[-300:], best=log.best_score,
            feedback=found.output[-300:] if found and spec.eval_mode == "agent" else None,
        )  # fmt: skip
    return log.ended()


async def _work(ctx: Context, spec: LoopSpec, log: LoopLog, item: Iteration) -> str | None:
    """One round of work; what went wrong, None when it is to be judged."""
    if log.before:
        note = log.feedback(await ctx.changes())
    else:
        note = ""
    if spec.checkpoint:
        earlier = log.last_task
    else:
        earlier = None
    if not spec.steps:
        task = await ctx.task(
            (spec.prompt or "") + note,
            title=f"{spec.display_title} (iteration {item.number})",
            role="work",
            cycle=item.number,
            continue_from=earlier,
            keep_session=spec.checkpoint,
        )
        item.tasks = [task.id]
        if task.ok:
            return None
        return f"{task.status}: {task.reason}"
    played: list[StepOutcome] = []
    problem = None
    try:
        await play_steps(ctx, spec.steps, played, note=note, before=earlier)
    except Failed as failure:
        problem = failure.reason
    item.tasks = [step.task.id for step in played]
    return problem


async def _put_back(ctx: Context, commit: str | None) -> None:
    """Also what a check leaves behind does not join the work."""
    if commit is not None:
        await ctx.revert(commit)


async def _judge(ctx: Context, spec: LoopSpec, number: int, task: str | None) -> Judgement:
    """Judge what is in the workspace now."""
    if spec.eval_mode == "agent":
        try:
            return await _by_agent(ctx, spec, number)
        except Failed as failure:
            return Judgement(False, None, failure.reason, failure.reason)
    env = {"KAPELLE_ITERATION": str(number), "KAPELLE_TASK_ID": task or ""}
    if spec.optimises:
        scored = await ctx.score(spec.eval or "", timeout_s=spec.eval_timeout_s, env=env)
        return Judgement(scored.value is not None, scored.value, scored.output, scored.problem)
    checks = [
        check
        if "timeout_s" in check.model_fields_set
        else check.model_copy(update={"timeout_s": spec.eval_timeout_s})
        for check in spec.until
    ]
    found = await ctx.check(*checks, env=env)
    # Each has its share, so that one that prints much does not hide the others.
    share = _OUTPUT // max(1, len(found.failed))
    output = "\n\n".join(f"$ {check.name}\n{check.output[-share:]}" for check in found.failed)
    names = ", ".join(check.verdict for check in found.failed)
    return Judgement(found.passed, None, output, f"failed: {names}" if names else None)


async def _by_agent(ctx: Context, spec: LoopSpec, number: int) -> Judgement:
    if spec.direction == "minimize":
        better = "lower is better"
    else:
        better = "higher is better"
    prompt = ctx.prompt(
        "judge",
        JUDGE,
        wanted=f"Give it a score: {better}." if spec.optimises else "Decide whether it is done.",
        task=spec.subject,
        criteria=spec.eval_prompt or "Judge by what was asked for.",
        changes=await ctx.changes() or "unknown",
    )
    who = {"agent": spec.judge, "model": spec.judge_model}
    asked = partial(ctx.query, prompt, title="Judge", role="judge", cycle=number, **who)
    if spec.eval_schema is not None:
        found = await asked(spec.eval_schema)
        text = json.dumps(found, ensure_ascii=False)
    else:
        found = (await asked(Rating if spec.optimises else Decision)).model_dump()
        text = found["reasoning"]
    return Judgement.read(found, text, scored=spec.optimises)
