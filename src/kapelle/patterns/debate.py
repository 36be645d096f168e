"""Two sides debate in rounds; what comes of it may be acted on, and verified by the other side."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kapelle.domain.errors import BrokenRule
from kapelle.domain.options import command
from kapelle.domain.specs import CheckSpec, field, prompt_argument
from kapelle.domain.text import format_count
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed
from kapelle.patterns.spec import CandidateSpec, OptionalAgentName, PatternSpec, Prompt, Role

Side = Literal["one", "two"]
PROMPTS = {
    "state": """\
You are side {side} of two in a debate. Look into the matter by yourself, in the files where it is \
about them; change nothing. State your position, and your verdict: at first on what is proposed \
(partial where nothing is), later on the other side's last position. Agree only if you would sign \
it as it stands; change your mind where the other side is right, and say so.""",
    "minutes": """\
You took no part in this debate. Write its minutes: what was agreed, what is open and why, and \
what follows. Judge nothing yourself.""",
    "act": """\
You took part in a debate. Do now what is asked for, by what came of it.""",
    "verify": """\
You took part in a debate, and the other side has acted on it. Look at what was done, try what can \
be tried, and say whether it is what came of the debate; change nothing.""",
    "refine": """\
The other side has looked at your work. Mend what it found, or say why not.""",
}


class DebateSpec(PatternSpec):
    """A matter that two sides debate in rounds until they agree or the rounds are over."""

    never_blocks: ClassVar[bool] = True

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have two agents debate a matter in rounds, and one of them act on what comes of it."
        )
    )

    prompt: Prompt = Field(description="what it is about", json_schema_extra=prompt_argument())
    sides: list[CandidateSpec] = field(
        [], "the two who debate; by default the run's agent on both sides", "--side",
        metavar="AGENT[:MODEL]", kind="list", max_length=2,
    )  # fmt: skip
    rounds: int = field(3, "how many rounds there are at most", ge=1, le=10)
    loops: int = field(
        1, "how often the whole debate is held, each told what came of those before", ge=1, le=20
    )
    action: Prompt | None = field(
        None,
        'a task to do after the debate, such as "Implement what you agreed on"',
        metavar="PROMPT",
    )  # fmt: skip
    actor: Side = field("one", "the side that does it")
    verify: bool = field(False, "let the other side review the result, which is then revised once")
    checks: list[CheckSpec] = field(
        [], "what must pass when it is done", "--check", kind="check", max_length=100
    )
    minutes: OptionalAgentName = field(None, "an agent that takes no side, and writes the minutes")

    @property
    def roles(self) -> list[Role]:
        if self.minutes:
            third = [self.role(self.minutes)]
        else:
            third = []
        return [*(self.role(who.agent, who.model) for who in self.both.values()), *third]

    @property
    def both(self) -> dict[Side, CandidateSpec]:
        one, two = self.sides or [CandidateSpec(agent=self.agent, model=self.model)] * 2
        return {"one": one, "two": two}

    @model_validator(mode="after")
    def _fits(self) -> "DebateSpec":
        if len(self.sides) == 1:
            text = "a debate has two sides: name the other one with `sides`, too"
            raise BrokenRule(text, "sides")
        if self.action is None and (self.verify or self.checks):
            text = "`verify` and `checks` are about what is done: add `action`"
            raise BrokenRule(text, "verify", "checks", "action")
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
    """One debate with what followed; each round has the stances of both sides."""

    rounds: list[dict[Side, Stance]] = []
    consensus: bool = False
    minutes: Minutes | None = None
    acted: str | None = None  # what the actor said
    verifications: list[Verification] = []

    @property
    def told(self) -> str:
        lines = []
        for number, stances in enumerate(self.rounds, 1):
            for side, one in stances.items():
                reasons = "".join(f"\n- {reason}" for reason in one.reasons)
                lines.append(f"Round {number}, side {side}: {one.verdict}\n{one.position}{reasons}")
        if self.minutes is not None:
            lines = [self.minutes.model_dump_json(indent=1)]
        if self.consensus:
            came = "both sides agree"
        else:
            came = "they do not agree"
        return "\n\n".join([*lines, f"What came of it: {came}."])


class DebateResult(BaseModel):
    reason: str = ""
    consensus: bool = False
    debates: list[Debate] = []
    commit: str | None = None


@pattern("debate", spec=DebateSpec, prompts=PROMPTS)
async def debate(ctx: Context, spec: DebateSpec) -> DebateResult:
    """Have two agents debate a matter in rounds, and one of them act on what comes of it."""
    result = ctx.keep(DebateResult())
    for number in range(1, spec.loops + 1):
        if result.debates:
            before = result.debates[-1].told
        else:
            before = ""
        held = Debate()
        result.debates.append(held)
        while len(held.rounds) < spec.rounds and not held.consensus:
            await _show(ctx, spec, number, held, "debate")
            stances = await ctx.gather(
                *(_state(ctx, spec, side, before, held) for side in spec.both)
            )
            held.rounds.append(dict(zip(spec.both, stances, strict=True)))
            held.consensus = all(one.verdict == "agree" for one in stances)
        result.consensus = held.consensus
        if held.consensus:
            ended = "consensus in"
        else:
            ended = "disagreement after"
        result.reason = f"{ended} {format_count(len(held.rounds), 'round')}"
        await _show(ctx, spec, number, held, "minutes" if spec.minutes else "debate")
        if spec.minutes:
            asked = ctx.prompt("minutes", PROMPTS["minutes"], matter=spec.prompt, debate=held.told)
            held.minutes = await ctx.query(
                asked, Minutes, title="Minutes", role="minutes", agent=spec.minutes
            )
        if spec.action is not None:
            await _show(ctx, spec, number, held, "act")
            await _act(ctx, spec, held, result)
        await _show(ctx, spec, number, held, "done")
    return result


async def _state(ctx: Context, spec: DebateSpec, side: Side, before: str, held: Debate) -> Stance:
    prompt = ctx.prompt(
        "state", PROMPTS["state"], side=side, matter=spec.prompt, the_debate_before=before,
        debate_so_far=held.told if held.rounds else "",
    )  # fmt: skip
    who = spec.both[side]
    number = len(held.rounds) + 1
    return await ctx.query(
        prompt,
        Stance,
        title=f"Side {side} (round {number})",
        role=f"side_{side}",
        cycle=number,
        agent=who.agent,
        model=who.model,
    )


async def _act(ctx: Context, spec: DebateSpec, held: Debate, result: DebateResult) -> None:
    """Have one side act on the debate, and the other look at that, once more after a refinement."""
    actor = spec.both[spec.actor]
    other = spec.both["two" if spec.actor == "one" else "one"]
    told = {"matter": spec.prompt, "debate": held.told, "what_is_asked_for": spec.action or ""}
    role = "act"
    before = None
    for again in (False, True):
        work = await ctx.task(
            ctx.prompt(role, PROMPTS[role], **told),
            title="Refinement" if again else "Action",
            role=role,
            agent=actor.agent,
            model=actor.model,
            checks=spec.checks,
            continue_from=before,
        )
        held.acted = work.text
        result.commit = await ctx.commit("What came of the debate")
        if not work.ok:
            raise Failed(f"{result.reason}, but it was not done: {work.reason}", result)
        if not spec.verify:
            return
        asked = ctx.prompt("verify", PROMPTS["verify"], **told, what_was_said=work.text,
                           what_was_changed=await ctx.changes(patch=True))  # fmt: skip
        found = await ctx.query(
            asked,
            Verification,
            title="Verification",
            role="verify",
            agent=other.agent,
            model=other.model,
        )
        held.verifications.append(found)
        if found.holds:
            return
        role = "refine"
        before = work.id
        told["what_the_other_side_found"] = "\n".join(f"- {issue}" for issue in found.issues)
    raise Failed(f"{result.reason}, but the other side does not accept what was done", result)


async def _show(ctx: Context, spec: DebateSpec, number: int, held: Debate, phase: str) -> None:
    at = {"loop": number, "loops": spec.loops, "round": len(held.rounds), "rounds": spec.rounds}
    verdicts = [{side: one.verdict for side, one in pair.items()} for pair in held.rounds]
    await ctx.progress(**at, phase=phase, verdicts=verdicts)
