"""The phases of a workflow: their prompts, their agents, and what is read from the answers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kapelle.domain.failures import POLICIES, FailureClass, FailureResponse
from kapelle.domain.note import MAX_VALUE
from kapelle.domain.specs import CheckSpec
from kapelle.domain.states import Stopper, TaskStatus
from kapelle.patterns.context import Context
from kapelle.patterns.results import TaskResult
from kapelle.patterns.spec import CandidateSpec
from kapelle.patterns.workflow.plan import Phase, PhaseEntry, WorkflowResult

if TYPE_CHECKING:
    from kapelle.patterns.workflow import WorkflowSpec

T = TypeVar("T")

_MAX_REPAIRS = 2
_MAX_TRIES = 3
# Characters of an output or answer that goes into a prompt.
TAIL = 4_000
# Failures that are about the work or its limits: another agent would not do better.
_OF_WORK = {
    FailureClass.TASK,
    FailureClass.CHECKS,
    FailureClass.TOOL,
    FailureClass.CONTEXT_OVERFLOW,
    FailureClass.LIMIT,
    FailureClass.TIMEOUT,
}
# Failures that only a person can remedy rule an agent out at once. After any other failure the
# agent is tried again a few times.
_LASTING = {
    failure for failure, policy in POLICIES.items() if policy.response is FailureResponse.STOP
} - _OF_WORK
# The run itself has cancelled the task, so that another agent can do the work.
_MAKES_WAY = frozenset({Stopper.RATE_LIMIT, Stopper.INPUT})
PROMPTS = {
    "assess": """\
You prepare work that others will do in this directory over many cycles.

1. Look at the files. Change nothing.
2. Divide the task into milestones, each small enough for one sitting.
3. Where a command can show that a milestone is done, end its line with check: `the command`.
4. Collect the rules for all work here, such as how to test, what not to touch, which style.

Answer in Markdown with two sections:
- `## Plan`: the milestones in the order in which they are to be done, each a line \
`- [ ] what is true then`. Details may stand in the lines below it.
- `## Contract`: the rules.""",
    "review": """\
You review work in this directory; you did none of it. Your changes here are discarded.

1. Run the tests and checks yourself and look at the files. Do not rely on claims.
2. Before any work is done, judge the plan. Write it anew where it is wrong, too coarse, or lacks \
commands that show that a milestone is done.
3. Later, judge the changes: which milestones are done, by their numbers, which ticked milestones \
do not hold, and what is to be mended.""",
    "implement": """\
You work in this directory on one milestone of a plan, and on nothing else.

1. Keep to the contract.
2. Mend what the review found.
3. Run the tests, and commit. Others decide whether the milestone is done.
4. End with a worklog: what you did, what you decided and why, what is left.""",
    "repair": """\
Your previous answer could not be used. Give the whole answer again, in the requested form.""",
}


class WorkflowBlocked(Exception):
    """Raised when a workflow cannot continue without a person; code is one of a Block."""

    def __init__(self, code: str, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.code = code
        self.fix = fix


def _no_agent(results: Sequence[TaskResult]) -> WorkflowBlocked:
    reasons = "; ".join(f"{one.agent}: {one.reason or one.status}" for one in results)
    fix = "See that one of its agents works (kapelle doctor), or wait."
    return WorkflowBlocked("agents", f"no agent could do it: {reasons}", fix)


class _Turn(NamedTuple):
    """One candidate's turn at the work of a phase; a patient one waits for rate limits."""

    candidate: CandidateSpec
    is_patient: bool


class Phases:
    """The phases of one workflow: asking agents, executing checks, and keeping the worklog."""

    def __init__(self, ctx: Context, spec: "WorkflowSpec", state: WorkflowResult) -> None:
        self.ctx = ctx
        self.spec = spec
        self.state = state
        # The texts that this run wrote into its notes: a note with another text is a person's.
        self.own_notes = dict[str, str | None]()

    async def require_branch(self) -> None:
        """Raise WorkflowBlocked unless the worktree is on the run's branch."""
        other = await self.ctx.astray()
        if other is not None:
            fix = "Put the worktree back on the run's branch; kapelle status shows both."
            raise WorkflowBlocked(
                "branch", f"the worktree is on {other}, not on the run's branch", fix
            )

    async def verify(self, checks: Sequence[CheckSpec]) -> list[str]:
        """Execute checks; return a text about each failed one.

        The files that the checks leave behind are discarded.
        """
        if not checks:
            return []
        commit = self.state.commit or await self.ctx.commit("Before the checks")
        outcome = await self.ctx.check(*checks)
        if commit is not None:
            await self.ctx.revert(commit)
        return [f"`{one.verdict}` fails:\n{one.output[-TAIL:]}" for one in outcome.failed]

    def prompt(self, phase: Phase, **parts: str) -> str:
        if phase != "assess":
            parts = {**self.state.prompt_parts, **parts}
        return self.ctx.prompt(phase, PROMPTS[phase], the_task=self.spec.task, **parts)

    async def ask(
        self,
        phase: Phase,
        prompt: str,
        read: Callable[[str], T],
        answer: str = "",
        problem: str = "",
    ) -> tuple[T, TaskResult]:
        """Return an answer that can be read, and the task that gave it.

        An unreadable answer is repaired twice at most; answer and problem are an unreadable one
        to begin with. Raise WorkflowBlocked if no answer can be read.
        """
        tries = _MAX_REPAIRS if problem else 1 + _MAX_REPAIRS
        for _ in range(tries):
            repair = ""
            if problem:
                parts = {"what_was_wrong": problem, "your_answer": answer[-TAIL:]}
                repair = self.ctx.prompt("repair", PROMPTS["repair"], **parts)
            work = await self.call(phase, f"{prompt}\n\n{repair}")
            answer = work.text
            problem = work.reason or work.status
            if work.ok:
                try:
                    return read(answer), work
                except ValueError as error:
                    problem = str(error)
        raise WorkflowBlocked(
            "plan" if phase == "assess" else "answer",
            f"the answer of {work.agent} cannot be used: {problem.rstrip('.')}",
            f"Look at what it said: kapelle logs {work.id}",
        )

    async def call(self, phase: Phase, prompt: str) -> TaskResult:
        """Have an agent do a phase: in the run's worktree, or in a copy that is discarded."""
        cycle = self.state.cycle
        fields: dict[str, Any] = {
            "title": f"{phase.capitalize()} (cycle {cycle})",
            "role": phase,
            "cycle": cycle,
        }
        if phase == "implement":
            fields["workspace"] = "run"
        else:
            fields |= {"workspace": "own", "disposable": True, "read_only": True}
        limit = self.spec.limit_of(phase)
        if limit is not None:
            fields |= limit.of_task
        return await self._first_able(phase, prompt, **fields)

    def _turns(self, phase: Phase) -> list[_Turn]:
        """Return whose turn it is, in order.

        A rate-limited candidate makes way for the next one. When all are limited, the first one
        waits.
        """
        candidates = self.spec.of(phase)
        turns = []
        if len(candidates) > 1:
            turns = [_Turn(candidate, is_patient=False) for candidate in candidates]
        return turns + [_Turn(candidate, is_patient=True) for candidate in candidates]

    async def _first_able(self, phase: Phase, prompt: str, **fields: Any) -> TaskResult:
        """Return the work of the first candidate that can do it, well or badly.

        A candidate with a passing failure is tried three times. Raise WorkflowBlocked if no
        candidate can do the work, or if a person cancels it.
        """
        excluded = dict[str | None, TaskResult]()
        for candidate, is_patient in self._turns(phase):
            for number in range(_MAX_TRIES):
                if candidate.agent in excluded:
                    break
                if number:
                    await self.ctx.sleep(self.spec.retry_delay_s * 2 ** (number - 1))
                work = await self.ctx.task(
                    prompt,
                    agent=candidate.agent,
                    model=candidate.model,
                    patient=is_patient,
                    **fields,
                )
                if work.ok or work.failure in _OF_WORK:
                    return work
                if work.status is TaskStatus.CANCELLED:
                    if work.stopped_by not in _MAKES_WAY:
                        raise _no_agent([work])
                    if is_patient:
                        excluded[candidate.agent] = work
                    break
                if work.failure in _LASTING or number == _MAX_TRIES - 1:
                    excluded[candidate.agent] = work
        raise _no_agent([*excluded.values()])

    async def report(self) -> None:
        await self.ctx.progress(cycles=self.spec.cycles, **self.state.facts)

    async def write_notes(self) -> None:
        """Write plan and contract into their notes.

        A note that a person has changed stays as it is; the next phase reads it.
        """
        for name in ("plan", "contract"):
            text = await self.ctx.read_note(self.key(name))
            if text is None or text == self.own_notes.get(name):
                value = getattr(self.state, name)[:MAX_VALUE]
                self.own_notes[name] = value
                await self.ctx.note(self.key(name), value)

    async def log(self, work: TaskResult, text: str) -> None:
        """Add an entry to the worklog and update the notes."""
        entry = PhaseEntry(
            cycle=self.state.cycle,
            phase=self.state.phase,
            agent=work.agent,
            task=work.id,
            text=text,
            commit=self.state.commit,
        )
        self.state.worklog.append(entry)
        await self.ctx.note(self.key(f"worklog/cycle-{entry.cycle}-{entry.phase}"), text)
        await self.write_notes()

    def key(self, name: str) -> str:
        return f"workflow/{self.ctx.run_id}/{name}"
