"""Execute a run in this process: agents in threads, worktrees in the library's home."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

from kapelle.domain.budget import RemainingBudget
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
from kapelle.patterns.results import Checked, Merged, RunResult, Scored, TaskResult
from kapelle.patterns.spec import PatternSpec
from kapelle.runner.output import read_both_streams
from kapelle.runner.process_dir import Launch, ProcessEnd
from kapelle.workspaces import Workspaces, working_directory

_log = logging.getLogger("kapelle.library")
_WORKER = "worker"
_OUTPUT = 4_000


@dataclass
class _Task:
    """A task and its directory; owner is the task or run whose worktree it is."""

    id: str
    title: str
    cwd: Path
    owner: str = ""
    branch: str | None = None
    base: str | None = None  # the commit before its work
    result: TaskResult | None = None
    has_taken_in: bool = False  # its branch has got the commits of another one

    def describe(self) -> Earlier:
        """Return the description of this task for a task that continues it."""
        assert self.result is not None
        checks = self.result.failed_checks
        return Earlier(
            heading=f"An earlier task: {self.title}",
            status=self.result.status,
            reason=self.result.reason,
            result=self.result.text[-_OUTPUT:],
            last_output="",
            failed_checks=[(check.name, check.output[-_OUTPUT:]) for check in checks],
            branch=self.branch,
            diffstat=None,
        )


@dataclass(frozen=True)
class OrchestratorParts:
    """The parts of a run; agents are named by their roles in its specification."""

    agents: Mapping[str, Agent]
    account: Account
    caller: ProgressCaller
    workspaces: Workspaces
    env: Mapping[str, str]


class LocalContext(GitContext):
    """Executes each step at once; nothing survives the end of this process."""

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
        # Answers of agents that changed nothing, by a digest of the request. A resumed run uses
        # each earlier answer once, instead of calling the agent again.
        self._earlier_answers = dict(state.remembered)
        self._new_answers: dict[str, str] = {}
        self._open_questions: list[str] = []
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

    def _in_worktree(self, task_id: str, title: str, workspace: Workspace) -> _Task:
        cwd = working_directory(workspace, Path(self.spec.directory))
        return _Task(task_id, title, cwd, task_id, workspace.branch, workspace.base_commit)

    def report(self, kind: str, **facts: Any) -> None:
        """Send an event of this run to the observer."""
        self._parts.caller.report(kind, run_id=self.run_id, **facts)

    async def _branch(self) -> str:
        return self._run.branch or ""

    async def _git_step(
        self, kind: str, label: str, perform: Callable[[], Awaitable[T]], *, again: bool = True
    ) -> T:
        return await perform()

    async def task(self, prompt: str, **fields: Unpack[TaskArgs]) -> TaskResult:
        """Have an agent work on a task.

        Model, tools, session and priority are ignored, because the agents are made by the caller.
        """
        previous = fields.get("continue_from")
        earlier = self._tasks[previous] if previous else None
        reports = [earlier.describe()] if earlier else []
        text = compose_prompt(prompt, fields.get("context", {}), reports, None)
        role = fields.get("agent") or _WORKER
        agent = self._agent(role)
        is_disposable = bool(fields.get("disposable"))
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        if is_disposable and digest in self._earlier_answers:
            answer = self._earlier_answers.pop(digest)
            return _answered_task(answer, agent)
        checks = [CheckSpec.model_validate(check) for check in fields.get("checks", ())]
        self._account.require_call()
        place = fields.get("workspace", "run")
        title = fields.get("title") or prompt.strip()[:80]
        task = await self._begin(title, place, earlier, only_reports=fields.get("read_only", False))
        request = Request(
            prompt=text,
            system=fields.get("system_prompt") or self.spec.system_prompt,
            cwd=task.cwd,
            role=role,
            title=title,
            timeout_s=fields.get("timeout_s") or self.spec.task_timeout_s,
        )
        keep = not (is_disposable and place == "own")
        if keep:
            self._has_worked = True
        tries = fields.get("max_attempts", 1)
        result = await self._work(task, agent, request, checks, attempts=tries, keep=keep)
        task.result = result
        self._tasks[task.id] = task
        if not keep:
            await self._put_away(task.id)
            if result.ok:
                self._new_answers[digest] = result.text
        return result

    def _agent(self, role: str) -> Agent:
        if role not in self._parts.agents:
            roles = ", ".join(self._parts.agents)
            raise InvalidInput(f"There is no agent {role!r} here; the agents are: {roles}.")
        return self._parts.agents[role]

    async def _work(
        self,
        task: _Task,
        agent: Agent,
        request: Request,
        checks: Sequence[CheckSpec],
        *,
        attempts: int,
        keep: bool,
    ) -> TaskResult:
        """Have a task worked on until an attempt succeeds, and report its start and its end."""
        facts = {"task_id": task.id, "title": task.title, "role": request.role}
        self.report("task.started", **facts, agent=agent.name)
        for _ in range(attempts):
            result = await self._attempt(task, agent, request, checks, keep=keep)
            if result.ok:
                break
        kind = "task.completed" if result.ok else "task.failed"
        facts["text"] = excerpt(result.text)
        self.report(kind, **facts, reason=result.reason, cost_usd=result.cost_usd)
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
        base = earlier.branch if earlier else self._run.branch
        directory = Path(self.spec.directory)
        workspace = await self._workspaces.create(task_id, directory, base)
        if only_reports:
            copy = await self._workspaces.copy(task_id, is_alone=True)
            workspace = workspace.model_copy(update={"path": str(copy)})
        task = self._in_worktree(task_id, title, workspace)
        if earlier is not None and not earlier.has_taken_in:
            # The work on an unfinished task counts as a part of the task that continues it.
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
        """Have an agent work once, commit the work unless keep is False, and check it."""
        response = await respond(agent, replace(request, stop=Stop()), self._account)
        commit = None
        if keep:
            # Unfinished work is committed, too, so that a later task can continue it.
            message = f"{task.title}\n\nTask: {task.id}\nAgent: {agent.name}"
            commit = await self._commit(task.owner, message)
        failed_checks = []
        if response.ok:
            failed_checks = await self._find_failures(checks, task, commit)
        reason = None
        if failed_checks:
            reason = f"failed its check: {', '.join(check.name for check in failed_checks)}"
        elif not response.ok:
            reason = response.reason or "the agent did not succeed, without giving a reason"
        return TaskResult(
            id=task.id,
            status=TaskStatus.COMPLETED if reason is None else TaskStatus.FAILED,
            reason=reason,
            text=response.text,
            branch=task.branch,
            base_commit=task.base,
            commit=commit,
            failed_checks=failed_checks,
            cost_usd=cost_of(response),
            agent=agent.name,
            directory=self.spec.directory,
            title=task.title,
        )

    async def _find_failures(
        self, checks: Sequence[CheckSpec], task: _Task, commit: str | None
    ) -> list[CheckResult]:
        """Execute the checks of a task, and return those that failed."""
        # Built-in checks come first, because the commands of other checks may change files.
        ordered = sorted(checks, key=lambda check: check.kind is CheckKind.COMMAND)
        results = [await self._check(check, task, commit, {}) for check in ordered]
        return [result for result in results if not result.passed]

    # The following steps need the daemon. The team pattern calls none of them.

    async def run(
        self, pattern: str, spec: dict[str, Any], *, workspace: WorkLocation = "own"
    ) -> RunResult:
        raise _needs_daemon("run")

    async def score(
        self, command: str, *, timeout_s: float = 600, env: Env = None, task: str | None = None
    ) -> Scored:
        raise _needs_daemon("score")

    async def sleep(self, seconds: float) -> None:
        raise _needs_daemon("sleep")

    async def now(self) -> datetime:
        raise _needs_daemon("now")

    async def note(self, key: str, value: str) -> None:
        raise _needs_daemon("note")

    async def read_note(self, key: str) -> str | None:
        raise _needs_daemon("read_note")

    async def budget(self) -> RemainingBudget:
        raise _needs_daemon("budget")

    async def check(
        self, *checks: CheckSpec | str, env: Env = None, task: str | None = None
    ) -> Checked:
        subject = self._run if task is None else self._tasks[task]
        commit = None
        if subject.result is not None:
            commit = subject.result.commit
        elif self._is_git:
            commit = await self._workspaces.tip(self._owner)
        specs = [CheckSpec.model_validate(check) for check in checks]
        results = [await self._check(spec, subject, commit, env or {}) for spec in specs]
        return Checked(checks=results)

    async def _check(
        self, check: CheckSpec, task: _Task, commit: str | None, env: Mapping[str, str]
    ) -> CheckResult:
        """Execute one check in the directory of a task, on its last commit."""
        if check.kind is CheckKind.COMMAND:
            inside = replace(task, cwd=task.cwd / (check.directory or ""))
            end, output = await self._command(check.command or "", inside, env, check.timeout_s)
            result = check_result(check, end, output)
        elif check.kind is CheckKind.DIFF_NOT_EMPTY and self._is_git:
            stat = ""
            if task.base and commit and commit != task.base:
                diff = await self._workspaces.compare(task.owner, task.base, commit)
                if diff.files:
                    stat = diff.stat[-MAX_OUTPUT:]
            text = stat or "The agent changed nothing."
            result = CheckResult(name=check.label, passed=bool(stat), output=text, duration_s=0)
        else:
            raise InvalidInput(f"The check {check.label} cannot be executed here.")
        kind = "check.passed" if result.passed else "check.failed"
        self.report(kind, name=check.label, task_id=task.id)
        return result

    async def _command(
        self, command: str, task: _Task, env: Mapping[str, str], timeout_s: float
    ) -> tuple[ProcessEnd, str]:
        """Execute a command; return its end and the end of its output."""
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
            end = await execute(launch, Stop())
            output = read_both_streams(directory, MAX_OUTPUT)
        if end.ended_by is not None:
            # A check that was stopped by the time limit of the run proves nothing about the work.
            self._account.require()
        return end, output

    async def ask(self, question: str, default: str | None = None) -> str:
        if question in self._state.answers:
            return self._state.answers[question]
        # A person gets one question after another, in the order of the calls.
        async with self._ask_lock:
            try:
                with self._account.free_time():
                    return await self._parts.caller.ask(question, default)
            except TeamSuspended:
                if default is not None and self._has_worked:
                    return default  # a resumed run would repeat the work since its start
                self._open_questions.append(question)
                raise

    def resumable_state(self) -> RunState:
        """Return the state with which the run resumes, once its questions are answered."""
        return replace(
            self._state,
            questions=tuple(self._open_questions),
            remembered={**self._state.remembered, **self._new_answers},
            spent=self._account.spent,
        )

    async def progress(self, **facts: Fact) -> None:
        self.report("run.progress", **facts)

    async def commit(self, message: str) -> str | None:
        return await self._commit(self._owner, f"{message}\n")

    async def _commit(self, owner: str, message: str) -> str | None:
        """Commit everything in a worktree; return the last commit of its branch."""
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
        self._tasks[task.id].has_taken_in = True
        return await super().take_in(task)

    def lock(self, name: str, places: int = 1) -> AbstractAsyncContextManager[None]:
        return self._locks.setdefault(name, asyncio.Semaphore(places))

    async def gather(self, *branches: Coroutine[Any, Any, T]) -> list[T]:
        # At a cancellation, too, this returns only after all branches and their agents have ended.
        outcomes = await asyncio.gather(*branches, return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        # An open question comes first, because the run can be resumed after it.
        for error in errors:
            if isinstance(error, TeamSuspended):
                raise error
        if errors:
            raise errors[0]
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    async def finish(self) -> str | None:
        """Remove the tasks' worktrees, and the run's own one if its branch has no commits.

        Returns the last commit of the run's branch, or None if it has none.
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


def _answered_task(answer: str, agent: Agent) -> TaskResult:
    """Return the result of a task that an earlier part of the run has answered."""
    status = TaskStatus.COMPLETED
    return TaskResult(id=new_id("task"), status=status, text=answer, agent=agent.name)


def _needs_daemon(step: str) -> InvalidInput:
    """Return the error that a pattern calls a step that only the daemon has."""
    return InvalidInput(
        f"Without a daemon only the team pattern runs, which has no {step}().",
        hint="kapelle.connect().runs starts any pattern in the daemon.",
    )
