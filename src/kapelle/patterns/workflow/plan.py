"""The plan of a workflow: its milestones, the limits of its phases, and its progress."""

import re
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, model_validator

from kapelle.domain.answers import read_answer
from kapelle.domain.errors import BrokenRule
from kapelle.domain.specs import Money, Spec, Turns, field
from kapelle.domain.text import make_title
from kapelle.patterns.results import bullet_list

Phase = Literal["assess", "review", "implement"]
# Characters of plan, contract and worklog that go into a prompt: in all, and of the first two.
_MAX_CONTEXT = 50_000
_MAX_PLAN = 25_000
_MAX_CONTRACT = 10_000
_MAX_MILESTONES = 100
_BOX = re.compile(r"^\s*[-*] \[[ xX]\] (?:\d+[.)] )?(.+)$")
_CHECK = re.compile(r"[,;(]?\s*check:\s*`([^`]+)`\)?", re.IGNORECASE)
_HEADING = re.compile(r"^#+ *contract\b.*$", re.IGNORECASE | re.MULTILINE)


class PhaseLimit(Spec):
    """Limits of one phase; as a plain string, PHASE:turns=N,usd=N,minutes=N."""

    phase: Phase = Field(description="assess, review or implement")
    turns: Turns | None = field(None, "maximum number of turns")
    usd: Money | None = field(None, "maximum cost in USD")
    minutes: float | None = field(
        None, "time limit in minutes", ge=0.001, le=500_000, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        phase, _, limits = value.partition(":")
        amounts = {}
        for limit in limits.split(","):
            if limit == "completion":
                continue  # a phase without limits ends when it is complete
            name, _, amount = limit.partition("=")
            if name.strip() not in {"turns", "usd", "minutes"}:
                limits_help = "turns, usd, minutes or completion, as in implement:turns=40,usd=2"
                text = f"`limits` {value!r}: {name.strip()!r} is none of {limits_help}"
                raise BrokenRule(text, "limits")
            amounts[name.strip()] = amount
        return {"phase": phase, **amounts}

    @property
    def of_task(self) -> dict[str, Any]:
        """Return the limits as fields of a task."""
        seconds = None if self.minutes is None else self.minutes * 60
        return {"max_turns": self.turns, "budget_usd": self.usd, "timeout_s": seconds}


class Milestone(BaseModel):
    """A milestone of the plan; it is open until there is evidence for it.

    A blind check passed before any work was done, so it proves nothing.
    """

    title: str
    details: str = ""
    check: str | None = None
    blind: bool = False
    evidence: str | None = None

    @property
    def has_proving_check(self) -> bool:
        return self.check is not None and not self.blind

    @property
    def text(self) -> str:
        """Return the milestone as in a plan in Markdown, without its box."""
        line = self.title
        if self.check:
            line += f" check: `{self.check}`"
        return "\n  ".join([line, *self.details.split("\n")])


class Block(BaseModel):
    """The reason why a workflow cannot continue, its place, and the remedy."""

    code: Literal["agents", "answer", "branch", "plan", "progress"]
    phase: Phase
    cycle: int
    reason: str
    fix: str


class PhaseEntry(BaseModel):
    """An entry of the worklog: one phase of one cycle."""

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
    """The state of a workflow, which becomes its result."""

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
        return [milestone for milestone in self.milestones if milestone.evidence is None]

    @property
    def done(self) -> int:
        return len(self.milestones) - len(self.open)

    @property
    def facts(self) -> dict[str, Any]:
        """Return the progress to report."""
        milestones = [milestone.model_dump(exclude={"details"}) for milestone in self.milestones]
        fields = self.model_dump(include={"phase", "cycle", "blocked"})
        return {**fields, "done": self.done, "milestones": milestones}

    @property
    def plan(self) -> str:
        """Return the plan in Markdown."""
        lines = []
        for number, milestone in enumerate(self.milestones, 1):
            mark = " " if milestone.evidence is None else "x"
            lines.append(f"- [{mark}] {number}. {milestone.text}".rstrip())
        return "\n".join(lines)

    def go_to(self, reply: str) -> str:
        """Go to the phase and cycle that a person names, such as `implement 3`.

        Return what is wrong with the reply; an empty text if the workflow can continue.
        """
        words = reply.lower().split()
        if words == ["resume"]:
            return ""
        phases: dict[str, Phase] = {phase: phase for phase in get_args(Phase)}
        phase = phases.get(words[0]) if words else None
        number = words[1] if len(words) == 2 else str(self.cycle)
        if phase is None or len(words) > 2 or not number.isdecimal():
            return f"{make_title(reply, 60)!r} is no phase with a cycle. "
        if phase == "assess":
            self.phase = phase
            self.cycle = 0
            return ""
        if not self.milestones:
            return "There is no plan yet: begin with assess. "
        if phase == "implement" and not self.open:
            return "No milestone is open: begin with review. "
        if not 1 <= int(number) <= self.cycle:
            return f"It has come to cycle {self.cycle}: name one from 1 to {self.cycle}. "
        self.phase = phase
        self.cycle = int(number)
        return ""

    def replan(self, milestones: list[Milestone]) -> None:
        """Replace the milestones; those with the same title keep their evidence."""
        evidence = {milestone.title: milestone.evidence for milestone in self.milestones}
        for milestone in milestones:
            milestone.evidence = evidence.get(milestone.title)
        self.milestones = milestones

    @property
    def prompt_parts(self) -> dict[str, str]:
        """Return the state for a prompt, with the latest entries of the worklog that fit."""
        plan = self.plan[:_MAX_PLAN]
        contract = self.contract[:_MAX_CONTRACT]
        entries = list[str]()
        room = _MAX_CONTEXT - len(plan) - len(contract)
        for entry in reversed(self.worklog):
            text = f"### Cycle {entry.cycle}, {entry.phase}, {entry.agent}\n{entry.text}\n\n"
            if len(text) > room:
                break
            room -= len(text)
            entries.insert(0, text)
        issues = bullet_list(self.issues)
        return {
            "plan": plan,
            "contract": contract,
            "worklog": "".join(entries).strip(),
            "what_the_review_found": issues[:room],
        }


def read_plan(text: str) -> list[Milestone]:
    """Return the milestones of a plan in Markdown; raise ValueError if it has none."""
    milestones: list[Milestone] = []
    for line in text.splitlines():
        box = _BOX.match(line)
        if box:
            milestones.append(_read_milestone(box[1]))
        elif milestones and line.strip() and not line.startswith("#"):
            _add_details(milestones[-1], line)
    # The last one of several milestones with the same title counts.
    unique = {milestone.title: milestone for milestone in milestones if milestone.title}
    if not unique:
        raise ValueError("it has no milestone: write each as a line `- [ ] what is true then`")
    return list(unique.values())[:_MAX_MILESTONES]


def _read_milestone(text: str) -> Milestone:
    check = _CHECK.search(text)
    title = make_title(_CHECK.sub("", text))
    return Milestone(title=title, check=check[1].strip() if check else None)


def _add_details(milestone: Milestone, line: str) -> None:
    """Add a line below a milestone: its check, if it has none yet, or details."""
    check = _CHECK.search(line)
    if check and not milestone.check:
        milestone.check = check[1].strip()
    else:
        milestone.details = f"{milestone.details}\n{line.strip()}".strip()


def read_review(text: str) -> MilestoneReview:
    """Return the review in an answer; raise ValueError if it or its plan cannot be read."""
    review: MilestoneReview = read_answer(text, MilestoneReview)
    if review.plan:
        read_plan(review.plan)
    return review


def read_assessment(text: str) -> tuple[list[Milestone], str]:
    """Return the plan and the contract in an answer; raise ValueError if one is missing."""
    heading = _HEADING.search(text)
    plan = text[: heading.start()] if heading else text
    contract = text[heading.end() :].strip() if heading else ""
    milestones = read_plan(plan)
    if not contract:
        raise ValueError("it has no contract: write the rules below a heading `## Contract`")
    return milestones, contract
