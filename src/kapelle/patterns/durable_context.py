"""The Context of a run in the daemon: steps are journalled, tasks and worktrees are real ones."""

import logging
import time
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kapelle.domain.errors import Conflict, InvalidInput, KapelleError, MergeConflict
from kapelle.domain.run_specs import PatternSpec
from kapelle.domain.specs import CheckSpec, Priority, RetrySpec, TaskSpec, WorkspaceKind
from kapelle.domain.states import FINAL
from kapelle.engine.bell import Bell
from kapelle.engine.run_workspace import restore_deleted
from kapelle.engine.stage import Stage
from kapelle.engine.submission import Belonging, submit
from kapelle.patterns.budget import RunBudget
from kapelle.patterns.commands import Commands
from kapelle.patterns.context import Context, Place
from kapelle.patterns.going import Going
from kapelle.patterns.journal import Journal
from kapelle.patterns.results import Checked, Merged, RunResult, Scored, TaskResult
from kapelle.patterns.starting import Starter, problems
from kapelle.patterns.waiting import Waiting
from kapelle.patterns.words import titled, writable
from kapelle.store import events, runs, steps, tasks
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.runs")
_CHANGES = 4_000
_PATCH = 30_000


def _retry(max_attempts: int) -> RetrySpec:
    return RetrySpec(policy="same" if max_attempts > 1 else "none", max_attempts=max_attempts)


def _task_spec(wanted: dict[str, Any]) -> TaskSpec:
    try:
        return TaskSpec.model_validate(wanted)
    except ValidationError as error:
        raise InvalidInput(f"ctx.task: {problems(error)}") from None


class DurableContext(Context):
    def __init__(
        self,
        stage: Stage,
        bell: Bell,
        starter: Starter,
        run: runs.Row,
        spec: PatternSpec,
        known: dict[str, steps.Row],
    ) -> None:
        self.run_id = run["id"]
        self.spec = spec
        self._stage = stage
        self._starter = starter
        self._owner: str = run["workspace_owner"] or run["id"]
        self._is_git: bool = run["workspace_kind"] == WorkspaceKind.WORKTREE
        self._going = Going(stage, self.run_id)
        self._journal = Journal(stage, self.run_id, known, self._going)
        self._budget = RunBudget(stage, self.run_id, spec)
        self._waiting = Waiting(stage, bell, self.run_id, self._budget, self._going)
        self._commands = Commands(stage, run, spec, self._budget)

    @property
    def is_git(self) -> bool:
        return self._is_git

    async def task(
        self,
        prompt: str,
        *,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        workspace: Place = "run",
        directory: str | None = None,
        checks: Sequence[CheckSpec | str] = (),
        continue_from: str | None = None,
        keep_session: bool = False,
        system_prompt: str | None = None,
        priority: Priority | None = None,
        timeout_s: float | None = None,
        max_attempts: int = 1,
        context: dict[str, str] | None = None,
        disposable: bool = False,
    ) -> TaskResult:
        own, spec = workspace == "own", self.spec
        here = directory is None or await self._is_here(directory)
        if self._is_git and not here and not own:
            raise InvalidInput(
                f"{directory} is not in the repository of the run, whose workspace it shares.",
                hint="Give each step a workspace of its own: --workspaces each.",
            )
        # What goes on from another task starts from that one's branch.
        from_run = own and here and self._is_git and continue_from is None
        agent = agent or spec.agent
        wanted: dict[str, Any] = {
            "prompt": writable(prompt),
            "directory": directory or spec.directory,
            "agent": agent,
            # A model belongs to the agent that it was named with.
            "model": model or (spec.model if agent == spec.agent else None),
            "title": titled(title) if title else None,
            "project": spec.project,
            "priority": priority or spec.priority,
            "checks": list(checks),
            "continue_from": continue_from,
            "fork_session": keep_session and continue_from is not None,
            "fallback_agents": spec.fallback_agents,
            "system_prompt": system_prompt or spec.system_prompt,
            "timeout_s": timeout_s or spec.task_timeout_s,
            "env": spec.env,
            "context": context or {},
            "workspace": WorkspaceKind.WORKTREE if self._is_git else WorkspaceKind.IN_PLACE,
            "base": await self._branch() if from_run else None,
        }

        async def begin(position: str) -> None:
            await self._budget.require_time_and_money()
            calls = await self._budget.left_calls()
            tries = max_attempts if calls is None else max(1, min(max_attempts, calls))
            limits = {"budget_usd": await self._budget.left_usd(), "retry": _retry(tries)}
            task_spec = _task_spec({**wanted, **limits})
            shared = self._owner if self._is_git and not own else None

            def also(connection: Connection, task_id: str) -> None:
                title = task_spec.display_title
                self._journal.store(connection, position, "task", title, {}, task_id)
                self._budget.require_call(connection)

            await submit(
                self._stage,
                task_spec,
                f"{self.run_id}/{position}",
                Belonging(run_id=self.run_id, workspace_owner=shared),
                also,
            )

        async def perform(position: str, _data: dict[str, Any]) -> Any:
            return await self._see_task(position, disposable=disposable and own)

        result = await self._journal.step("task", title or prompt[:80], perform, begin=begin)
        return TaskResult.model_validate(result)

    async def _see_task(self, position: str, *, disposable: bool) -> Any:
        task_id = await self._stage.db.read(steps.subject, self.run_id, position)
        task = None
        # A person may have it done again in the very moment in which it ends.
        while task is None or task.status not in FINAL:
            await self._waiting.for_task(task_id, may_ask=not self._never_blocks)
            task = await self._stage.db.read(tasks.get, task_id)
        if task.workspace.owner == self._owner and task.workspace.commit:
            await self._remember(task.workspace.commit)
        if disposable:
            await self._put_away(task_id)
        return TaskResult.of(task).model_dump(mode="json")

    async def _put_away(self, task_id: str) -> None:
        """Remove a worktree that has served its purpose; its content is archived first."""
        if self._is_git:
            try:
                await self._stage.workspaces.remove(task_id)
            except KapelleError as error:
                _log.warning("the worktree of %s stays: %s", task_id, error.message)

    @property
    def _never_blocks(self) -> bool:
        return not getattr(self.spec, "ask", True)

    async def run(
        self, pattern: str, spec: dict[str, Any], *, workspace: Place = "own"
    ) -> RunResult:
        inherited = self.spec.model_dump(
            mode="json", include=set(PatternSpec.model_fields), exclude_none=True
        )
        for name in ("title", "max_seconds", "max_agent_calls", "budget_usd"):
            inherited.pop(name, None)

        async def begin(position: str) -> None:
            await self._starter.start(
                pattern,
                {**inherited, **spec},
                f"{self.run_id}/{position}",
                parent_id=self.run_id,
                workspace_owner=self._owner if self._is_git and workspace == "run" else None,
                also=lambda connection, run_id: self._journal.store(
                    connection, position, "run", pattern, {}, run_id
                ),
            )

        result = await self._journal.step("run", pattern, self._see_run, begin=begin)
        return RunResult.model_validate(result)

    async def _see_run(self, position: str, _data: dict[str, Any]) -> Any:
        run_id = await self._stage.db.read(steps.subject, self.run_id, position)
        await self._waiting.for_run(run_id)
        run = await self._stage.db.read(runs.row, run_id)
        ended = RunResult(
            id=run_id, status=run["status"], reason=run["reason"], result=run["result"]
        )
        return ended.model_dump(mode="json")

    async def check(
        self, *checks: CheckSpec | str, env: dict[str, str] | None = None, task: str | None = None
    ) -> Checked:
        specs = [CheckSpec.model_validate(check) for check in checks]

        async def perform(position: str, data: dict[str, Any]) -> Any:
            told: int = data.get("told", 0)
            return await self._commands.check(position, specs, env or {}, task, told)

        label = ", ".join(spec.label for spec in specs)
        return Checked(checks=await self._journal.step("check", label, perform))

    async def score(
        self,
        command: str,
        *,
        timeout_s: float = 600,
        env: dict[str, str] | None = None,
        task: str | None = None,
    ) -> Scored:
        async def perform(position: str, _data: dict[str, Any]) -> Any:
            scored = await self._commands.score(position, command, timeout_s, env or {}, task)
            return scored.model_dump(mode="json")

        return Scored.model_validate(await self._journal.step("score", command, perform))

    async def ask(self, question: str, default: str | None = None) -> str:
        async def perform(position: str, _data: dict[str, Any]) -> Any:
            await self._going.suspend(position)

        answer: str = await self._journal.step("ask", question, perform, data={"default": default})
        return answer

    async def sleep(self, seconds: float) -> None:
        until = datetime.now(UTC) + timedelta(seconds=seconds)

        async def perform(_position: str, data: dict[str, Any]) -> None:
            await self._waiting.until(data["until"])

        data = {"until": until.timestamp()}
        await self._journal.step("sleep", f"{seconds:g} s", perform, data=data)

    async def now(self) -> datetime:
        async def perform(_position: str, _data: dict[str, Any]) -> float:
            return time.time()

        return datetime.fromtimestamp(await self._journal.step("now", "now", perform), UTC)

    async def progress(self, **facts: str | float | bool | None) -> None:
        async def perform(_position: str, _data: dict[str, Any]) -> None:
            return

        async def begin(position: str) -> None:
            await self._stage.db.write(self._tell, position, facts)

        await self._journal.step("progress", "progress", perform, begin=begin)

    def _tell(self, connection: Connection, position: str, facts: dict[str, Any]) -> None:
        self._journal.store(connection, position, "progress", "progress", facts)
        known = runs.row(connection, self.run_id)["progress"]
        runs.update(connection, self.run_id, progress={**known, **facts})
        events.append(connection, "run.progress", run_id=self.run_id, **facts)

    async def commit(self, message: str) -> str | None:
        async def perform(_position: str, _data: dict[str, Any]) -> str | None:
            if not self._is_git:
                return None
            text = f"{message}\n\nRun: {self.run_id}"
            await restore_deleted(self._stage, self._owner)
            made = await self._stage.workspaces.commit(self._owner, text)
            await self._remember(made)
            return made or await self._stage.workspaces.tip(self._owner)

        made: str | None = await self._journal.step("commit", message, perform)
        return made

    async def revert(self, commit: str) -> None:
        async def perform(position: str, _data: dict[str, Any]) -> None:
            if self._is_git:
                name = f"step-{position.replace('.', '-')}"
                await self._stage.workspaces.restore(self._owner, commit, name)
                await self._remember(commit)

        await self._journal.step("revert", commit[:12], perform)

    async def _remember(self, commit: str | None) -> None:
        """What the run's branch holds, so that exactly this is merged later."""
        await self._stage.db.write(runs.update, self._owner, workspace_commit=commit)

    async def _is_here(self, directory: str) -> bool:
        """Whether a directory is in the repository that the run works in."""
        own = await self._stage.workspaces.locate(Path(self.spec.directory))
        other = await self._stage.workspaces.locate(Path(directory))
        return own is not None and other is not None and own.common_dir == other.common_dir

    async def _branch(self) -> str:
        run = await self._stage.db.glance(runs.row, self._owner)
        branch: str = run["workspace_branch"]
        return branch

    async def merge(self, task: TaskResult) -> Merged:
        async def perform(_position: str, _data: dict[str, Any]) -> Any:
            merged = await self._merge(task)
            return merged.model_dump(mode="json")

        return Merged.model_validate(await self._journal.step("merge", task.id, perform))

    async def _merge(self, task: TaskResult) -> Merged:
        if not self._is_git or not task.changed:
            return Merged(commit=None, problem="it changed nothing")
        if not await self._is_here(task.directory):
            return Merged(commit=None, problem="it is in another repository", elsewhere=True)
        title = (await self._stage.db.read(tasks.get, task.id)).title
        message = f"Merge {title}\n\nTask: {task.id}\nRun: {self.run_id}"
        branch = await self._branch()
        try:
            merged = await self._stage.workspaces.merge(task.id, branch, message)
        except MergeConflict as error:
            return Merged(commit=None, problem=error.message)
        except KapelleError as error:
            raise Conflict(error.message, hint=error.hint) from error
        await self._remember(merged.commit)
        await self._stage.db.write(tasks.update, task.id, merged_at=datetime.now(UTC))
        await self._put_away(task.id)
        return Merged(commit=merged.commit)

    async def put_away(self, task: TaskResult) -> None:
        async def perform(_position: str, _data: dict[str, Any]) -> None:
            await self._put_away(task.id)

        await self._journal.step("put_away", task.id, perform)

    async def take_in(self, task: TaskResult) -> list[str]:
        async def perform(_position: str, _data: dict[str, Any]) -> list[str]:
            branch = await self._branch()
            message = f"Take in {branch}\n\nTask: {task.id}\nRun: {self.run_id}"
            return await self._stage.workspaces.take_in(task.id, branch, message)

        found: list[str] = await self._journal.step("take_in", task.id, perform)
        return found

    async def changes(self, task: TaskResult | None = None, *, patch: bool = False) -> str:
        async def perform(_position: str, _data: dict[str, Any]) -> str:
            if not self._is_git:
                return ""
            owner = task.id if task else self._owner
            commits = await self._stage.workspaces.log(owner)
            diff = await self._stage.workspaces.diff(owner)
            lines = [f"{commit.id[:10]} {commit.subject}" for commit in commits]
            summary = "\n".join([*lines, "", diff.stat])[-_CHANGES:].strip()
            text = diff.patch[:_PATCH].decode("utf-8", "replace") if patch else ""
            return f"{summary}\n\n{text}".strip()

        text: str = await self._journal.step("changes", task.id if task else "changes", perform)
        return text

    async def compare(self, one: TaskResult, other: TaskResult) -> str:
        async def perform(_position: str, _data: dict[str, Any]) -> str:
            if not (self._is_git and one.commit and other.commit):
                return ""
            diff = await self._stage.workspaces.compare(one.id, one.commit, other.commit)
            return diff.stat[-_CHANGES:]

        text: str = await self._journal.step("compare", f"{one.id} {other.id}", perform)
        return text

    async def _gather(self, *branches: Coroutine[Any, Any, Any]) -> list[Any]:
        return await self._journal.gather(branches)
