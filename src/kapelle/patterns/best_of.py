"""The same task to several at once: checks sort them out, a score or a judge picks one."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kapelle.domain.options import command
from kapelle.domain.specs import CheckSpec, field, prompt_argument
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult
from kapelle.patterns.spec import (
    CandidateSpec,
    Direction,
    ModelName,
    OptionalAgentName,
    PatternSpec,
    Prompt,
    Role,
    ScoreCommand,
    ScoreTimeout,
    refuse,
)


class BestOfSpec(PatternSpec):
    """The same task to several at once; checks sort them out, a score or a judge picks one."""

    needs_git: ClassVar[bool] = True

    model_config = ConfigDict(
        json_schema_extra=command(
            "Give the same task to several at once and keep the best of what they made.",
            "Each works in a worktree of its own. What fails a check is out; of the rest a score "
            "or a judge picks one.",
        )
    )

    prompt: Prompt = Field(description="the task that all get", json_schema_extra=prompt_argument())
    candidates: list[CandidateSpec] = field(
        [], "who takes part: agent, agent:model, or an object", "--candidate",
        metavar="AGENT[:MODEL]", kind="list", max_length=20,
    )  # fmt: skip
    count: int | None = field(
        None, "so many tries of the one candidate or the run's agent; 2 when none is named", "-n",
        ge=2, le=20,
    )  # fmt: skip
    checks: list[CheckSpec] = field(
        [], "what must pass for a candidate to be chosen", "--check", kind="check", max_length=100
    )
    eval: ScoreCommand = field(None, "a command whose last line is a candidate's score")
    direction: Direction = field(None, "whether the smaller or the larger score wins")
    eval_timeout_s: ScoreTimeout = field(600, "the longest that eval may take")
    judge: OptionalAgentName = field(
        None, "the agent that chooses where there is no eval; by default the run's agent"
    )
    judge_model: ModelName = field(None, "the judge's model")

    @property
    def roles(self) -> list[Role]:
        if self.eval is None:
            judges = [self.role(self.judge, self.judge_model)]
        else:
            judges = []
        return [*(self.role(entrant.agent, entrant.model) for entrant in self.entrants), *judges]

    @property
    def entrants(self) -> list[CandidateSpec]:
        """All who take part, in order."""
        if len(self.candidates) > 1:
            return self.candidates
        return (self.candidates or [CandidateSpec()]) * (self.count or 2)

    @model_validator(mode="after")
    def _is_complete(self) -> "BestOfSpec":
        many = len(self.candidates)
        counted = self.count is not None
        scored = self.eval is not None
        directed = self.direction is not None
        refuse(
            (
                many > 1 and counted,
                "`count` is for tries of one candidate, and these are several candidates",
                ("count",),
            ),
            (
                many == 1 and not counted,
                "one candidate alone is no choice: name more with `candidates`, or add `count`",
                ("candidates", "count"),
            ),
            (
                scored != directed,
                "`eval` prints a number and `direction` says which is better: give both or neither",
                ("eval", "direction"),
            ),
            (
                scored and self.judge is not None,
                "either the number of `eval` decides or `judge` does: leave one of them out",
                ("eval", "judge"),
            ),
        )
        return self


_JUDGE = """Several agents did the same task, each in a copy of the files of its own. Choose the one
whose work is best: correct first, then simple, then complete.

## The task
{task}

{candidates}"""


class Candidate(BaseModel):
    number: int
    agent: str
    model: str | None
    task: TaskResult
    score: float | None = None
    problem: str | None = None
    changes: str = ""
    against_winner: str = ""


class BestOfResult(BaseModel):
    winner: int | None
    reason: str
    candidates: list[Candidate]
    commit: str | None = None


@pattern("best-of", spec=BestOfSpec, prompts={"judge": _JUDGE})
async def best_of(ctx: Context, spec: BestOfSpec) -> BestOfResult:
    """Give the same task to several agents or models, and keep the best result."""
    result = ctx.keep(BestOfResult(winner=None, reason="", candidates=[]))
    entrants = enumerate(spec.entrants, 1)
    await ctx.gather(*(_try(ctx, spec, number, who, result) for number, who in entrants))
    eligible = [candidate for candidate in result.candidates if candidate.problem is None]
    await ctx.progress(candidates=len(result.candidates), eligible=len(eligible))
    winner, why = await _choose(ctx, spec, result.candidates, eligible)
    result.winner = winner.number
    result.reason = why
    for candidate in result.candidates:
        if candidate is not winner:
            candidate.against_winner = await ctx.compare(winner.task, candidate.task)
            await ctx.put_away(candidate.task)
    merged = await ctx.merge(winner.task)
    result.commit = merged.commit
    await ctx.progress(winner=winner.number, agent=winner.agent, score=winner.score)
    if not merged.ok:
        raise Failed(f"{why}, but it could not be merged: {merged.problem}", result)
    return result


async def _try(
    ctx: Context, spec: BestOfSpec, number: int, who: CandidateSpec, result: BestOfResult
) -> None:
    """Have one do the task; it joins the result's candidates, which are in order of number."""
    task = await ctx.task(
        spec.prompt,
        title=f"{spec.display_title} (candidate {number})",
        role="candidate",
        agent=who.agent,
        model=who.model,
        workspace="own",
        checks=["diff_not_empty", *spec.checks],
    )
    candidate = Candidate(number=number, agent=task.agent, model=who.model, task=task)
    result.candidates.append(candidate)
    result.candidates.sort(key=lambda item: item.number)
    if not task.ok:
        candidate.problem = task.reason or task.status
        return
    candidate.changes = await ctx.changes(task)
    if spec.eval is not None:
        scored = await ctx.score(spec.eval, timeout_s=spec.eval_timeout_s, task=task.id)
        candidate.score = scored.value
        candidate.problem = scored.problem


async def _choose(
    ctx: Context, spec: BestOfSpec, candidates: list[Candidate], eligible: list[Candidate]
) -> tuple[Candidate, str]:
    if not eligible:
        told = "; ".join(f"{c.number} ({c.agent}): {c.problem}" for c in candidates)
        raise Failed(f"no candidate did it: {told}")
    if spec.eval is not None:
        if spec.direction == "minimize":
            sign = 1
        else:
            sign = -1
        best = min(eligible, key=lambda candidate: sign * (candidate.score or 0.0))
        return best, f"candidate {best.number} ({best.agent}) has the best score: {best.score:.12g}"
    if len(eligible) == 1:
        only = eligible[0]
        return only, f"only candidate {only.number} ({only.agent}) passed"
    return await _judge(ctx, spec, eligible)


async def _judge(
    ctx: Context, spec: BestOfSpec, eligible: list[Candidate]
) -> tuple[Candidate, str]:
    described = []
    for candidate in eligible:
        work = await ctx.changes(candidate.task, patch=True)
        described.append(
            f"## Candidate {candidate.number}\nIt said:\n~~~\n{candidate.task.text[-2000:]}\n~~~\n"
            f"Its changes:\n~~~\n{work}\n~~~"
        )
    prompt = ctx.prompt("judge", _JUDGE, task=spec.prompt, candidates="\n\n".join(described))
    winner = {"enum": [one.number for one in eligible], "description": "the best one's number"}
    why = {"type": "string", "description": "why, in a few sentences"}
    shape = {"type": "object", "properties": {"winner": winner, "reasoning": why}}
    choice = await ctx.query(
        prompt, {**shape, "required": ["winner"]}, title="Judge", role="judge", agent=spec.judge,
        model=spec.judge_model,
    )  # fmt: skip
    chosen = next(one for one in eligible if one.number == choice["winner"])
    if choice.get("reasoning"):
        said = f": {choice['reasoning']}"
    else:
        said = ""
    return chosen, f"the judge chose candidate {chosen.number}{said}"
