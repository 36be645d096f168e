"""Repeat work until a condition holds, or to improve a number and keep the best iteration."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from kapelle.domain.json_schema import check_schema
from kapelle.domain.options import command
from kapelle.domain.specs import CheckKind, Name, field, prompt_argument
from kapelle.patterns.context import Context
from kapelle.patterns.loop.evaluation import JUDGE, Judgement, evaluate
from kapelle.patterns.loop.progress import Iteration, LoopLog, LoopResult
from kapelle.patterns.pipeline import StepOutcome, StepSpec, play_steps
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed
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


class LoopSpec(PatternSpec):
    """Repeat work until a condition holds, or to improve a number."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Repeat work until a condition holds, or to improve a number.",
            "With --until the loop ends when the commands pass. With --eval and --minimize or "
            "--maximize the loop keeps the best iteration and reverts the others. With --judge "
            "or --eval-prompt an agent judges instead.",
            examples=(
                'kapelle loop "fix the failing tests" --until "make test" -f',
                'kapelle loop "make it faster" --eval ./bench --minimize',
            ),
        )
    )

    prompt: Prompt | None = Field(
        default=None,
        description="prompt of every iteration",
        json_schema_extra=prompt_argument(before="steps"),
    )
    steps: list[StepSpec] = field(
        [],
        "steps of every iteration, as in a pipeline, instead of a prompt",
        "--step",
        metavar="PROMPT",
        kind="prompts",
        help="a further step of every iteration, after the prompt",
        max_length=20,
    )
    until: RunChecks = field([], "commands, or diff_not_empty, that must all pass to end the loop")
    eval: ScoreCommand = field(None, "command whose last line is the number to improve")
    direction: Direction = field(
        None, "whether a smaller or a larger number is better; makes the loop optimise"
    )
    eval_mode: Literal["shell", "agent"] = field(
        "shell", "who evaluates: shell for commands, agent for a judging agent"
    )
    eval_prompt: Prompt | None = field(
        None, "criteria for the judge", metavar="TEXT", implies={"eval_mode": "agent"}
    )
    eval_schema: dict[str, Any] | None = field(
        None,
        "JSON schema of the judge's answer, with the property done or score",
        metavar="FILE|JSON",
        kind="json_file",
        implies={"eval_mode": "agent"},
    )
    eval_timeout_s: ScoreTimeout = field(600, "time limit of each command of until, or of eval")
    judge: Name | None = field(
        None,
        "agent that judges; by default the agent that works",
        metavar="AGENT",
        complete="agents",
        implies={"eval_mode": "agent"},
    )
    judge_model: Name | None = field(
        None,
        "model of the judge",
        metavar="NAME",
        complete="model",
        implies={"eval_mode": "agent"},
    )
    target: Annotated[float, Field(allow_inf_nan=False)] | None = field(
        None, "number to reach; a loop that does not reach it fails"
    )
    max_iterations: int = field(
        10, "maximum number of iterations; 0 for no limit", ge=0, le=1_000_000
    )
    max_failures: int = field(
        3, "maximum number of failed iterations in a row; 0 for no limit", ge=0, le=1_000_000
    )
    cooldown_s: float = field(
        0,
        "pause between iterations",
        "--cooldown",
        kind="duration",
        ge=0,
        le=31_536_000,
        allow_inf_nan=False,
    )
    checkpoint: bool = field(False, "continue the conversation from one iteration to the next")
    convergence: int = field(
        3,
        "end after this many iterations without a change, or with the same number; 0 for never",
        ge=0,
        le=1000,
    )

    @property
    def subject(self) -> str:
        return self.prompt or " → ".join(step.label for step in self.steps)

    @property
    def needs_git(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.until)

    @property
    def roles(self) -> list[Role]:
        roles = [self.role(step.agent, step.model, step.system_prompt) for step in self.steps]
        if not roles:
            roles = [self.role(None)]
        if self.eval_mode == "agent":
            roles.append(self.role(self.judge, self.judge_model))
        return roles

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
        has_judge = self.eval_mode == "agent"
        has_eval = self.eval is not None
        optimises = self.optimises
        if self.eval_schema is not None:
            Judgement.require(self.eval_schema, scored=optimises)
        refuse(
            (
                (self.prompt is None) == (not self.steps),
                "a loop has either a prompt or steps",
                (),
            ),
            (
                has_judge and (has_eval or self.until),
                "a judge decides (`eval_mode` agent), so leave out `until` and `eval`, and give "
                "the judge its criteria with `eval_prompt`",
                ("eval_mode", "until", "eval", "eval_prompt"),
            ),
            (
                not has_judge and (self.eval_prompt or self.judge or self.eval_schema),
                "`eval_prompt`, `eval_schema` and `judge` need `eval_mode` agent",
                ("eval_prompt", "eval_schema", "judge", "eval_mode"),
            ),
            (
                optimises and self.until,
                "`until` passes or not, so there is no number to improve: give `eval` instead",
                ("until", "eval"),
            ),
            (
                optimises and not has_eval and not has_judge,
                "there is no number to improve: add `eval`, a command that prints it",
                ("eval",),
            ),
            (
                not optimises and (has_eval or self.target is not None),
                "`eval` and `target` need a direction: add `direction`",
                ("eval", "target", "direction"),
            ),
            (
                not optimises and not self.until and not has_judge,
                "a loop needs a condition: `until`, or `eval` with `direction`, or `judge`",
                ("until", "eval", "direction", "judge"),
            ),
        )
        return self


@pattern("loop", spec=LoopSpec, prompts={"judge": JUDGE})
async def loop(ctx: Context, spec: LoopSpec) -> LoopResult:
    """Repeat a prompt or steps until a condition holds, or to improve a number."""
    log = ctx.keep(LoopLog(spec, await ctx.commit("Before the loop"), is_git=ctx.is_git))
    if spec.optimises:
        # Iterations are compared with the number at the start.
        await _revert(ctx, log.start(await evaluate(ctx, spec, 0, None)))
    for iteration in log.rounds():
        if iteration.number > 1 and spec.cooldown_s:
            await ctx.sleep(spec.cooldown_s)
        await ctx.progress(iteration=iteration.number, failures=log.failures, best=log.best_score)
        problem = await _work(ctx, spec, log, iteration)
        commit = await ctx.commit(f"Iteration {iteration.number}")
        judgement = None
        if not problem:
            judgement = await evaluate(ctx, spec, iteration.number, log.last_task)
        await _revert(ctx, log.settle(iteration, commit, judgement, problem))
        await _report(ctx, spec, log, iteration, judgement)
    return log.final_result()


async def _work(ctx: Context, spec: LoopSpec, log: LoopLog, iteration: Iteration) -> str | None:
    """Do the work of one iteration; return the problem that prevents an evaluation, if any."""
    note = log.feedback(await ctx.changes()) if log.before else ""
    earlier = log.last_task if spec.checkpoint else None
    if not spec.steps:
        task = await ctx.task(
            (spec.prompt or "") + note,
            title=f"{spec.display_title} (iteration {iteration.number})",
            role="work",
            cycle=iteration.number,
            continue_from=earlier,
            keep_session=spec.checkpoint,
        )
        iteration.tasks = [task.id]
        if task.ok:
            return None
        return f"{task.status}: {task.reason}"
    outcomes: list[StepOutcome] = []
    problem = None
    try:
        await play_steps(ctx, spec.steps, outcomes, note=note, before=earlier)
    except Failed as failure:
        problem = failure.reason
    iteration.tasks = [step.task.id for step in outcomes]
    return problem


async def _revert(ctx: Context, commit: str | None) -> None:
    """Reset the branch to a commit; this also discards the files that an evaluation leaves."""
    if commit is not None:
        await ctx.revert(commit)


async def _report(
    ctx: Context,
    spec: LoopSpec,
    log: LoopLog,
    iteration: Iteration,
    judgement: Judgement | None,
) -> None:
    """Report the end of an iteration."""
    feedback = None
    if judgement is not None and spec.eval_mode == "agent":
        feedback = judgement.output[-300:]
    await ctx.progress(
        iteration=iteration.number,
        verdict=iteration.verdict,
        score=iteration.score,
        problem=iteration.problem and iteration.problem[-300:],
        best=log.best_score,
        feedback=feedback,
    )
