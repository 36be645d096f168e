"""Checks and scores of a run: commands in its workspace that a crash neither loses nor repeats."""

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import CheckKind, CheckSpec
from kapelle.domain.task import CheckResult, Workspace
from kapelle.engine.delivery import await_ci
from kapelle.engine.environment import Origin
from kapelle.engine.launch import Place
from kapelle.engine.output import SHOWN_OUTPUT, check_facts
from kapelle.engine.parts import CHECK_STARTED, TAMPERED, Parts
from kapelle.engine.proof import Subject
from kapelle.engine.retry import retried
from kapelle.engine.runs.journal import Journal, Step
from kapelle.engine.runs.limits import RunBudget
from kapelle.engine.runs.workspace import restore_deleted
from kapelle.engine.tasks.attempt import task_diff
from kapelle.patterns.results import Scored, read_score
from kapelle.patterns.spec import PatternSpec
from kapelle.runner.output import both_streams, tail_text
from kapelle.runner.process_dir import Ended, Launch, Process
from kapelle.store import events, runs, tasks
from kapelle.store.database import Connection
from kapelle.store.processes import Announce
from kapelle.store.query import workspace_of
from kapelle.workspaces import working_directory


@dataclass(frozen=True)
class Commands:
    """Runs the commands of one run's steps, each in a directory of its own."""

    parts: Parts
    run_id: str
    owner: str
    spec: PatternSpec
    journal: Journal
    budget: RunBudget

    async def check(
        self, step: Step, specs: list[CheckSpec], env: dict[str, str], task: str | None
    ) -> list[CheckResult]:
        """The results in order; all are made, so that all that is wrong is known. The last is
        announced at the step's end."""
        found, announced = [], step.data.get("told", 0)  # before a crash
        for number, spec in enumerate(specs):
            if spec.kind is CheckKind.COMMAND:
                result = await self._command(f"{step.position}/{number}", spec, env, task)
            elif spec.kind is CheckKind.DIFF_NOT_EMPTY:
                result = await self._diff_not_empty(spec, task)
            elif spec.kind is CheckKind.CI:
                result = await self._ci(f"{step.position}/{number}", spec, task)
            else:
                raise InvalidInput(f"The check {spec.label} is one of tasks, not of runs.")
            if announced <= number < len(specs) - 1:
                await self.parts.db.write(self._note, step, number, result)
            found.append(result)
        return found

    def _note(self, connection: Connection, step: Step, number: int, result: CheckResult) -> None:
        self.journal.note(connection, step, {"told": number + 1})
        self.announce(connection, result)

    def announce(self, connection: Connection, result: CheckResult) -> None:
        """Add what came of a check to the history."""
        kind = "check.passed" if result.passed else "check.failed"
        events.append(connection, kind, run_id=self.run_id, **check_facts(result))

    async def _command(
        self, name: str, spec: CheckSpec, env: dict[str, str], task: str | None
    ) -> CheckResult:
        command = spec.command or ""
        workspace, place = await self._place(task, env)
        with self.parts.making(self.run_id, spec.label, command) as told:

            def announce(connection: Connection) -> None:
                events.append(connection, CHECK_STARTED, run_id=self.run_id, **told)

            process, ended = await self._execute(name, command, spec.timeout_s, place, announce)
        result = await place.judged(spec, process, ended)
        owner = workspace.owner or task or self.owner
        if workspace.branch is None:
            return result
        tip = await self.parts.workspaces.tip(owner)
        result = result.model_copy(update={"commit": tip})

        async def again(name: str, place: Place, timeout_s: float) -> Ended:
            return (await self._execute(name, command, timeout_s, place))[1]

        subject = Subject(place, owner, workspace, self.spec.directory, again)
        return await subject.prove(
            name, spec, result, self.spec.prove or place.settings.tasks.prove
        )

    async def _ci(self, name: str, spec: CheckSpec, task: str | None) -> CheckResult:
        """What the CI says of what is committed."""
        await self.journal.process(name)
        owner, began = task or self.owner, (self.run_id, name)
        commit = await self.parts.workspaces.tip(owner)

        async def pause(seconds: float) -> bool:
            await self.budget.until(time.time() + seconds)
            return True

        with self.parts.making(self.run_id, spec.label, ""):
            return await await_ci(self.parts, owner, commit, spec, began, pause)

    async def _diff_not_empty(self, spec: CheckSpec, task: str | None) -> CheckResult:
        if task is not None:
            row = await self.parts.db.read(tasks.get, task)
            diff = await task_diff(self.parts, task, row.workspace)
        else:
            diff = await self.parts.workspaces.diff(self.owner)
        text = diff.stat[-SHOWN_OUTPUT:] if diff.files else "Nothing was changed."
        return CheckResult(name=spec.label, passed=bool(diff.files), output=text, duration_s=0)

    async def score(
        self, step: Step, command: str, timeout_s: float, env: dict[str, str], task: str | None
    ) -> Scored:
        """The number in the last line of the output that is not empty."""
        with self.parts.making(self.run_id, command.strip().split("\n")[0], command):
            _, place = await self._place(task, env)
            process, ended = await self._execute(step.position, command, timeout_s, place)
        output = await asyncio.to_thread(both_streams, process.directory, SHOWN_OUTPUT)
        if not ended.succeeded:
            problem = f"the score command failed: {ended.ending(timeout_s)}"
            return Scored(value=None, output=output, problem=problem)
        printed = await asyncio.to_thread(tail_text, process.directory / "out.log", SHOWN_OUTPUT)
        return read_score(printed, output)

    async def _execute(
        self, name: str, command: str, timeout_s: float, place: Place,
        announce: Announce | None = None,
    ) -> tuple[Process, Ended]:  # fmt: skip
        process = await self.journal.process(name, announce)
        left = (await self.budget.left()).seconds
        limit_s = timeout_s if left is None else max(0.1, min(timeout_s, left))
        launch = await place.command(process, command, limit_s, f"{name} of {self.run_id}")
        ended = await retried(self._launch)(name, launch)
        if ended.ended_by == "timeout":
            # What was cut short because the run's time is over says nothing about the work.
            await self.budget.require_time_and_money()
        return process, ended

    async def _launch(self, name: str, launch: Launch) -> Ended:
        launch.process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        stop = partial(runs.end_requested, run_id=self.run_id)
        tell = partial(self.parts.db.write, events.append, TAMPERED, run_id=self.run_id)
        return await self.parts.execute(self.run_id, name, launch, stop, tell)

    async def _place(self, task: str | None, env: dict[str, str]) -> tuple[Workspace, Place]:
        """The run's workspace or that of one of its tasks, and where in it a command runs."""
        if task is not None:
            row = await self.parts.db.read(tasks.get, task)
            workspace, directory = row.workspace, Path(row.directory)
        else:
            await restore_deleted(self.parts, self.owner)
            run = await self.parts.db.read(runs.row, self.owner)
            workspace, directory = workspace_of(run), Path(self.spec.directory)
        settings, env = self.parts.work_settings(self.spec.directory), self.spec.env | env
        worktree = None if workspace.branch is None else Path(workspace.path)
        origin = Origin.of(self.spec.shell, directory, worktree, settings.workspace)
        cwd = working_directory(workspace, directory) if worktree else directory
        env["KAPELLE_RUN_ID"] = self.run_id
        return workspace, Place(self.parts, settings, self.run_id, cwd, env, origin)
