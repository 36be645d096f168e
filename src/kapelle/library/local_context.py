"""The Context of a run in this very process: agents in threads, worktrees beside the checkout."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

from kapelle.domain.budget import Left
from kapelle.domain.errors import InvalidInput
from kapelle.domain.ids import new_id
from kapelle.domain.specs import CheckSpec
from kapelle.domain.states import TaskStatus
from kapelle.engine.prompt import compose
from kapelle.library.agent import Agent, Request
from kapelle.library.commands import Commands
from kapelle.library.interaction import Suspended
from kapelle.library.jobs import Job, Jobs, Known, Tell
from kapelle.library.ledger import Ledger
from kapelle.library.worktrees import Worktrees
from kapelle.patterns.context import Context, Place, TaskArgs
from kapelle.patterns.results import Checked, Merged, RunResult, Scored, TaskResult
from kapelle.patterns.spec import PatternSpec

_WORKER = "worker"


@dataclass
class Surroundings:
    """What a run works with; the agents stand by the names that its spec calls them."""

    cast: Mapping[str, Agent]
    ledger: Ledger
    commands: Commands
    worktrees: Worktrees | None
    ask: Callable[[str, str | None], Awaitable[str]]
    tell: Tell
    answers: Mapping[str, str] = field(default_factory=dict)
    remembered: dict[str, str] = field(default_factory=dict)
    """What agents answered without changing anything, by a digest of what they were asked."""


class LocalContext(Context):
    """Every step is made now: nothing is remembered when this process ends."""

    def __init__(self, run_id: str, spec: PatternSpec, around: Surroundings) -> None:
        self.run_id = run_id
        self.spec = spec
        self.unanswered: list[str] = []
        self._around = around
        self._worktrees = around.worktrees
        self._ledger = around.ledger
        self._tasks: dict[str, Known] = {}
        self._asking = asyncio.Lock()
        self._locks: dict[str, asyncio.Semaphore] = {}
        self._run_job = Job(run_id, spec.display_title, Path(spec.directory))
        if self._worktrees is not None:
            place, base = self._worktrees, self._worktrees.base_commit
            self._run_job = Job(
                run_id, spec.display_title, place.directory, run_id, place.branch, base, base
            )
        self._jobs = Jobs(
            self._run_job,
            around.cast,
            around.worktrees,
            around.commands,
            around.ledger,
            around.tell,
        )

    @property
    def is_git(self) -> bool:
        return self._worktrees is not None

    async def task(
        self,
        prompt: str,
        *,
        workspace: Place = "run",
        keep_session: bool = False,
        max_attempts: int = 1,
        afresh: bool = False,
        disposable: bool = False,
        **fields: Unpack[TaskArgs],
    ) -> TaskResult:
        """As everywhere, but model, session and priority are the affair of the agent's object."""
        before = fields.get("continue_from")
        earlier = self._tasks[before] if before else None
        told = compose(
            prompt, fields.get("context", {}), [earlier.section()] if earlier else [], None
        )
        role = fields.get("agent") or _WORKER
        digest = hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()
        if disposable and digest in self._around.remembered:
            return self._remembered(role, self._around.remembered[digest])
        specs = [CheckSpec.model_validate(check) for check in fields.get("checks", ())]
        self._ledger.require_call()
        title = fields.get("title") or prompt.strip()[:80]
        job = await self._jobs.begin(title, workspace, earlier)
        limit_s = fields.get("timeout_s") or self.spec.task_timeout_s
        request = Request(told, fields.get("system_prompt"), job.cwd, role, title, limit_s)
        thrown_away = disposable and workspace == "own"
        result = await self._perform(job, request, specs, max_attempts, keep=not thrown_away)
        if thrown_away:
            await self.put_away(result)
            if result.ok:
                self._around.remembered[digest] = result.text
        return result

    async def _perform(
        self,
        job: Job,
        request: Request,
        checks: list[CheckSpec],
        max_attempts: int,
        *,
        keep: bool,
    ) -> TaskResult:
        about = {"task_id": job.id, "title": job.title, "role": request.role}
        self._around.tell("task.started", **about, agent=self._jobs.agent(request.role).name)
        result = await self._jobs.attempt(job, request, checks, keep=keep)
        for _ in range(max_attempts - 1):
            if not result.ok:
                result = await self._jobs.attempt(job, request, checks, keep=keep)
        self._tasks[job.id] = Known(job, result)
        kind = "task.completed" if result.ok else "task.failed"
        self._around.tell(kind, **about, reason=result.reason, cost_usd=result.cost_usd)
        return result

    def _remembered(self, role: str, text: str) -> TaskResult:
        name = self._jobs.agent(role).name
        return TaskResult(id=new_id("task"), status=TaskStatus.COMPLETED, text=text, agent=name)

    async def run(
        self, pattern: str, spec: dict[str, Any], *, workspace: Place = "own"
    ) -> RunResult:
        raise InvalidInput(
            f"Without a daemon no run starts another one, such as {pattern}.",
            hint="kapelle.connect().runs starts it in the daemon.",
        )

    async def check(
        self, *checks: CheckSpec | str, env: dict[str, str] | None = None, task: str | None = None
    ) -> Checked:
        job, commit = self._run_job, None
        if task is not None:
            job, commit = self._tasks[task].job, self._tasks[task].result.commit
        elif self._worktrees is not None:
            commit = await self._worktrees.tip()
        specs = [CheckSpec.model_validate(check) for check in checks]
        return Checked(
            checks=[await self._jobs.check(spec, job, commit, env or {}) for spec in specs]
        )

    async def score(
        self,
        command: str,
        *,
        timeout_s: float = 600,
        env: dict[str, str] | None = None,
        task: str | None = None,
    ) -> Scored:
        job = self._tasks[task].job if task else self._run_job
        return await self._around.commands.score(command, job.cwd, env or {}, timeout_s)

    async def ask(self, question: str, default: str | None = None) -> str:
        if question in self._around.answers:
            return self._around.answers[question]
        # One after another, in the order in which they were asked.
        async with self._asking:
            try:
                with self._ledger.rest():
                    return await self._around.ask(question, default)
            except Suspended:
                self.unanswered.append(question)
                raise

    async def sleep(self, seconds: float) -> None:
        left = self._ledger.left_s
        await asyncio.sleep(seconds if left is None else min(seconds, left))
        self._ledger.require()

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def progress(self, **facts: str | float | bool | None) -> None:
        self._around.tell("run.progress", **facts)

    async def commit(self, message: str) -> str | None:
        return None if self._worktrees is None else await self._worktrees.checkpoint(message)

    async def revert(self, commit: str) -> None:
        if self._worktrees is not None:
            await self._worktrees.revert(commit)

    async def merge(self, work: TaskResult | RunResult) -> Merged:
        if self._worktrees is None or isinstance(work, RunResult):
            return Merged(commit=None, problem="there is nothing to merge")
        return await self._worktrees.merge(work, self._tasks[work.id].job.title)

    async def conflicted(self, task: TaskResult, paths: list[str]) -> list[str]:
        return [] if self._worktrees is None else await self._worktrees.conflicted(task.id, paths)

    async def put_away(self, task: TaskResult) -> None:
        if self._worktrees is not None:
            await self._worktrees.put_away(task.id)

    async def take_in(self, task: TaskResult) -> list[str]:
        if self._worktrees is None:
            return []
        self._tasks[task.id].took_in = True
        return await self._worktrees.take_in(task.id)

    async def changes(self, task: TaskResult | None = None, *, patch: bool = False) -> str:
        if self._worktrees is None:
            return ""
        return await self._worktrees.changes(task.id if task else None, patch=patch)

    async def compare(self, one: TaskResult, other: TaskResult) -> str:
        return "" if self._worktrees is None else await self._worktrees.compare(one, other)

    async def budget(self) -> Left:
        ledger = self._ledger
        return Left(seconds=ledger.left_s, usd=ledger.left_usd, agent_calls=ledger.left_calls)

    def lock(self, name: str, places: int = 1) -> AbstractAsyncContextManager[None]:
        return self._locks.setdefault(name, asyncio.Semaphore(places))

    async def _gather(self, *branches: Coroutine[Any, Any, Any]) -> list[Any]:
        entered = [asyncio.ensure_future(branch) for branch in branches]
        try:
            ended = await asyncio.gather(*entered, return_exceptions=True)
        except asyncio.CancelledError:
            # Their agents must be gone before this run is.
            for branch in entered:
                branch.cancel()
            await asyncio.gather(*entered, return_exceptions=True)
            raise
        errors = [item for item in ended if isinstance(item, BaseException)]
        for error in sorted(errors, key=lambda error: not isinstance(error, Suspended)):
            raise error
        return list(ended)
