"""Debate a matter between two agents in rounds; one may act on the outcome, the other verifies."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kapelle.domain.errors import BrokenRule
from kapelle.domain.options import command
from kapelle.domain.specs import CheckSpec, field, prompt_argument
from kapelle.domain.text import format_count
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult, bullet_list
from kapelle.patterns.spec import CandidateSpec, OptionalAgentName, PatternSpec, Prompt, Role

Side = Literal["one", "two"]
PROMPTS = {
    "state": """\
You are side {side} of two in a debate.

1. Look into the matter yourself, in the files if it is about them. Change nothing.
2. State your position.
3. Give your verdict: in the first round on the proposal (partial if there is none), later on the \
other side's last position.
4. Agree only if you would sign that position as it stands. Where the other side is right, change \
your mind and say so.""",
    "minutes": """\
You took no part in this debate. Write its minutes.

1. State what was agreed.
2. State what is open and why.
3. State what follows.
4. Judge nothing yourself.""",
    "act": """\
You took part in a debate. Do now what is asked for, in line with the outcome of the debate.""",
    "verify": """\
You took part in a debate, and the other side has acted on it.

1. Look at the work, and try what can be tried. Change nothing.
2. Decide whether the work agrees with the outcome of the debate.""",
    "refine": """\
The other side has looked at your work. Mend what it found, or state why not.""",
}


class DebateSpec(PatternSpec):
    """A matter that two sides debate in rounds, until they agree or the last round is over."""

    never_blocks: ClassVar[bool] = True

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have two agents debate a matter in rounds, and one of them act on the outcome.",
            examples=(
                'kapelle debate "SQLite or Postgres?" --action "Implement what you agreed on"',
            ),
        )
    )

    prompt: Prompt = Field(description="matter to debate", json_schema_extra=prompt_argument())
    sides: list[CandidateSpec] = field(
        [],
        "the two sides; by default the run's agent on both",
        "--side",
        metavar="AGENT[:MODEL]",
        kind="list",
        max_length=2,
    )
    rounds: int = field(3, "maximum number of rounds", ge=1, le=10)
    loops: int = field(
        1, "number of debates about the matter, each with the outcome of the last", ge=1, le=20
    )
    action: Prompt | None = field(
        None,
        'task to do after the debate, such as "Implement what you agreed on"',
        metavar="PROMPT",
    )
    actor: Side = field("one", "side that does this task")
    verify: bool = field(False, "let the other side review the result, which is then revised once")
    checks: list[CheckSpec] = field(
        [], "checks that the task must pass", "--check", kind="check", max_length=100
    )
    minutes: OptionalAgentName = field(None, "agent that takes no side and writes the minutes")

    @property
    def roles(self) -> list[Role]:
        roles = [self.role(who.agent, who.model) for who in self.both.values()]
        if self.minutes:
            roles.append(self.role(self.minutes))
        return roles

    @property
    def both(self) -> dict[Side, CandidateSpec]:
        one, two = self.sides or [CandidateSpec(agent=self.agent, model=self.model)] * 2
        return {"one": one, "two": two}

    @model_validator(mode="after")
    def _fits(self) -> "DebateSpec":
        if len(self.sides) == 1:
            problem = "a debate has two sides: name the other one with `sides`, too"
            raise BrokenRule(problem, "sides")
        if self.action is None and (self.verify or self.checks):
            problem = "`verify` and `checks` are about the action: add `action`"
            raise BrokenRule(problem, "verify", "checks", "action")
        return self


class Stance(BaseModel):
    verdict: Literal["agree", "disagree", "partial"]
    position: str = Field(description="what you hold, whole, so that it can be signed")
    reasons: list[str] = Field([], description="why, one by one")


class Minutes(BaseModel):
    summary: str = Field(description="what came of it, in a few sentences")
    agreed: list[str] = Field([], description="what both sides hold")
    disputed: list[str] = Field([], description="what is open, with both sides' reasons")


class Verification(BaseModel):
    holds: bool = Field(description="is what was done what came of the debate?")
    issues: list[str] = Field([], description="what is to be mended")


class Debate(BaseModel):
    """One debate: rounds with the stances of both sides, the actor's answer, verifications."""

    rounds: list[dict[Side, Stance]] = []
    consensus: bool = False
    minutes: Minutes | None = None
    acted: str | None = None
    verifications: list[Verification] = []

    @property
    def text(self) -> str:
        """Return the debate for prompts: its minutes, or else every stance, and the outcome."""
        if self.minutes is not None:
            sections = [self.minutes.model_dump_json(indent=1)]
        else:
            sections = self._stance_texts()
        outcome = "both sides agree" if self.consensus else "they do not agree"
        return "\n\n".join([*sections, f"What came of it: {outcome}."])

    def _stance_texts(self) -> list[str]:
        texts = []
        for number, stances in enumerate(self.rounds, 1):
            for side, stance in stances.items():
                lines = [f"Round {number}, side {side}: {stance.verdict}", stance.position]
                if stance.reasons:
                    lines.append(bullet_list(stance.reasons))
                texts.append("\n".join(lines))
        return texts


class DebateResult(BaseModel):
    reason: str = ""
    consensus: bool = False
    debates: list[Debate] = []
    commit: str | None = None


@pattern("debate", spec=DebateSpec, prompts=PROMPTS)
async def debate(ctx: Context, spec: DebateSpec) -> DebateResult:
    """Have two agents debate a matter in rounds, and one of them act on the outcome."""
    result = ctx.keep(DebateResult())
    for number in range(1, spec.loops + 1):
        earlier = result.debates[-1].text if result.debates else ""
        current = Debate()
        result.debates.append(current)
        while len(current.rounds) < spec.rounds and not current.consensus:
            await _report(ctx, spec, number, current, "debate")
            await _hold_round(ctx, spec, earlier, current)
        result.consensus = current.consensus
        ending = "consensus in" if current.consensus else "disagreement after"
        result.reason = f"{ending} {format_count(len(current.rounds), 'round')}"
        await _report(ctx, spec, number, current, "minutes" if spec.minutes else "debate")
        if spec.minutes:
            await _write_minutes(ctx, spec, current)
        if spec.action is not None:
            await _report(ctx, spec, number, current, "act")
            await _act(ctx, spec, current, result)
        await _report(ctx, spec, number, current, "done")
    return result


async def _hold_round(ctx: Context, spec: DebateSpec, earlier: str, current: Debate) -> None:
    """Have both sides state their positions at the same time."""
    stances = await ctx.gather(*(_state(ctx, spec, side, earlier, current) for side in spec.both))
    current.rounds.append(dict(zip(spec.both, stances, strict=True)))
    current.consensus = all(stance.verdict == "agree" for stance in stances)


async def _state(
    ctx: Context, spec: DebateSpec, side: Side, earlier: str, current: Debate
) -> Stance:
    """Have a side state its position; earlier is the text of the debate before this one."""
    prompt = ctx.prompt(
        "state",
        PROMPTS["state"],
        side=side,
        matter=spec.prompt,
        the_debate_before=earlier,
        debate_so_far=current.text if current.rounds else "",
    )
    who = spec.both[side]
    number = len(current.rounds) + 1
    return await ctx.query(
        prompt,
        Stance,
        title=f"Side {side} (round {number})",
        role=f"side_{side}",
        cycle=number,
        agent=who.agent,
        model=who.model,
    )


async def _write_minutes(ctx: Context, spec: DebateSpec, current: Debate) -> None:
    prompt = ctx.prompt("minutes", PROMPTS["minutes"], matter=spec.prompt, debate=current.text)
    current.minutes = await ctx.query(
        prompt, Minutes, title="Minutes", role="minutes", agent=spec.minutes
    )


async def _act(ctx: Context, spec: DebateSpec, current: Debate, result: DebateResult) -> None:
    """Have one side act on the debate and the other verify that, once more after a refinement.

    Raise Failed if the action fails, or if the other side does not accept it.
    """
    actor = spec.both[spec.actor]
    parts = {"matter": spec.prompt, "debate": current.text, "what_is_asked_for": spec.action or ""}
    earlier = None
    for role, title in (("act", "Action"), ("refine", "Refinement")):
        work = await ctx.task(
            ctx.prompt(role, PROMPTS[role], **parts),
            title=title,
            role=role,
            agent=actor.agent,
            model=actor.model,
            checks=spec.checks,
            continue_from=earlier,
        )
        current.acted = work.text
        result.commit = await ctx.commit("What came of the debate")
        if not work.ok:
            raise Failed(f"{result.reason}, but it was not done: {work.reason}", result)
        if not spec.verify:
            return
        verification = await _verify(ctx, spec, parts, work)
        current.verifications.append(verification)
        if verification.holds:
            return
        earlier = work.id
        parts["what_the_other_side_found"] = bullet_list(verification.issues)
    raise Failed(f"{result.reason}, but the other side does not accept what was done", result)


async def _verify(
    ctx: Context, spec: DebateSpec, parts: dict[str, str], work: TaskResult
) -> Verification:
    """Have the other side verify the work of the actor."""
    verifier = spec.both["two" if spec.actor == "one" else "one"]
    prompt = ctx.prompt(
        "verify",
        PROMPTS["verify"],
        **parts,
        what_was_said=work.text,
        what_was_changed=await ctx.changes(patch=True),
    )
    return await ctx.query(
        prompt,
        Verification,
        title="Verification",
        role="verify",
        agent=verifier.agent,
        model=verifier.model,
    )


async def _report(ctx: Context, spec: DebateSpec, number: int, current: Debate, phase: str) -> None:
    verdicts: list[dict[Side, str]] = []
    for stances in current.rounds:
        verdicts.append({side: stance.verdict for side, stance in stances.items()})
    await ctx.progress(
        loop=number,
        loops=spec.loops,
        round=len(current.rounds),
        rounds=spec.rounds,
        phase=phase,
        verdicts=verdicts,
    )
