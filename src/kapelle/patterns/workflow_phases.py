"""What the phases of a workflow know and are told, and how they are asked."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, model_validator

from kapelle.domain.answers import read_answer
from kapelle.domain.note import MAX_VALUE
from kapelle.domain.specs import CheckSpec, Money, Spec, Turns, field
from kapelle.domain.text import titled
from kapelle.patterns.candidates import Unable, first_able
from kapelle.patterns.context import Context
from kapelle.patterns.results import TaskResult

if TYPE_CHECKING:
    from kapelle.patterns.workflow import WorkflowSpec

T = TypeVar("T")

Phase = Literal["assess", "review", "implement"]
# What of the plan, the contract and the worklog goes into a prompt.
_TOLD, _PLAN, _CONTRACT = 50_000, 25_000, 10_000
_MOST, _REPAIRS, SHOWN = 100, 2, 4_000
_BOX = re.compile(r"^\s*[-*] \[[ xX]\] (?:\d+[.)] )?(.+)$")
_CHECK = re.compile(r"[,;(]?\s*check:\s*`([^`]+)`\)?", re.IGNORECASE)
_HEADING = re.compile(r"^#+ *contract\b.*$", re.IGNORECASE | re.MULTILINE)
PROMPTS = {
    "assess": """\
You prepare work that others will do in this directory over many cycles. Look at the files; \
change nothing. Answer in Markdown with two sections. `## Plan`: milestones in the order in \
which they are to be done, each a line `- [ ] what is true then`, small enough for one sitting; \
where a command can show that one is done, end its line with check: `the command`; details may \
stand in the lines below it. `## Contract`: the rules that all work here keeps to, such as how \
to test, what not to touch, which style.""",
    "review": """\
You review work in this directory; you did none of it. What you change here is thrown away. Run \
the tests and checks yourself and look at the files: what is claimed counts for nothing. Before \
anything is done, judge the plan, and write it anew where it is wrong, too coarse, or lacks \
commands that show that a milestone is done. Later judge what was changed: which milestones are \
done, by their numbers, which were ticked and do not hold, and what is to be mended.""",
    "implement": """\
You work in this directory on one milestone of a plan, and on nothing else. Keep to the \
contract, mend what the review found, run the tests, and commit. Others decide whether the \
milestone is done. End with a worklog: what you did, what you decided and why, what is left.""",
    "repair": """\
Your answer before this one could not be used. Give it again, whole, in the form that was asked \
for.""",
}


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
                raise ValueError(f"`limits` {value!r}: {name.strip()!r} is none of {known}")
        return {"phase": phase, **{name.strip(): amount for name, _, amount in pairs}}

    @property
    def of_task(self) -> dict[str, Any]:
        """The same as the limits of a task."""
        seconds = None if self.minutes is None else self.minutes * 60
        return {"max_turns": self.turns, "budget_usd": self.usd, "timeout_s": seconds}


class Milestone(BaseModel):
    title: str
    details: str = ""
    check: str | None = None
    evidence: str | None = None  # what it was ticked by

    @property
    def text(self) -> str:
        check = f" check: `{self.check}`" if self.check else ""
        return f"{self.title}{check}" + "".join(f"\n  {line}" for line in self.details.split("\n"))


class Block(BaseModel):
    """Why it does not go on, where, and what a person can do about that."""

    code: Literal["agents", "answer", "branch", "plan", "progress"]
    phase: Phase
    cycle: int
    reason: str
    fix: str


class Entry(BaseModel):
    """What one phase of one cycle came to."""

    cycle: int
    phase: Phase
    agent: str
    task: str
    text: str
    commit: str | None = None


class Review(BaseModel):
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
    worklog: list[Entry] = []
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
        number = words[1] if len(words) == 2 else str(self.cycle)
        if phase is None or len(words) > 2 or not number.isdecimal():
            return f"{titled(said, 60)!r} is no phase with a cycle. "
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
        plan, contract, recent = self.plan[:_PLAN], self.contract[:_CONTRACT], list[str]()
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
            title = titled(_CHECK.sub("", box[1]))
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


def read_review(text: str) -> Review:
    """A review; raises ValueError also where the plan in it has no milestone."""
    review = read_answer(text, Review)
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


class Blocked(Exception):
    """It cannot go on without a person; the code is one of a Block."""

    def __init__(self, code: str, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.code, self.fix = code, fix


class Phases:
    """How the phases of one workflow are asked, checked and written down."""

    def __init__(self, ctx: Context, spec: "WorkflowSpec", now: WorkflowResult) -> None:
        self.ctx, self.spec, self.now = ctx, spec, now
        self.written = dict[str, str | None]()  # what the notes were made to say

    async def require_branch(self) -> None:
        if (other := await self.ctx.astray()) is not None:
            fix = "Put the worktree back on the run's branch; kapelle status shows both."
            raise Blocked("branch", f"the worktree is on {other}, not on the run's branch", fix)

    async def verify(self, checks: Sequence[CheckSpec]) -> list[str]:
        """What checks find wrong; what they leave behind does not join the work."""
        if not checks:
            return []
        before = self.now.commit or await self.ctx.commit("Before the checks")
        found = (await self.ctx.check(*checks)).failed
        if before is not None:
            await self.ctx.revert(before)
        return [f"`{one.verdict}` fails:\n{one.output[-SHOWN:]}" for one in found]

    def told(self, phase: Phase, **parts: str) -> str:
        known = {} if phase == "assess" else self.now.told
        return self.ctx.prompt(phase, PROMPTS[phase], the_task=self.spec.task, **known, **parts)

    async def ask(
        self, phase: Phase, prompt: str, read: Callable[[str], T], said: str = "", wrong: str = ""
    ) -> tuple[T, TaskResult]:
        """An answer that can be read; one that cannot is repaired twice at most."""
        for _ in range(_REPAIRS if wrong else 1 + _REPAIRS):
            parts = {"what_was_wrong": wrong, "your_answer": said[-SHOWN:]}
            repair = self.ctx.prompt("repair", PROMPTS["repair"], **parts) if wrong else ""
            work = await self.call(phase, f"{prompt}\n\n{repair}")
            said, wrong = work.text, work.reason or work.status
            if work.ok:
                try:
                    return read(said), work
                except ValueError as error:
                    wrong = str(error)
        code = "plan" if phase == "assess" else "answer"
        fix = f"Look at what it said: kapelle logs {work.id}"
        raise Blocked(code, f"the answer of {work.agent} cannot be used: {wrong.rstrip('.')}", fix)

    async def call(self, phase: Phase, prompt: str) -> TaskResult:
        """The work of a phase: in the run's worktree, or a copy that is thrown away."""
        writes = phase == "implement"
        limits = [one.of_task for one in self.spec.limits if one.phase == phase]
        where: dict[str, Any] = {"workspace": "run"}
        if not writes:
            where = {"workspace": "own", "disposable": True, "read_only": True}
        title = f"{phase.capitalize()} (cycle {self.now.cycle})"
        able = first_able(self.ctx, self.spec.of(phase), prompt, self.spec.retry_delay_s,
                          title=title, **where, **(limits[0] if limits else {}))  # fmt: skip
        try:
            return await able
        except Unable as error:
            fix = "See that one of its agents works (kapelle doctor), or wait."
            raise Blocked("agents", f"no agent could do it: {error}", fix) from None

    async def show(self) -> None:
        await self.ctx.progress(cycles=self.spec.cycles, **self.now.facts)

    async def write(self) -> None:
        """Have the notes say what is so now; what a person has changed meanwhile stays, for the
        next phase to take it in."""
        for name in ("plan", "contract"):
            text = await self.ctx.read_note(self.key(name))
            if text in {None, self.written.get(name)}:
                self.written[name] = value = getattr(self.now, name)[:MAX_VALUE]
                await self.ctx.note(self.key(name), value)

    async def log(self, work: TaskResult, text: str) -> None:
        """Add to the worklog, and have the notes say what is so now."""
        where = {"cycle": self.now.cycle, "phase": self.now.phase}
        entry = Entry(**where, agent=work.agent, task=work.id, text=text, commit=self.now.commit)
        self.now.worklog.append(entry)
        await self.ctx.note(self.key(f"worklog/cycle-{entry.cycle}-{entry.phase}"), text)
        await self.write()

    def key(self, name: str) -> str:
        return f"workflow/{self.ctx.run_id}/{name}"
