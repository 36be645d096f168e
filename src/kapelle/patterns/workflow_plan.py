"""The plan of a workflow: its milestones, what its phases say, and how far it is."""

import re
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, model_validator

from kapelle.domain.answers import read_answer
from kapelle.domain.errors import BrokenRule
from kapelle.domain.specs import Money, Spec, Turns, field
from kapelle.domain.text import make_title

Phase = Literal["assess", "review", "implement"]
# What of the plan, the contract and the worklog goes into a prompt.
_TOLD = 50_000
_PLAN = 25_000
_CONTRACT = 10_000
_MOST = 100
_BOX = re.compile(r"^\s*[-*] \[[ xX]\] (?:\d+[.)] )?(.+)$")
_CHECK = re.compile(r"[,;(]?\s*check:\s*`([^`]+)`\)?", re.IGNORECASE)
_HEADING = re.compile(r"^#+ *contract\b.*$", re.IGNORECASE | re.MULTILINE)


class PhaseLimit(Spec):
    """What one phase may use; as a plain string, PHASE:turns=N,usd=N,minutes=N."""

    phase: Phase = Field(description="assess, review or implement")
    turns: Turns | None = field(None, "so many turns")
    usd: Money | None = field(None, "so much money")
    minutes: float | None = field(None, "so long", ge=0.001, le=500_000, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        phase, _, limits = value.partition(":")
        # Completion is what ends a phase without limits.
        pairs = [part.partition("=") for part in limits.split(",") if part != "completion"]
        for name, _, _ in pairs:
            if name.strip() not in {"turns", "usd", "minutes"}:
                known = "turns, usd, minutes or completion, as in implement:turns=40,usd=2"
                text = f"`limits` {value!r}: {name.strip()!r} is none of {known}"
                raise BrokenRule(text, "limits")
        return {"phase": phase, **{name.strip(): amount for name, _, amount in pairs}}

    @property
    def of_task(self) -> dict[str, Any]:
        """The same as the limits of a task."""
        if self.minutes is None:
            seconds = None
        else:
            seconds = self.minutes * 60
        return {"max_turns": self.turns, "budget_usd": self.usd, "timeout_s": seconds}


class Milestone(BaseModel):
    title: str
    details: str = ""
    check: str | None = None
    blind: bool = False  # whether that passed before anything was done, and so shows nothing
    evidence: str | None = None  # what it was ticked by

    @property
    def sees(self) -> bool:
        """Whether it has a check that can show it."""
        return self.check is not None and not self.blind

    @property
    def text(self) -> str:
        if self.check:
            check = f" check: `{self.check}`"
        else:
            check = ""
        return f"{self.title}{check}" + "".join(f"\n  {line}" for line in self.details.split("\n"))


class Block(BaseModel):
    """Why it does not go on, where, and what a person can do about that."""

    code: Literal["agents", "answer", "branch", "plan", "progress"]
    phase: Phase
    cycle: int
    reason: str
    fix: str


class PhaseEntry(BaseModel):
    """What one phase of one cycle came to."""

    cycle: int
    phase: Phase
    agent: str
    task: str
    text: str
    commit: str | None = None


class MilestoneReview(BaseModel):
    done: list[int] = Field([], description="numbers of milestones that are done, as you saw")
    reopen: list[int] = Field([], description="numbers of ticked milestones that do not hold")
    plan: str = Field("", description="the whole plan anew, in its form, if it has to change")
    issues: list[str] = Field([], description="what is to be mended next")
    summary: str = Field(description="what you ran and looked at, and what you found")


class WorkflowResult(BaseModel):
    reason: str = ""
    phase: Phase = "assess"
    cycle: int = 0
    milestones: list[Milestone] = []
    contract: str = ""
    issues: list[str] = []
    worklog: list[PhaseEntry] = []
    blocked: Block | None = None
    commit: str | None = None

    @property
    def open(self) -> list[Milestone]:
        return [one for one in self.milestones if one.evidence is None]

    @property
    def done(self) -> int:
        return len(self.milestones) - len(self.open)

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of how far it is."""
        milestones = [one.model_dump(exclude={"details"}) for one in self.milestones]
        where = self.model_dump(include={"phase", "cycle", "blocked"})
        return {**where, "done": self.done, "milestones": milestones}

    @property
    def plan(self) -> str:
        numbered = enumerate(self.milestones, 1)
        return "\n".join(
            f"- [{' ' if one.evidence is None else 'x'}] {number}. {one.text}".rstrip()
            for number, one in numbered
        )

    def go_to(self, said: str) -> str:
        """Go to where a person says, such as `implement 3`; otherwise what is wrong with that."""
        words = said.lower().split()
        if words == ["resume"]:
            return ""
        phase = next((known for known in get_args(Phase) if words[:1] == [known]), None)
        if len(words) == 2:
            number = words[1]
        else:
            number = str(self.cycle)
        if phase is None or len(words) > 2 or not number.isdecimal():
            return f"{make_title(said, 60)!r} is no phase with a cycle. "
        if phase != "assess" and not self.milestones:
            return "There is no plan yet: begin with assess. "
        if phase == "implement" and not self.open:
            return "No milestone is open: begin with review. "
        if phase != "assess" and not 1 <= int(number) <= self.cycle:
            return f"It has come to cycle {self.cycle}: name one from 1 to {self.cycle}. "
        self.phase, self.cycle = phase, 0 if phase == "assess" else int(number)
        return ""

    def replan(self, milestones: list[Milestone]) -> None:
        """Take over a plan; what was ticked by evidence stays so, and nothing else is."""
        ticked = {one.title: one.evidence for one in self.milestones}
        for one in milestones:
            one.evidence = ticked.get(one.title)
        self.milestones = milestones

    @property
    def told(self) -> dict[str, str]:
        """What every prompt is told; of the worklog, what is new and fits."""
        plan = self.plan[:_PLAN]
        contract = self.contract[:_CONTRACT]
        recent = list[str]()
        left = _TOLD - len(plan) - len(contract)
        for entry in reversed(self.worklog):
            text = f"### Cycle {entry.cycle}, {entry.phase}, {entry.agent}\n{entry.text}\n\n"
            if len(text) > left:
                break
            left -= len(text)
            recent.insert(0, text)
        issues = "\n".join(f"- {issue}" for issue in self.issues)[:left]
        return {
            "plan": plan, "contract": contract, "worklog": "".join(recent).strip(),
            "what_the_review_found": issues,
        }  # fmt: skip


def read_plan(text: str) -> list[Milestone]:
    """The milestones of a plan in Markdown; raises ValueError if it has none."""
    found: list[Milestone] = []
    for line in text.splitlines():
        if box := _BOX.match(line):
            check = _CHECK.search(box[1])
            title = make_title(_CHECK.sub("", box[1]))
            found.append(Milestone(title=title, check=check[1].strip() if check else None))
        elif found and line.strip() and not line.startswith("#"):
            one = found[-1]
            if not one.check and (check := _CHECK.search(line)):
                one.check = check[1].strip()
            else:
                one.details = f"{one.details}\n{line.strip()}".strip()
    found = [*{one.title: one for one in found if one.title}.values()][:_MOST]
    if not found:
        raise ValueError("it has no milestone: write each as a line `- [ ] what is true then`")
    return found


def read_review(text: str) -> MilestoneReview:
    """A review; raises ValueError also where the plan in it has no milestone."""
    review: MilestoneReview = read_answer(text, MilestoneReview)
    if review.plan:
        read_plan(review.plan)
    return review


def read_assessment(text: str) -> tuple[list[Milestone], str]:
    """The plan and the contract of an answer; raises ValueError if one of them is missing."""
    heading = _HEADING.search(text)
    milestones = read_plan(text[: heading.start()] if heading else text)
    if heading is None or not (contract := text[heading.end() :].strip()):
        raise ValueError("it has no contract: write the rules below a heading `## Contract`")
    return milestones, contract
