"""The steps of a context that are checks and scores: commands in the workspace of a run in the
daemon that a crash neither loses nor repeats."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import CheckKind, CheckSpec, WorkspaceKind
from kapelle.domain.task import CheckResult, Workspace
from kapelle.engine.background import with_retries
from kapelle.engine.delivery import await_ci
from kapelle.engine.parts import CHECK_STARTED, TAMPERED, Parts
from kapelle.engine.processes.environment import Origin, search_path_of
from kapelle.engine.processes.launch import ProcessLocation
from kapelle.engine.processes.output import MAX_OUTPUT, check_facts
from kapelle.engine.processes.proof import Subject
from kapelle.engine.runs.control import Control
from kapelle.engine.runs.git import GitContext
from kapelle.engine.runs.journal import Journal, StepRequest
from kapelle.engine.runs.workspace import restore_deleted
from kapelle.engine.tasks.attempt import task_diff
from kapelle.patterns.context import Env
from kapelle.patterns.results import Checked, Scored, read_score
from kapelle.patterns.spec import PatternSpec
from kapelle.runner.output import read_both_streams, read_tail
from kapelle.runner.process_dir import Process, ProcessEnd
from kapelle.runner.redaction import redact
from kapelle.store import events, runs, tasks
from kapelle.store.database import Connection
from kapelle.store.processes import Announce
from kapelle.store.rows import read_workspace
from kapelle.workspaces import working_directory


class CommandContext(GitContext):
    """A run in the daemon, whose steps are journalled; commands are processes of their own, each in
    a directory of its own."""

    def __init__(
        self, parts: Parts, run: runs.Row, spec: PatternSpec, journal: Journal, control: Control
    ) -> None:
        owner = run["workspace_owner"] or run["id"]
        is_git = run["workspace_kind"] == WorkspaceKind.WORKTREE
        super().__init__(run["id"], spec, parts.workspaces, owner, is_git=is_git)
        self._parts = parts
        self._project = run["project"]
        self._journal = journal
        self._control = control

    async def check(
        self, *checks: CheckSpec | str, env: Env = None, task: str | None = None
    ) -> Checked:
        specs = [CheckSpec.model_validate(check) for check in checks]

        async def perform(step: StepRequest) -> list[Any]:
            """The results in order; all are made, so that all that is wrong is known."""
            # before a crash
            results = []
            noted_count = step.data.get("told", 0)
            kinds = [spec.kind for spec in specs]
            for number, spec in enumerate(specs):
                name = f"{step.position}/{number}"
                is_first = CheckKind.COMMAND not in kinds[:number]
                result = await self._make_check(name, spec, env or {}, task, is_first=is_first)
                if noted_count <= number:
                    await self._parts.db.write(self._note, step, number, result)
                results.append(result.model_dump(mode="json"))
            if self._is_git:
                await self._parts.workspaces.bring_back(task or self._owner)
            return results

        label = ", ".join(spec.label for spec in specs)
        step = StepRequest("check", label, perform, self._begin_in_time)
        return Checked.model_validate({"checks": await self._journal.step(step)})

    async def _begin_in_time(self, step: StepRequest) -> None:
        """How a step begins that takes time."""
        await self._control.require_time_and_money()
        await self._parts.db.write(self._journal.store, step)

    async def _make_check(
        self, name: str, spec: CheckSpec, env: dict[str, str], task: str | None, *, is_first: bool
    ) -> CheckResult:
        if spec.kind is CheckKind.COMMAND:
            return await self._command(name, spec, env, task, is_first=is_first)
        if spec.kind is CheckKind.DIFF_NOT_EMPTY:
            return await self._diff_not_empty(spec, task)
        if spec.kind is CheckKind.CI:
            return await self._ci(name, spec, task)
        raise InvalidInput(f"The check {spec.label} is one of tasks, not of runs.")

    def _note(
        self, connection: Connection, step: StepRequest, number: int, result: CheckResult
    ) -> None:
        """Add what came of a check to the history, once."""
        self._journal.note(connection, step, {"told": number + 1})
        if result.passed:
            kind = "check.passed"
        else:
            kind = "check.failed"
        events.append(connection, kind, self.run_id, **check_facts(result))

    async def _command(
        self, name: str, spec: CheckSpec, env: dict[str, str], task: str | None, *, is_first: bool
    ) -> CheckResult:
        command = spec.command or ""
        workspace, place = await self._workplace(task, env)
        place = place.at(self.spec.directory, spec.directory)
        policy = spec.prove or self.spec.prove or place.settings.tasks.prove
        owner = workspace.owner or task or self._owner
        subject = None
        before = None
        if workspace.branch is not None:
            tip = await self._parts.workspaces.tip(owner)
            where = (owner, workspace, self.spec.directory, tip)
            subject = await Subject.load(place, *where, self._execute)
            # A pattern may check what it wrote and did not commit.
            if not await self._parts.workspaces.list_uncommitted(owner):
                before = await subject.check_out(name, policy, is_first=is_first)
        with self._parts.register_check(self.run_id, spec.label, command) as told:

            def announce(connection: Connection) -> None:
                events.append(connection, CHECK_STARTED, self.run_id, **told)

            process, ended = await self._execute(name, command, spec.timeout_s, place, announce)
        result = await place.judge_check(spec, process, ended)
        if subject is None:
            return result
        result = result.model_copy(update={"commit": subject.commit})
        changed = await subject.list_changes_during(ended, before)
        return await subject.examine(name, spec, result, changed, policy)

    async def _ci(self, name: str, spec: CheckSpec, task: str | None) -> CheckResult:
        """Wait for the CI of the committed work, and return its verdict as a check result."""
        await self._journal.process(name)
        owner = task or self._owner
        began = (self.run_id, name)
        commit = await self._parts.workspaces.tip(owner)

        async def pause(seconds: float) -> bool:
            await self._control.until(time.time() + seconds)
            return True

        with self._parts.register_check(self.run_id, spec.label, ""):
            return await await_ci(self._parts, owner, commit, spec, began, pause)

    async def _diff_not_empty(self, spec: CheckSpec, task: str | None) -> CheckResult:
        if task is not None:
            row = await self._parts.db.read(tasks.get, task)
            diff = await task_diff(self._parts, task, row.workspace)
        else:
            diff = await self._parts.workspaces.diff(self._owner)
        if diff.files:
            run = await self._parts.db.read(runs.load_row, self.run_id)
            stat = redact(diff.stat.encode(), self._parts.secrets_of(run))
            text = stat.decode("utf-8", "replace")[-MAX_OUTPUT:]
        else:
            text = "Nothing was changed."
        return CheckResult(name=spec.label, passed=bool(diff.files), output=text, duration_s=0)

    async def score(
        self, command: str, *, timeout_s: float = 600, env: Env = None, task: str | None = None
    ) -> Scored:
        async def perform(step: StepRequest) -> Any:
            """The number in the last line of the output that is not empty."""
            with self._parts.register_check(self.run_id, command.strip().split("\n")[0], command):
                _, place = await self._workplace(task, env or {})
                process, process_end = await self._execute(step.position, command, timeout_s, place)
            output = await asyncio.to_thread(read_both_streams, process.directory, MAX_OUTPUT)
            if not process_end.succeeded:
                problem = f"the score command failed: {process_end.describe_end(timeout_s)}"
                return Scored(value=None, output=output, problem=problem).model_dump(mode="json")
            out = process.directory / "out.log"
            last_output = await asyncio.to_thread(read_tail, out, MAX_OUTPUT)
            return read_score(last_output, output).model_dump(mode="json")

        step = StepRequest("score", command, perform, self._begin_in_time)
        return Scored.model_validate(await self._journal.step(step))

    async def _execute(
        self, name: str, command: str, timeout_s: float, place: ProcessLocation,
        announce: Announce | None = None,
    ) -> tuple[Process, ProcessEnd]:  # fmt: skip
        process = await self._journal.process(name, announce)
        left = (await self._control.left()).seconds
        if left is None:
            limit_s = timeout_s
        else:
            limit_s = max(0.1, min(timeout_s, left))
        launch = await place.command(process, command, limit_s, f"{name} of {self.run_id}")
        stop = partial(runs.find_end_reason, run_id=self.run_id)
        tell = partial(self._parts.db.write, events.append, TAMPERED, self.run_id)
        process_end = await with_retries(self._parts.execute)(self.run_id, name, launch, stop, tell)
        if process_end.ended_by == "timeout":
            # What was cut short because the run's time is over says nothing about the work.
            await self._control.require_time_and_money()
        return process, process_end

    async def _workplace(
        self, task: str | None, env: dict[str, str]
    ) -> tuple[Workspace, ProcessLocation]:
        """The run's workspace or that of one of its tasks, and where in it a command runs."""
        if task is not None:
            row = await self._parts.db.read(tasks.load_row, task)
            workspace = read_workspace(row)
            directory = Path(row["directory"])
        else:
            await restore_deleted(self._parts, self._owner)
            run = await self._parts.db.read(runs.load_row, self._owner)
            workspace = read_workspace(run)
            directory = Path(self.spec.directory)
        settings = self._parts.work_settings(self.spec.directory)
        settings = settings.on_path(search_path_of(self.spec.shell))
        env = self.spec.env | env
        if workspace.branch is None:
            worktree = None
        else:
            worktree = Path(workspace.path)
        origin = Origin.of(self.spec.shell, directory, worktree, settings.workspace)
        if worktree:
            cwd = working_directory(workspace, directory)
        else:
            cwd = directory
        env["KAPELLE_RUN_ID"] = self.run_id
        return workspace, ProcessLocation(self._parts, settings, self.run_id, cwd, env, origin)
