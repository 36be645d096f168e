"""What an iteration of a loop is worth: by commands, by a number, or by a judging agent."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from kapelle.domain.answers import find_json, instructions
from kapelle.domain.json_schema import matches_schema
from kapelle.domain.run_specs import LoopSpec
from kapelle.patterns.context import Context
from kapelle.patterns.results import Failed

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
