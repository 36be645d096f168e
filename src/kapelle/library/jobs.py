"""A task from its workspace to its verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.domain.ids import new_id
from kapelle.domain.specs import CheckKind, CheckSpec
from kapelle.domain.states import TaskStatus
from kapelle.domain.task import CheckResult
from kapelle.engine.prompt import Earlier
from kapelle.library.agent import Agent, Request, Response
from kapelle.library.commands import Commands
from kapelle.library.ledger import Ledger, told_by
from kapelle.library.working import work
from kapelle.library.worktrees import Worktrees
from kapelle.patterns.context import Place
from kapelle.patterns.results import TaskResult

Tell = Callable[..., None]
_OUTPUT = 4_000


@dataclass(frozen=True)
class Job:
    """Work and the place where it is done; in a worktree, of its owner, from a commit on."""

    id: str
    title: str
    cwd: Path
    owner: str = ""
    branch: str | None = None
    start: str | None = None
    base: str | None = None
    """The commit that its work is measured by."""


@dataclass
class Known:
    """A task that has ended."""

    job: Job
    result: TaskResult
    took_in: bool = False

    def section(self) -> Earlier:
        """What is told of it to whoever goes on from it."""
        return Earlier(
            heading=f"An earlier task: {self.job.title}",
            status=self.result.status,
            reason=self.result.reason,
            result=self.result.text[-_OUTPUT:],
            last_output="",
            failed_checks=[
                (check.name, check.output[-_OUTPUT:]) for check in self.result.failed_checks
            ],
            branch=self.result.branch,
            diffstat=None,
        )


class Jobs:
    """Has agents work, commits what they did, and makes the checks on it."""

    def __init__(
        self,
        run: Job,
        cast: Mapping[str, Agent],
        worktrees: Worktrees | None,
        commands: Commands,
        ledger: Ledger,
        tell: Tell,
    ) -> None:
        self._run = run
        self._cast = cast
        self._worktrees = worktrees
        self._commands = commands
        self._ledger = ledger
        self._tell = tell

    def agent(self, role: str) -> Agent:
        if role not in self._cast:
            known = ", ".join(self._cast)
            raise InvalidInput(f"There is no agent {role!r} here; known are: {known}.")
        return self._cast[role]

    async def begin(self, title: str, place: Place, earlier: Known | None) -> Job:
        """Make the workspace of a task."""
        task_id = new_id("task")
        if self._worktrees is None:
            return Job(task_id, title, self._run.cwd)
        if place == "run":
            tip, branch = await self._worktrees.tip(), self._worktrees.branch
            return Job(task_id, title, self._run.cwd, self._run.id, branch, tip, tip)
        made, cwd = await self._worktrees.make(task_id, earlier.job.branch if earlier else None)
        base = made.base_commit
        if earlier is not None and not earlier.took_in:
            # What goes on from an unfinished task is measured together with it.
            base = earlier.job.base
        return Job(task_id, title, cwd, task_id, made.branch, made.base_commit, base)

    async def attempt(
        self, job: Job, request: Request, checks: Sequence[CheckSpec], *, keep: bool
    ) -> TaskResult:
        """Have the work done and judged; where it is not kept, only the answer counts."""
        agent = self.agent(request.role)
        response = await work(agent, request, self._ledger)
        commit = await self._commit(job, agent) if keep else job.start
        failed = []
        if response.ok:
            # Built-in checks look at the agent's work, which commands may add to: they come first.
            ordered = sorted(checks, key=lambda check: check.kind is CheckKind.COMMAND)
            found = [await self.check(check, job, commit, {}) for check in ordered]
            failed = [check for check in found if not check.passed]
        ok = response.ok and not failed
        return TaskResult(
            id=job.id,
            status=TaskStatus.COMPLETED if ok else TaskStatus.FAILED,
            reason=None if ok else _reason(response, failed),
            text=response.text,
            branch=job.branch,
            base_commit=job.base,
            commit=commit,
            failed_checks=failed,
            cost_usd=told_by(response),
            agent=agent.name,
        )

    async def _commit(self, job: Job, agent: Agent) -> str | None:
        """Keep what was done, unfinished work too, so that whoever goes on finds it."""
        if self._worktrees is None:
            return None
        message = f"{job.title}\n\nTask: {job.id}\nAgent: {agent.name}"
        return await self._worktrees.commit(job.owner, message) or job.start

    async def check(
        self, check: CheckSpec, job: Job, commit: str | None, env: Mapping[str, str]
    ) -> CheckResult:
        """Make one check in the place of a task, on what it has committed."""
        if check.kind is CheckKind.COMMAND:
            result = await self._commands.check(check, job.cwd, env)
        elif check.kind is CheckKind.DIFF_NOT_EMPTY and self._worktrees is not None:
            result = await self._worktrees.changed(job.owner, job.base, commit)
        else:
            raise InvalidInput(f"The check {check.label} cannot be made here.")
        kind = "check.passed" if result.passed else "check.failed"
        self._tell(kind, name=result.name, task_id=job.id)
        return result


def _reason(response: Response, failed: list[CheckResult]) -> str:
    if failed:
        return f"failed its check: {', '.join(check.name for check in failed)}"
    return response.reason or "the agent did not succeed, and did not say why"
