"""What the phases of a workflow are told, who does them, and how they are asked."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kapelle.domain.failures import POLICIES, FailureClass, FailureResponse
from kapelle.domain.note import MAX_VALUE
from kapelle.domain.specs import CheckSpec
from kapelle.domain.states import Stopper, TaskStatus
from kapelle.patterns.context import Context
from kapelle.patterns.results import TaskResult
from kapelle.patterns.workflow_plan import Phase, PhaseEntry, WorkflowResult

if TYPE_CHECKING:
    from kapelle.patterns.workflow import WorkflowSpec

T = TypeVar("T")

_REPAIRS = 2
SHOWN = 4_000
_TRIES = 3
# Failures that say something of the work or of its limits: nobody else is asked. What only a person
# can mend rules an agent out at once, and all else when it has not passed after a few tries.
_OF_WORK = {
    FailureClass.TASK, FailureClass.CHECKS, FailureClass.TOOL, FailureClass.CONTEXT_OVERFLOW,
    FailureClass.LIMIT, FailureClass.TIMEOUT,
}  # fmt: skip
# Its own run has ended it, so that another agent can do the work.
_MAKES_WAY = frozenset({Stopper.RATE_LIMIT, Stopper.INPUT})
_LASTING = {
    kind for kind, rule in POLICIES.items() if rule.response is FailureResponse.STOP
} - _OF_WORK
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


class WorkflowBlocked(Exception):
    """It cannot go on without a person; the code is one of a Block."""

    def __init__(self, code: str, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.code = code
        self.fix = fix


def _unable(ended: Sequence[TaskResult]) -> WorkflowBlocked:
    said = "; ".join(f"{one.agent}: {one.reason or one.status}" for one in ended)
    fix = "See that one of its agents works (kapelle doctor), or wait."
    return WorkflowBlocked("agents", f"no agent could do it: {said}", fix)


class Phases:
    """How the phases of one workflow are asked, checked and written down."""

    def __init__(self, ctx: Context, spec: "WorkflowSpec", now: WorkflowResult) -> None:
        self.ctx = ctx
        self.spec = spec
        self.now = now
        self.written = dict[str, str | None]()  # what the notes were made to say

    async def require_branch(self) -> None:
        if (other := await self.ctx.astray()) is not None:
            fix = "Put the worktree back on the run's branch; kapelle status shows both."
            raise WorkflowBlocked(
                "branch", f"the worktree is on {other}, not on the run's branch", fix
            )

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
        if phase == "assess":
            known = {}
        else:
            known = self.now.told
        return self.ctx.prompt(phase, PROMPTS[phase], the_task=self.spec.task, **known, **parts)

    async def ask(
        self, phase: Phase, prompt: str, read: Callable[[str], T], said: str = "", wrong: str = ""
    ) -> tuple[T, TaskResult]:
        """An answer that can be read; one that cannot is repaired twice at most."""
        for _ in range(_REPAIRS if wrong else 1 + _REPAIRS):
            parts = {"what_was_wrong": wrong, "your_answer": said[-SHOWN:]}
            if wrong:
                repair = self.ctx.prompt("repair", PROMPTS["repair"], **parts)
            else:
                repair = ""
            work = await self.call(phase, f"{prompt}\n\n{repair}")
            said = work.text
            wrong = work.reason or work.status
            if work.ok:
                try:
                    return read(said), work
                except ValueError as error:
                    wrong = str(error)
        if phase == "assess":
            code = "plan"
        else:
            code = "answer"
        fix = f"Look at what it said: kapelle logs {work.id}"
        raise WorkflowBlocked(
            code, f"the answer of {work.agent} cannot be used: {wrong.rstrip('.')}", fix
        )

    async def call(self, phase: Phase, prompt: str) -> TaskResult:
        """The work of a phase: in the run's worktree, or a copy that is thrown away."""
        writes = phase == "implement"
        limits = [one.of_task for one in self.spec.limits if one.phase == phase]
        where: dict[str, Any] = {"workspace": "run"}
        if not writes:
            where = {"workspace": "own", "disposable": True, "read_only": True}
        cycle = self.now.cycle
        where |= {"title": f"{phase.capitalize()} (cycle {cycle})", "role": phase, "cycle": cycle}
        return await self._first_able(phase, prompt, **where, **(limits[0] if limits else {}))

    async def _first_able(self, phase: Phase, prompt: str, **fields: Any) -> TaskResult:
        """The work of the first candidate that does it, well or badly; raises WorkflowBlocked.

        One that is limited makes way for the next; when all are, the first is waited for. What
        passes is tried three times, and then by another agent.
        """
        out = dict[str | None, TaskResult]()
        candidates = self.spec.of(phase)
        hasty = [(who, False) for who in candidates if len(candidates) > 1]
        for who, patient in [*hasty, *((who, True) for who in candidates)]:
            for again in range(_TRIES):
                if who.agent in out:
                    break
                if again:
                    await self.ctx.sleep(self.spec.retry_delay_s * 2 ** (again - 1))
                work = await self.ctx.task(
                    prompt, agent=who.agent, model=who.model, patient=patient, **fields
                )
                if work.ok or work.failure in _OF_WORK:
                    return work
                if work.status is TaskStatus.CANCELLED:
                    if work.stopped_by not in _MAKES_WAY:
                        raise _unable([work])  # a person does not want it
                    if patient:
                        out[who.agent] = work
                    break
                if work.failure in _LASTING or again == _TRIES - 1:
                    out[who.agent] = work
        raise _unable([*out.values()])

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
        entry = PhaseEntry(
            **where, agent=work.agent, task=work.id, text=text, commit=self.now.commit
        )
        self.now.worklog.append(entry)
        await self.ctx.note(self.key(f"worklog/cycle-{entry.cycle}-{entry.phase}"), text)
        await self.write()

    def key(self, name: str) -> str:
        return f"workflow/{self.ctx.run_id}/{name}"
