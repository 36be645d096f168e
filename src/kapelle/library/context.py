"""The Context of a run in this very process: agents in threads, worktrees beside the checkout."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.ids import new_id
from kapelle.domain.specs import CheckKind, CheckSpec
from kapelle.domain.states import TaskStatus
from kapelle.domain.task import CheckResult, Workspace
from kapelle.domain.text import excerpt
from kapelle.engine.processes.environment import Origin, map_into_worktree, select_variables
from kapelle.engine.processes.output import MAX_OUTPUT, check_result
from kapelle.engine.processes.prompt import Earlier, compose_prompt
from kapelle.engine.runs.git import GitContext, T
from kapelle.library.agent import Agent, Request, Stop
from kapelle.library.budget import Account
from kapelle.library.execution import cost_of, execute, process_directory, respond
from kapelle.library.interaction import ProgressCaller, TeamSuspended
from kapelle.library.outcome import RunState
from kapelle.patterns.context import Env, Fact, TaskArgs, WorkLocation
from kapelle.patterns.results import Checked, Merged, RunResult, TaskResult
from kapelle.patterns.spec import PatternSpec
from kapelle.runner.output import read_both_streams
from kapelle.runner.process_dir import Launch, ProcessEnd
from kapelle.workspaces import Workspaces, working_directory

_log = logging.getLogger("kapelle.library")
_WORKER = "worker"
_OUTPUT = 4_000


@dataclass
class _Task:
    """Work and the place where it is done; in a worktree, that of its owner."""

    id: str
    title: str
    cwd: Path
    owner: str = ""
    branch: str | None = None
    base: str | None = None  # the commit that its work is measured by
    result: TaskResult | None = None
    took_in: bool = False

    def earlier(self) -> Earlier:
        """What is told of it to whoever goes on from it."""
        assert self.result is not None
        failed = self.result.failed_checks
        return Earlier(
            heading=f"An earlier task: {self.title}",
            status=self.result.status,
            reason=self.result.reason,
            result=self.result.text[-_OUTPUT:],
            last_output="",
            failed_checks=[(check.name, check.output[-_OUTPUT:]) for check in failed],
            branch=self.branch,
            diffstat=None,
        )


@dataclass(frozen=True)
class OrchestratorParts:
    """What a run works with; the agents stand by the names that its spec calls them."""

    agents: Mapping[str, Agent]
    account: Account
    caller: ProgressCaller
    workspaces: Workspaces
    env: Mapping[str, str]


class LocalContext(GitContext):
    """Every step is made now: nothing is remembered when this process ends."""

    def __init__(
        self,
        run_id: str,
        spec: PatternSpec,
        parts: OrchestratorParts,
        state: RunState,
        workspace: Workspace | None,
    ) -> None:
        is_git = workspace is not None
        super().__init__(run_id, spec, parts.workspaces, run_id, is_git=is_git)
        self._parts = parts
        self._state = state
        # What agents answered without changing anything, by a digest of what they were asked:
        # what was before, each to be used once, and what this part of the run adds.
        self._before = dict(state.remembered)
        self._answered: dict[str, str] = {}
        self._unanswered: list[str] = []
        self._account = parts.account
        self._tasks: dict[str, _Task] = {}
        self._worktrees: list[str] = []
        self._has_worked = False
        self._reverts = 0
        self._ask_lock = asyncio.Lock()
        self._locks: dict[str, asyncio.Semaphore] = {}
        self._run = _Task(run_id, spec.display_title, Path(spec.directory))
        if workspace is not None:
            self._run = self._in_worktree(run_id, spec.display_title, workspace)

    def _in_worktree(self, task_id: str, title: str, made: Workspace) -> _Task:
        cwd = working_directory(made, Path(self.spec.directory))
        return _Task(task_id, title, cwd, task_id, made.branch, made.base_commit)

    def report(self, kind: str, **facts: Any) -> None:
        self._parts.caller.report(kind, run_id=self.run_id, **facts)

    async def _branch(self) -> str:
        return self._run.branch or ""

    async def _git_step(
        self, kind: str, label: str, perform: Callable[[], Awaitable[T]], *, again: bool = True
    ) -> T:
        return await perform()

    async def task(self, prompt: str, **fields: Unpack[TaskArgs]) -> TaskResult:
        """As everywhere, but model, tools, session and priority are the agent's own affair."""
        workspace = fields.get("workspace", "run")
        disposable = fields.get("disposable")
        before = fields.get("continue_from")
        if before:
            earlier = self._tasks[before]
        else:
            earlier = None
        text = compose_prompt(
            prompt, fields.get("context", {}), [earlier.earlier()] if earlier else [], None
        )
        role = fields.get("agent") or _WORKER
        if role not in self._parts.agents:
            known = ", ".join(self._parts.agents)
            raise InvalidInput(f"There is no agent {role!r} here; known are: {known}.")
        agent = self._parts.agents[role]
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        if disposable and digest in self._before:
            said = self._before.pop(digest)
            done = TaskStatus.COMPLETED
            return TaskResult(id=new_id("task"), status=done, text=said, agent=agent.name)
        checks = [CheckSpec.model_validate(check) for check in fields.get("checks", ())]
        self._account.require_call()
        title = fields.get("title") or prompt.strip()[:80]
        only_reports = fields.get("read_only", False)
        task = await self._begin(title, workspace, earlier, only_reports=only_reports)
        limit_s = fields.get("timeout_s") or self.spec.task_timeout_s
        system = fields.get("system_prompt") or self.spec.system_prompt
        request = Request(text, system, task.cwd, role, title, limit_s)
        thrown_away = bool(disposable and workspace == "own")
        self._has_worked |= not thrown_away
        facts = {"task_id": task.id, "title": title, "role": role}
        self.report("task.started", **facts, agent=agent.name)
        for _ in range(fields.get("max_attempts", 1)):
            result = await self._attempt(task, agent, request, checks, keep=not thrown_away)
            if result.ok:
                break
        task.result, self._tasks[task.id] = result, task
        if result.ok:
            kind = "task.completed"
        else:
            kind = "task.failed"
        facts["text"] = excerpt(result.text)
        self.report(kind, **facts, reason=result.reason, cost_usd=result.cost_usd)
        if thrown_away:
            await self._put_away(task.id)
            if result.ok:
                self._answered[digest] = result.text
        return result

    async def _begin(
        self, title: str, place: WorkLocation, earlier: _Task | None, *, only_reports: bool
    ) -> _Task:
        """Make the workspace of a task."""
        task_id = new_id("task")
        if not self._is_git:
            return replace(self._run, id=task_id, title=title)
        if place == "run":
            tip = await self._workspaces.tip(self._owner)
            return replace(self._run, id=task_id, title=title, base=tip)
        self._worktrees.append(task_id)
        if earlier:
            base = earlier.branch
        else:
            base = self._run.branch
        directory = Path(self.spec.directory)
        made = await self._workspaces.create(task_id, directory, base)
        if only_reports:
            copied = await self._workspaces.copy(task_id, is_alone=True)
            made = made.model_copy(update={"path": str(copied)})
        task = self._in_worktree(task_id, title, made)
        if earlier is not None and not earlier.took_in:
            # What goes on from an unfinished task is measured together with it.
            task.base = earlier.base
        return task

    async def _attempt(
        self,
        task: _Task,
        agent: Agent,
        request: Request,
        checks: Sequence[CheckSpec],
        *,
        keep: bool,
    ) -> TaskResult:
        """Have the work done and judged; where it is not kept, only the answer counts."""
        response = await respond(agent, replace(request, stop=Stop()), self._account)
        # Unfinished work is committed too, so that whoever goes on finds it.
        message = f"{task.title}\n\nTask: {task.id}\nAgent: {agent.name}"
        if keep:
            commit = await self._commit(task.owner, message)
        else:
            commit = None
        failed = []
        if response.ok:
            # Built-in checks look at the agent's work, which commands may add to: they come first.
            ordered = sorted(checks, key=lambda check: check.kind is CheckKind.COMMAND)
            found = [await self._check(check, task, commit, {}) for check in ordered]
            failed = [check for check in found if not check.passed]
        reason = response.reason or "the agent did not succeed, and did not say why"
        if failed:
            reason = f"failed its check: {', '.join(check.name for check in failed)}"
        ok = response.ok and not failed
        return TaskResult(
            id=task.id,
            status=TaskStatus.COMPLETED if ok else TaskStatus.FAILED,
            reason=None if ok else reason,
            text=response.text,
            branch=task.branch,
            base_commit=task.base,
            commit=commit,
            failed_checks=failed,
            cost_usd=cost_of(response),
            agent=agent.name,
            directory=self.spec.directory,
            title=task.title,
        )

    def _refuse(self, *_args: Any, **_fields: Any) -> Any:
        raise InvalidInput(
            "Without a daemon there is a team, and nothing else that runs can do.",
            hint="kapelle.connect().runs starts any pattern in the daemon.",
        )

    # What no team asks for.
    run = score = sleep = now = note = read_note = budget = _refuse

    async def check(
        self, *checks: CheckSpec | str, env: Env = None, task: str | None = None
    ) -> Checked:
        if task is None:
            subject = self._run
        else:
            subject = self._tasks[task]
        commit = None
        if subject.result is not None:
            commit = subject.result.commit
        elif self._is_git:
            commit = await self._workspaces.tip(self._owner)
        specs = [CheckSpec.model_validate(check) for check in checks]
        return Checked(
            checks=[await self._check(spec, subject, commit, env or {}) for spec in specs]
        )

    async def _check(
        self, check: CheckSpec, task: _Task, commit: str | None, env: Mapping[str, str]
    ) -> CheckResult:
        """Make one check in the place of a task, on what it has committed."""
        if check.kind is CheckKind.COMMAND:
            inside = replace(task, cwd=task.cwd / (check.directory or ""))
            ended, output = await self._command(check.command or "", inside, env, check.timeout_s)
            result = check_result(check, ended, output)
        elif check.kind is CheckKind.DIFF_NOT_EMPTY and self._is_git:
            stat = ""
            if task.base and commit and commit != task.base:
                diff = await self._workspaces.compare(task.owner, task.base, commit)
                if diff.files:
                    stat = diff.stat[-MAX_OUTPUT:]
                else:
                    stat = ""
            text = stat or "The agent changed nothing."
            result = CheckResult(name=check.label, passed=bool(stat), output=text, duration_s=0)
        else:
            raise InvalidInput(f"The check {check.label} cannot be made here.")
        if result.passed:
            kind = "check.passed"
        else:
            kind = "check.failed"
        self.report(kind, name=check.label, task_id=task.id)
        return result

    async def _command(
        self, command: str, task: _Task, env: Mapping[str, str], timeout_s: float
    ) -> tuple[ProcessEnd, str]:
        """How it ended, and the end of what it printed."""
        with process_directory() as directory:
            launch = Launch(
                process_dir=directory,
                argv=["/bin/sh", "-c", command],
                cwd=task.cwd,
                env=map_into_worktree(
                    {**select_variables(os.environ, ()), **self._parts.env, **env},
                    Origin.around(task.cwd),
                ).values,
                timeout_s=self._account.within(timeout_s),
            )
            ended = await execute(launch, Stop())
            output = read_both_streams(directory, MAX_OUTPUT)
        if ended.ended_by is not None:
            # What was cut short because the run's time is over says nothing about the work.
            self._account.require()
        return ended, output

    async def ask(self, question: str, default: str | None = None) -> str:
        if question in self._state.answers:
            return self._state.answers[question]
        # One after another, in the order in which they were asked.
        async with self._ask_lock:
            try:
                with self._account.free_time():
                    return await self._parts.caller.ask(question, default)
            except TeamSuspended:
                if default is not None and self._has_worked:
                    return default  # what was done since the start would be done once more
                self._unanswered.append(question)
                raise

    def suspended(self) -> RunState:
        """Where the run goes on once its questions are answered."""
        return replace(
            self._state,
            questions=tuple(self._unanswered),
            remembered={**self._state.remembered, **self._answered},
            spent=self._account.spent,
        )

    async def progress(self, **facts: Fact) -> None:
        self.report("run.progress", **facts)

    async def commit(self, message: str) -> str | None:
        return await self._commit(self._owner, f"{message}\n")

    async def _commit(self, owner: str, message: str) -> str | None:
        """Commit everything in a worktree; what its branch then holds."""
        if not self._is_git:
            return None
        await self._workspaces.commit(owner, f"{message}\nRun: {self.run_id}")
        return await self._workspaces.tip(owner)

    async def revert(self, commit: str) -> None:
        if self._is_git:
            self._reverts += 1
            await self._workspaces.restore(self._owner, commit, f"revert-{self._reverts}")

    async def merge(self, work: TaskResult | RunResult) -> Merged:
        return await self._merge(work)

    async def take_in(self, task: TaskResult) -> list[str]:
        self._tasks[task.id].took_in = True
        return await super().take_in(task)

    def lock(self, name: str, places: int = 1) -> AbstractAsyncContextManager[None]:
        return self._locks.setdefault(name, asyncio.Semaphore(places))

    async def gather(self, *branches: Coroutine[Any, Any, T]) -> list[T]:
        # Cancelled, it returns when all branches have ended, and their agents with them.
        ended = await asyncio.gather(*branches, return_exceptions=True)
        errors = [item for item in ended if isinstance(item, BaseException)]
        for error in sorted(errors, key=lambda error: not isinstance(error, TeamSuspended)):
            raise error
        return [one for one in ended if not isinstance(one, BaseException)]

    async def finish(self) -> str | None:
        """Put away what tasks left; the run's own worktree stays if its branch holds anything.

        Returns the commit of that branch, None when nothing came of the run.
        """
        for task_id in self._worktrees:
            try:
                await self._workspaces.discard(task_id, empty_branch=True)
            except (KapelleError, OSError) as error:
                _log.warning("The worktree of %s stays: %s", task_id, error)
        if not self._is_git:
            return None
        tip = await self._workspaces.tip(self._owner)
        if tip != self._run.base:
            return tip
        await self._workspaces.discard(self._owner, empty_branch=True)
        return None
