"""Give one task to several agents: checks exclude some, a score or a judge picks the best."""

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
    """One task for several candidates, of which checks and a score or a judge pick the best."""

    needs_git: ClassVar[bool] = True

    model_config = ConfigDict(
        json_schema_extra=command(
            "Give the same task to several agents and keep the best result.",
            "Each candidate works in its own worktree. A failed check excludes a candidate; a "
            "score or a judge picks one of the others.",
            examples=(
                'kapelle best-of "speed up the parser" --candidate claude --candidate codex',
                'kapelle best-of "speed up the parser" -n 3 --eval ./bench --minimize',
            ),
        )
    )

    prompt: Prompt = Field(
        description="task for all candidates", json_schema_extra=prompt_argument()
    )
    candidates: list[CandidateSpec] = field(
        [],
        "candidates: agent, agent:model, or an object",
        "--candidate",
        metavar="AGENT[:MODEL]",
        kind="list",
        max_length=20,
    )
    count: int | None = field(
        None,
        "number of tries of the only candidate or the run's agent; 2 if no candidate is named",
        "-n",
        ge=2,
        le=20,
    )
    checks: list[CheckSpec] = field(
        [],
        "checks that a candidate must pass to be chosen",
        "--check",
        kind="check",
        max_length=100,
    )
    eval: ScoreCommand = field(None, "command whose last line is a candidate's score")
    direction: Direction = field(None, "whether the smaller or the larger score wins")
    eval_timeout_s: ScoreTimeout = field(600, "time limit of eval")
    judge: OptionalAgentName = field(
        None, "agent that chooses where there is no eval; by default the run's agent"
    )
    judge_model: ModelName = field(None, "model of the judge")

    @property
    def roles(self) -> list[Role]:
        roles = [self.role(entrant.agent, entrant.model) for entrant in self.entrants]
        if self.eval is None:
            roles.append(self.role(self.judge, self.judge_model))
        return roles

    @property
    def entrants(self) -> list[CandidateSpec]:
        """Return every candidate, in order, one for each of its tries."""
        if len(self.candidates) > 1:
            return self.candidates
        return (self.candidates or [CandidateSpec()]) * (self.count or 2)

    @model_validator(mode="after")
    def _is_complete(self) -> "BestOfSpec":
        number = len(self.candidates)
        has_count = self.count is not None
        has_eval = self.eval is not None
        has_direction = self.direction is not None
        refuse(
            (
                number > 1 and has_count,
                "`count` is for tries of one candidate, and these are several candidates",
                ("count",),
            ),
            (
                number == 1 and not has_count,
                "one candidate alone is no choice: name more with `candidates`, or add `count`",
                ("candidates", "count"),
            ),
            (
                has_eval != has_direction,
                "`eval` prints a number and `direction` says which is better: give both or neither",
                ("eval", "direction"),
            ),
            (
                has_eval and self.judge is not None,
                "either the number of `eval` decides or `judge` does: leave one of them out",
                ("eval", "judge"),
            ),
        )
        return self


_JUDGE = """Several agents did the same task, each in its own copy of the files.

1. Compare their work.
2. Choose the one whose work is best: correct first, then simple, then complete.

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
    winner, reason = await _choose(ctx, spec, result.candidates, eligible)
    result.winner = winner.number
    result.reason = reason
    for candidate in result.candidates:
        if candidate is not winner:
            candidate.against_winner = await ctx.compare(winner.task, candidate.task)
            await ctx.put_away(candidate.task)
    merge = await ctx.merge(winner.task)
    result.commit = merge.commit
    await ctx.progress(winner=winner.number, agent=winner.agent, score=winner.score)
    if not merge.ok:
        raise Failed(f"{reason}, but it could not be merged: {merge.problem}", result)
    return result


async def _try(
    ctx: Context, spec: BestOfSpec, number: int, entrant: CandidateSpec, result: BestOfResult
) -> None:
    """Have a candidate do the task, and add it to the result in order of number."""
    task = await ctx.task(
        spec.prompt,
        title=f"{spec.display_title} (candidate {number})",
        role="candidate",
        agent=entrant.agent,
        model=entrant.model,
        workspace="own",
        checks=["diff_not_empty", *spec.checks],
    )
    candidate = Candidate(number=number, agent=task.agent, model=entrant.model, task=task)
    result.candidates.append(candidate)
    result.candidates.sort(key=lambda item: item.number)
    if not task.ok:
        candidate.problem = task.reason or task.status
        return
    candidate.changes = await ctx.changes(task)
    if spec.eval is not None:
        score = await ctx.score(spec.eval, timeout_s=spec.eval_timeout_s, task=task.id)
        candidate.score = score.value
        candidate.problem = score.problem


async def _choose(
    ctx: Context, spec: BestOfSpec, candidates: list[Candidate], eligible: list[Candidate]
) -> tuple[Candidate, str]:
    """Return the best eligible candidate and the reason; raise Failed if none is eligible."""
    if not eligible:
        problems = "; ".join(f"{one.number} ({one.agent}): {one.problem}" for one in candidates)
        raise Failed(f"no candidate did it: {problems}")
    if spec.eval is not None:
        # With this factor the smallest score is the best one.
        sign = 1 if spec.direction == "minimize" else -1
        best = min(eligible, key=lambda candidate: sign * (candidate.score or 0.0))
        return best, f"candidate {best.number} ({best.agent}) has the best score: {best.score:.12g}"
    if len(eligible) == 1:
        only = eligible[0]
        return only, f"only candidate {only.number} ({only.agent}) passed"
    return await _judge(ctx, spec, eligible)


async def _judge(
    ctx: Context, spec: BestOfSpec, eligible: list[Candidate]
) -> tuple[Candidate, str]:
    """Have a judge choose a candidate; return it with the reason."""
    descriptions = []
    for candidate in eligible:
        diff = await ctx.changes(candidate.task, patch=True)
        descriptions.append(
            f"## Candidate {candidate.number}\nIt said:\n~~~\n{candidate.task.text[-2000:]}\n~~~\n"
            f"Its changes:\n~~~\n{diff}\n~~~"
        )
    prompt = ctx.prompt("judge", _JUDGE, task=spec.prompt, candidates="\n\n".join(descriptions))
    numbers = [candidate.number for candidate in eligible]
    schema = {
        "type": "object",
        "properties": {
            "winner": {"enum": numbers, "description": "the best one's number"},
            "reasoning": {"type": "string", "description": "why, in a few sentences"},
        },
        "required": ["winner"],
    }
    choice = await ctx.query(
        prompt, schema, title="Judge", role="judge", agent=spec.judge, model=spec.judge_model
    )
    winner = next(candidate for candidate in eligible if candidate.number == choice["winner"])
    reason = f"the judge chose candidate {winner.number}"
    if choice.get("reasoning"):
        reason += f": {choice['reasoning']}"
    return winner, reason
