"""What an iteration of a loop is worth: by commands, by a number, or by a judging agent."""

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from kapelle.patterns.context import Context
from kapelle.patterns.results import Failed

if TYPE_CHECKING:
    from kapelle.patterns.loop import LoopSpec

_PROMPT = """You judge work that others did in this directory. {wanted}
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
class Judgement:
    """passed is for conditions, score for numbers; output is what the next iteration is told."""

    passed: bool
    score: float | None
    output: str
    problem: str | None = None


async def judge(ctx: Context, spec: "LoopSpec", number: int, task: str | None) -> Judgement:
    """Judge what is in the workspace now."""
    if spec.eval_mode == "agent":
        try:
            return await _by_agent(ctx, spec)
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


async def _by_agent(ctx: Context, spec: "LoopSpec") -> Judgement:
    better = "lower is better" if spec.direction == "minimize" else "higher is better"
    prompt = _PROMPT.format(
        wanted=f"Give it a score: {better}." if spec.optimises else "Decide whether it is done.",
        task=spec.subject,
        criteria=spec.eval_prompt or "Judge by what was asked for.",
        changes=await ctx.changes() or "unknown",
    )
    asked = partial(ctx.query, prompt, title="Judge", agent=spec.judge, model=spec.judge_model)
    if spec.eval_schema is not None:
        found = await asked(spec.eval_schema)
        text = json.dumps(found, ensure_ascii=False)
    else:
        found = (await asked(Rating if spec.optimises else Decision)).model_dump()
        text = found["reasoning"]
    if spec.optimises:
        score = found.get("score")
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise Failed(f"the judge's answer has no number named score: {text[:300]}")
        return Judgement(True, float(score), text)
    done = found.get("done", None if "continue" not in found else not found["continue"])
    if not isinstance(done, bool):
        raise Failed(f"the judge's answer has no true or false named done: {text[:300]}")
    return Judgement(done, None, text, None if done else text)
