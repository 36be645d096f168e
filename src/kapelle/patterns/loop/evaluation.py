"""The evaluation of an iteration: by commands, by a score or by a judging agent."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from kapelle.domain.json_schema import resolve_references
from kapelle.domain.specs import CheckSpec
from kapelle.patterns.context import Context
from kapelle.patterns.results import Failed

if TYPE_CHECKING:
    from kapelle.patterns.loop import LoopSpec

# Characters of the output of failed commands that the next iteration gets to read.
_OUTPUT = 12_000
JUDGE = """You judge work that others did in this directory.

1. Look at the files yourself. Do not rely on claims.
2. Change nothing.
3. {wanted}

## What was asked for
{task}

## How to judge
{criteria}

## What was changed so far
{changes}"""


class Decision(BaseModel):
    done: bool = Field(description="whether the work is done")
    reasoning: str = Field(default="", description="why, and what is missing, in a few sentences")


class Rating(BaseModel):
    score: float = Field(description="the score", allow_inf_nan=False)
    reasoning: str = Field(default="", description="why, and what would make it better")


_FINITE = TypeAdapter(Annotated[float, Field(strict=True, allow_inf_nan=False)])


@dataclass(frozen=True)
class Judgement:
    """The evaluation of one iteration.

    A loop with a condition reads passed, a loop that optimises reads score. output is the text
    that the next iteration gets to read.
    """

    passed: bool
    score: float | None
    output: str
    problem: str | None = None

    @staticmethod
    def require(schema: dict[str, Any], *, scored: bool) -> None:
        """Raise ValueError unless a schema for a judge's answer has the deciding property."""
        properties = resolve_references(schema).get("properties", {})
        if scored:
            names = ["score"]
            kinds = {"number", "integer"}
            kind = "a number"
        else:
            names = ["done", "continue"]
            kinds = {"boolean"}
            kind = "true or false"
        if not any(name in properties and _allows(properties[name], kinds) for name in names):
            raise ValueError(
                f"eval_schema must have the property {names[0]}, {kind}, which decides"
            )

    @classmethod
    def read(cls, answer: dict[str, Any], text: str, *, scored: bool) -> "Judgement":
        """Return the judgement in a judge's answer; raise Failed if the answer has none."""
        if scored:
            try:
                return cls(True, _FINITE.validate_python(answer.get("score")), text)
            except ValidationError:
                reason = f"the judge's answer has no number named score: {text[:300]}"
                raise Failed(reason) from None
        is_done = answer.get("done")
        if is_done is None and "continue" in answer:
            is_done = not answer["continue"]
        if not isinstance(is_done, bool):
            raise Failed(f"the judge's answer has no true or false named done: {text[:300]}")
        return cls(is_done, None, text, None if is_done else text)


def _allows(part: Any, kinds: set[str]) -> bool:
    """Tell whether a part of a schema allows a value of one of these kinds."""
    types = part.get("type", kinds) if isinstance(part, dict) else kinds
    if isinstance(types, str):
        return types in kinds
    return not kinds.isdisjoint(types)


async def evaluate(ctx: Context, spec: "LoopSpec", number: int, task: str | None) -> Judgement:
    """Evaluate what the workspace contains after an iteration; task is its last task."""
    if spec.eval_mode == "agent":
        try:
            return await _ask_judge(ctx, spec, number)
        except Failed as failure:
            return Judgement(False, None, failure.reason, failure.reason)
    env = {"KAPELLE_ITERATION": str(number), "KAPELLE_TASK_ID": task or ""}
    if spec.optimises:
        score = await ctx.score(spec.eval or "", timeout_s=spec.eval_timeout_s, env=env)
        return Judgement(score.value is not None, score.value, score.output, score.problem)
    checks = [_with_timeout(check, spec.eval_timeout_s) for check in spec.until]
    outcome = await ctx.check(*checks, env=env)
    if outcome.passed:
        return Judgement(True, None, "")
    # Each command has its share, so that one that prints much does not hide the others.
    share = _OUTPUT // len(outcome.failed)
    output = "\n\n".join(f"$ {check.name}\n{check.output[-share:]}" for check in outcome.failed)
    names = ", ".join(check.verdict for check in outcome.failed)
    return Judgement(False, None, output, f"failed: {names}")


def _with_timeout(check: CheckSpec, timeout_s: float) -> CheckSpec:
    if "timeout_s" in check.model_fields_set:
        return check
    return check.model_copy(update={"timeout_s": timeout_s})


async def _ask_judge(ctx: Context, spec: "LoopSpec", number: int) -> Judgement:
    shape: Any = Decision
    request = "Decide whether the work is done."
    if spec.optimises:
        shape = Rating
        better = "lower" if spec.direction == "minimize" else "higher"
        request = f"Give it a score: {better} is better."
    prompt = ctx.prompt(
        "judge",
        JUDGE,
        wanted=request,
        task=spec.subject,
        criteria=spec.eval_prompt or "Judge by what was asked for.",
        changes=await ctx.changes() or "unknown",
    )
    answer: Any = await ctx.query(
        prompt,
        shape if spec.eval_schema is None else spec.eval_schema,
        title="Judge",
        role="judge",
        cycle=number,
        agent=spec.judge,
        model=spec.judge_model,
    )
    if isinstance(answer, BaseModel):
        values = answer.model_dump()
        text = values["reasoning"]
    else:
        values = answer
        text = json.dumps(values, ensure_ascii=False)
    return Judgement.read(values, text, scored=spec.optimises)
