"""Again and again: until a condition holds, or to make a number better and keep the best."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kapelle.domain.answers import find_json, instructions
from kapelle.domain.errors import LimitReached
from kapelle.domain.json_schema import check_schema, matches_schema
from kapelle.domain.options import argument, command, option
from kapelle.domain.specs import CheckKind, Name, Seconds
from kapelle.domain.text import counted
from kapelle.patterns.context import Context, Interrupted
from kapelle.patterns.pipeline import StepOutcome, StepSpec, play_steps
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult
from kapelle.patterns.spec import Command, PatternSpec, Prompt, Role, RunCheck

Score = Annotated[float, Field(allow_inf_nan=False)]


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
        json_schema_extra=argument(
            "PROMPT",
            help="What to do; - reads it from stdin.",
            file=("--prompt-file", "Read the prompt from a file."),
            before="steps",
        ),
    )
    steps: list[StepSpec] = Field(
        default=[],
        max_length=20,
        description="instead of a prompt: the steps of every iteration, as in a pipeline",
        json_schema_extra=option("--step", metavar="PROMPT", kind="prompts"),
    )
    until: list[RunCheck] = Field(
        default=[],
        max_length=100,
        description="commands, or diff_not_empty, that must all pass for the loop to be done",
        json_schema_extra=option(metavar="COMMAND", kind="check"),
    )
    eval: Command | None = Field(
        default=None,
        description="a command whose last line is the number to make better",
        json_schema_extra=option(metavar="COMMAND"),
    )
    direction: Literal["minimize", "maximize"] | None = Field(
        default=None,
        description="whether the number is to become smaller or larger; with it the loop optimises",
        json_schema_extra=option(
            metavar="minimize|maximize",
            flags={
                "--minimize": ("minimize", "The smaller the number, the better."),
                "--maximize": ("maximize", "The larger the number, the better."),
            },
        ),
    )
    eval_mode: Literal["shell", "agent"] = Field(
        default="shell", description="who decides: commands (shell) or a judging agent (agent)"
    )
    eval_prompt: Prompt | None = Field(
        default=None,
        description="how the judge is to judge",
        json_schema_extra=option(metavar="TEXT", implies={"eval_mode": "agent"}),
    )
    eval_schema: dict[str, Any] | None = Field(
        default=None,
        description="a JSON schema for the judge's answer, with done or score in it",
        json_schema_extra=option(metavar="FILE", kind="json_file", implies={"eval_mode": "agent"}),
    )
    eval_timeout_s: Seconds = Field(
        default=600,
        description="the longest that a command of until, or eval, may take",
        json_schema_extra=option("--eval-timeout", metavar="DURATION", kind="duration"),
    )
    judge: Name | None = Field(
        default=None,
        description="the agent that judges; by default the one that works",
        json_schema_extra=option(metavar="AGENT", implies={"eval_mode": "agent"}),
    )
    judge_model: Name | None = Field(
        default=None,
        description="the judge's model",
        json_schema_extra=option(metavar="NAME", implies={"eval_mode": "agent"}),
    )
    target: Score | None = Field(
        default=None,
        description="the number that is good enough: done when it is reached, else failed",
    )
    max_iterations: int = Field(
        default=10, ge=0, le=1_000_000, description="the most iterations; 0 for any number"
    )
    max_failures: int = Field(
        default=3,
        ge=0,
        le=1_000_000,
        description="how many iterations in a row may fail; 0 for any number",
    )
    cooldown_s: float = Field(
        default=0,
        ge=0,
        le=31_536_000,
        allow_inf_nan=False,
        description="how long to wait between iterations",
        json_schema_extra=option("--cooldown", metavar="DURATION", kind="duration"),
    )
    checkpoint: bool = Field(
        default=False,
        description="carry the conversation on from one iteration to the next",
    )
    convergence: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="end after so many without a change, or with the same number; 0 for never",
    )

    @property
    def subject(self) -> str:
        return self.prompt or " → ".join(step.label for step in self.steps)

    @property
    def needs_git(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.until)

    @property
    def cast(self) -> list[Role]:
        judges = [self.role(self.judge, self.judge_model)] if self.eval_mode == "agent" else []
        workers = [self.role(step.agent, step.model, step.system_prompt) for step in self.steps]
        return [*(workers or [self.role(None)]), *judges]

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
    def _schema_asks_for_what_decides(self) -> "LoopSpec":
        if self.eval_schema is not None:
            asked = self.eval_schema.get("properties", {})
            wanted = ("score",) if self.optimises else ("done", "continue")
            if not any(name in asked for name in wanted):
                raise ValueError(f"eval_schema must have the property {wanted[0]}, which decides")
        return self

    @model_validator(mode="after")
    def _is_complete(self) -> "LoopSpec":
        if (self.prompt is None) == (not self.steps):
            raise ValueError("a loop has either a prompt or steps")
        if self.eval_mode == "agent":
            if self.eval is not None or self.until:
                raise ValueError(
                    "a judge decides (`eval_mode` agent), so leave `until` and `eval` out and tell "
                    "the judge what counts with `eval_prompt`"
                )
        elif self.eval_prompt or self.judge or self.eval_schema:
            raise ValueError("`eval_prompt`, `eval_schema` and `judge` need `eval_mode` agent")
        if self.optimises:
            if self.until:
                raise ValueError(
                    "`until` passes or not, so there is no number to better: give `eval` instead"
                )
            if self.eval is None and self.eval_mode == "shell":
                raise ValueError(
                    "there is no number to make better: add `eval`, a command that prints it"
                )
        else:
            if self.eval is not None or self.target is not None:
                raise ValueError(
                    "`eval` and `target` need to know which way the number is to go: "
                    "add `direction`, minimize or maximize"
                )
            if not self.until and self.eval_mode == "shell":
                raise ValueError(
                    "a loop needs a condition: `until`, or `eval` with `direction`, or `judge`"
                )
        return self


_JUDGE_CONDITION = """You judge work that others did in this directory. Decide whether it is done.
Look at the files yourself; change nothing.

## What was asked for
{task}

## How to judge
{criteria}

## What was changed so far
{changes}"""

_JUDGE_SCORE = """You judge work that others did in this directory. Give it a score: {direction}.
Look at the files yourself; change nothing.

## What was asked for
{task}

## How to judge
{criteria}

## What was changed so far
{changes}"""


_OUTPUT = 12_000


class Decision(BaseModel):
    done: bool = Field(description="whether the work is done")
    reasoning: str = Field(default="", description="why, and what is missing, in a few sentences")


class Rating(BaseModel):
    score: float = Field(description="the score", allow_inf_nan=False)
    reasoning: str = Field(default="", description="why, and what would make it better")


@dataclass(frozen=True)
class Evaluation:
    """passed is for conditions, score for numbers; output is what the next iteration is told."""

    passed: bool
    score: float | None
    output: str
    problem: str | None = None


async def evaluate(ctx: Context, spec: LoopSpec, number: int, task: str | None) -> Evaluation:
    """Judge what is in the workspace now."""
    if spec.eval_mode == "agent":
        return await _by_judge(ctx, spec)
    env = {"KAPELLE_ITERATION": str(number), "KAPELLE_TASK_ID": task or ""}
    if spec.optimises:
        scored = await ctx.score(spec.eval or "", timeout_s=spec.eval_timeout_s, env=env)
        return Evaluation(scored.value is not None, scored.value, scored.output, scored.problem)
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
    names = ", ".join(check.name for check in found.failed)
    return Evaluation(found.passed, None, output, f"failed: {names}" if names else None)


async def _by_judge(ctx: Context, spec: LoopSpec) -> Evaluation:
    changes = await ctx.changes() or "unknown"
    template = _JUDGE_SCORE if spec.optimises else _JUDGE_CONDITION
    prompt = template.format(
        direction="lower is better" if spec.direction == "minimize" else "higher is better",
        task=spec.subject,
        criteria=spec.eval_prompt or "Judge by what was asked for.",
        changes=changes,
    )
    try:
        if spec.eval_schema is not None:
            return await _by_schema(ctx, spec, prompt, spec.eval_schema)
        if spec.optimises:
            rating = await _ask(ctx, spec, prompt, Rating)
            return Evaluation(True, rating.score, rating.reasoning)
        decision = await _ask(ctx, spec, prompt, Decision)
    except Failed as failure:
        return Evaluation(False, None, failure.reason, failure.reason)
    problem = None if decision.done else decision.reasoning
    return Evaluation(decision.done, None, decision.reasoning, problem)


async def _ask(ctx: Context, spec: LoopSpec, prompt: str, shape: type[Any]) -> Any:
    return await ctx.query(prompt, shape, title="Judge", agent=spec.judge, model=spec.judge_model)


async def _by_schema(
    ctx: Context, spec: LoopSpec, prompt: str, schema: dict[str, Any]
) -> Evaluation:
    """A judge whose answer has the user's own shape, with done or score in it."""
    asked = f"{prompt}\n\n{instructions(schema)}"
    problem = ""
    for title in ("Judge", "Judge (again)"):
        reply = await ctx.task(
            asked + problem,
            title=title,
            agent=spec.judge,
            model=spec.judge_model,
            workspace="own",
            disposable=True,
        )
        if not reply.ok:
            raise Failed(f"Judge: {reply.reason}")
        found = _fitting(reply.text, schema)
        if isinstance(found, dict):
            return _as_evaluation(found, spec.optimises)
        problem = f"\n\n## Your answer before this one could not be used\n{found}\nAnswer again."
    raise Failed(f"the judge's answer does not fit its schema: {found}")


def _fitting(text: str, schema: dict[str, Any]) -> dict[str, Any] | str:
    """The object in a text that fits a schema, or what is wrong with the best one."""
    candidates = [value for value in find_json(text) if isinstance(value, dict)]
    for value in candidates:
        if not matches_schema(value, schema):
            return value
    problems = matches_schema(candidates[0], schema) if candidates else ["there is no JSON object"]
    return "; ".join(problems)


def _as_evaluation(found: dict[str, Any], optimises: bool) -> Evaluation:
    text = json.dumps(found, ensure_ascii=False)
    if optimises:
        score = found.get("score")
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise Failed(f"the judge's answer has no number named score: {text[:300]}")
        return Evaluation(True, float(score), text)
    done = found.get("done", None if "continue" not in found else not found["continue"])
    if not isinstance(done, bool):
        raise Failed(f"the judge's answer has no true or false named done: {text[:300]}")
    return Evaluation(done, None, text, None if done else text[:300])


_HISTORY = 20
_CHANGES = 4_000


async def feedback(
    ctx: Context, spec: LoopSpec, before: Sequence["Iteration"], last: Evaluation | None
) -> str:
    """Sections that are added to the prompt; nothing for the first round of a retry loop."""
    if not before:
        return ""
    parts = [_history(spec, before)]
    problem = before[-1].problem
    if problem and (last is None or problem != last.problem):
        parts.append(f"## What went wrong last time\n{problem[-2000:]}")
    if last is not None and last.output.strip():
        # The end of an output says what failed; its beginning is noise.
        end = last.output.strip()[-_OUTPUT:]
        parts.append(f"## The end of the last evaluation's output\n~~~\n{end}\n~~~")
    changes = await ctx.changes()
    if changes:
        parts.append(f"## What was changed so far\n~~~\n{changes[-_CHANGES:]}\n~~~")
    return "\n\n" + "\n\n".join(parts)


def _history(spec: LoopSpec, before: Sequence["Iteration"]) -> str:
    number = before[-1].number + 1
    lines = [f"## This is iteration {number} of a loop"]
    if spec.optimises:
        goal = "smaller" if spec.direction == "minimize" else "larger"
        how = f"`{spec.eval}`" if spec.eval else "a judge"
        target = f", at best {spec.target:.12g}" if spec.target is not None else ""
        lines.append(f"The score, measured by {how}, is to become {goal}{target}. So far:")
    else:
        lines.append("It ends when its condition holds, which it does not yet. So far:")
    for item in before[-_HISTORY:]:
        score = f" score {item.score:.12g}" if item.score is not None else ""
        back = ", so it was put back" if item.commit else ""
        fate = {"discard": f" (not better{back})", "fail": " (failed)"}.get(item.verdict, "")
        name = "the start" if item.number == 0 else f"iteration {item.number}"
        why = f": {item.problem[-200:]}" if item.problem and item.verdict == "fail" else ""
        lines.append(f"- {name}:{score or ' ' + item.verdict}{fate}{why}")
    return "\n".join(lines)


StoppedBy = Literal[
    "condition", "target", "max_iterations", "max_failures", "converged", "budget", "cancelled"
]


class Iteration(BaseModel):
    """What one round brought; verdict says what became of its work."""

    number: int
    verdict: Literal["start", "pass", "progress", "keep", "discard", "fail"]
    score: float | None = None
    commit: str | None = None
    tasks: list[str] = []
    problem: str | None = None
    changed: bool = False


class LoopResult(BaseModel):
    stopped_by: StoppedBy
    reason: str
    iterations: list[Iteration]
    best: Iteration | None = None
    scores: list[float | None] = []
    commit: str | None = None


class _Loop:
    """The state of one loop, all of it made of the results of steps."""

    def __init__(self, ctx: Context, spec: LoopSpec) -> None:
        self.ctx = ctx
        self.spec = spec
        self.iterations: list[Iteration] = []
        self.best: Iteration | None = None
        self.last: Evaluation | None = None
        self.previous: str | None = None  # the last task, whose context a checkpoint carries on
        self.kept: str | None = None  # what the branch goes on from
        self.failures = 0

    async def play(self) -> LoopResult:
        try:
            self.kept = await self.ctx.commit("Before the loop")
            if self.spec.optimises:
                await self._measure_start()
                if self.best is not None and self._reaches_target(self.best.score):
                    target = f"{self.spec.target:.12g}"
                    return self._end(
                        "target", f"{_shown(self.best)} reaches the target {target}", True
                    )
            for number in count(1):
                if self.spec.max_iterations and number > self.spec.max_iterations:
                    return self._exhausted()
                if number > 1 and self.spec.cooldown_s:
                    await self.ctx.sleep(self.spec.cooldown_s)
                await self._iterate(number)
                if stopped := self._stops():
                    return self._end(*stopped)
        except LimitReached as error:
            await self._put_back()
            return self._end("budget", error.message, good=False)
        except Interrupted as stop:
            stop.result = self._result("cancelled", "cancelled")
            # What was not measured is not what the branch is to hold.
            stop.restore = self.kept if self.spec.optimises else None
            raise
        raise AssertionError("unreachable")

    async def _measure_start(self) -> None:
        """Without the number at the start nobody can tell whether anything got better."""
        found = await evaluate(self.ctx, self.spec, 0, None)
        start = Iteration(number=0, verdict="start", score=found.score, commit=self.kept)
        start.problem = found.problem
        self.last = found
        self.iterations.append(start)
        if found.score is not None:
            self.best = start
        await self._put_back()

    async def _iterate(self, number: int) -> None:
        await self.ctx.progress(iteration=number, failures=self.failures, best=_score(self.best))
        item = Iteration(number=number, verdict="fail")
        self.iterations.append(item)
        problem = await self._work(item)
        if problem is None:
            self.last = await evaluate(self.ctx, self.spec, number, self.previous)
            item.score, item.problem = self.last.score, self.last.problem
            item.verdict = self._verdict(item)
        else:
            item.problem = problem
        await self._settle(item)

    async def _work(self, item: Iteration) -> str | None:
        """One round of work; returns what went wrong, None when it is to be evaluated."""
        note = await feedback(self.ctx, self.spec, self.iterations[:-1], self.last)
        problem, tasks = None, []
        if self.spec.steps:
            try:
                played = await self._steps(note)
            except Failed as failure:
                problem, played = failure.reason, failure.result.steps
            tasks = [step.task for step in played]
        else:
            tasks = [await self._task(item.number, note)]
            if not tasks[0].ok:
                problem = f"{tasks[0].status}: {tasks[0].reason}"
        item.tasks = [task.id for task in tasks]
        self.previous = item.tasks[-1] if item.tasks else self.previous
        before = self.kept
        item.commit = await self.ctx.commit(f"Iteration {item.number}")
        item.changed = item.commit != before
        return problem

    async def _steps(self, note: str) -> list[StepOutcome]:
        before = self.previous if self.spec.checkpoint else None
        return await play_steps(self.ctx, self.spec.steps, note=note, before=before)

    async def _task(self, number: int, note: str) -> TaskResult:
        return await self.ctx.task(
            (self.spec.prompt or "") + note,
            title=f"{self.spec.display_title} (iteration {number})",
            continue_from=self.previous if self.spec.checkpoint else None,
            keep_session=self.spec.checkpoint,
        )

    def _verdict(self, item: Iteration) -> Literal["pass", "progress", "keep", "discard", "fail"]:
        assert self.last is not None
        if not self.spec.optimises:
            return "pass" if self.last.passed else "progress"
        if item.score is None:
            return "fail"
        return "keep" if self._is_better(item.score) else "discard"

    def _is_better(self, score: float) -> bool:
        if self.best is None or self.best.score is None:
            return True
        if self.spec.direction == "minimize":
            return score < self.best.score
        return score > self.best.score

    async def _settle(self, item: Iteration) -> None:
        """Keep what is to be kept, put the rest back, and count."""
        if item.verdict == "keep":
            self.best = item
        if item.verdict in {"pass", "progress", "keep"} or not self.spec.optimises:
            self.kept = item.commit
        self.failures = self.failures + 1 if item.verdict == "fail" else 0
        await self._put_back()
        await self.ctx.progress(
            iteration=item.number, verdict=item.verdict, score=item.score,
            problem=item.problem and item.problem[-300:], best=_score(self.best),
        )  # fmt: skip

    async def _put_back(self) -> None:
        """Also what a check leaves behind does not join the work."""
        if self.kept is not None:
            await self.ctx.revert(self.kept)

    def _stops(self) -> tuple[StoppedBy, str, bool] | None:
        item, spec = self.iterations[-1], self.spec
        if item.verdict == "pass":
            return "condition", f"the condition holds after iteration {item.number}", True
        if self.best is not None and self._reaches_target(self.best.score):
            return "target", f"{_shown(self.best)} reaches the target {spec.target:.12g}", True
        if spec.max_failures and self.failures >= spec.max_failures:
            many = counted(self.failures, "iteration")
            why = f"{many} in a row failed; the last: {item.problem}"
            return "max_failures", why, self._has_improved and spec.target is None
        if converged := self._converged():
            return "converged", converged, self._has_improved and spec.target is None
        return None

    def _reaches_target(self, score: float | None) -> bool:
        target = self.spec.target
        if target is None or score is None:
            return False
        return score <= target if self.spec.direction == "minimize" else score >= target

    def _converged(self) -> str | None:
        """Whether going on is pointless: nothing changes, or the number stays the same."""
        span = self.spec.convergence
        rounds = [item for item in self.iterations if item.number > 0][-span:]
        if not span or len(rounds) < span:
            return None
        if self.ctx.is_git and all(not item.changed for item in rounds):
            return f"nothing was changed in {counted(span, 'iteration')}"
        scores = {item.score for item in rounds}
        if self.spec.optimises and len(scores) == 1 and None not in scores:
            return f"the score was {rounds[-1].score:.12g} in {counted(span, 'iteration')}"
        return None

    @property
    def _has_improved(self) -> bool:
        return self.best is not None and self.best.number > 0

    def _exhausted(self) -> LoopResult:
        limit = counted(self.spec.max_iterations, "iteration")
        if not self.spec.optimises:
            why = f"the condition did not hold after {limit}"
            return self._end("max_iterations", why, False)
        why = f"{limit} made"
        return self._end("max_iterations", why, self._has_improved and self.spec.target is None)

    def _end(self, stopped_by: StoppedBy, why: str, good: bool) -> LoopResult:
        if self.spec.optimises and stopped_by != "target":
            why = f"{why}; {self._achievement()}"
        result = self._result(stopped_by, why)
        if not good:
            raise Failed(why, result)
        return result

    def _result(self, stopped_by: StoppedBy, why: str) -> LoopResult:
        return LoopResult(
            stopped_by=stopped_by,
            reason=why,
            iterations=self.iterations,
            best=self.best,
            scores=[item.score for item in self.iterations],
            commit=self.kept,
        )

    def _achievement(self) -> str:
        spec, start = self.spec, self.iterations[0].score if self.iterations else None
        if self.best is None:
            return "there never was a score"
        if not self._has_improved:
            text = f"nothing was better than the start ({start:.12g})"
        else:
            began = f", {start:.12g} at the start" if start is not None else ""
            text = f"best: {_shown(self.best)}{began}"
        if not self.ctx.is_git and self.iterations[-1] is not self.best:
            text += "; in place nothing is put back, so the directory holds the last iteration"
        missed = spec.target is not None and not self._reaches_target(self.best.score)
        return f"{text}; the target {spec.target:.12g} was not reached" if missed else text


@pattern("loop", spec=LoopSpec)
async def loop(ctx: Context, spec: LoopSpec) -> LoopResult:
    """Repeat a prompt or steps until a condition holds, or to make a number better."""
    return await _Loop(ctx, spec).play()


def _score(item: Iteration | None) -> float | None:
    return item.score if item else None


def _shown(item: Iteration) -> str:
    where = f"iteration {item.number}" if item.number else "start"
    return f"{item.score:.12g} ({where})"
