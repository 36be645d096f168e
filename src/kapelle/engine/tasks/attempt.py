"""An attempt that this daemon performs: its rows, its files and its processes.

It is loaded once and handed through the phases of the executor. All writes go through it: a
performer that has lost the attempt to another performer can write nothing any more.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from kapelle.agents.base import AgentAdapter
from kapelle.agents.registry import get as get_agent
from kapelle.domain.errors import InvalidInput, KapelleError, NotFound, NotTrusted
from kapelle.domain.ids import make_attempt_token
from kapelle.domain.run import Run
from kapelle.domain.specs import CheckKind, CheckSpec, WorkspaceKind
from kapelle.domain.states import AttemptStatus
from kapelle.domain.task import Task, Workspace, WorkspaceView
from kapelle.engine.parts import TAMPERED, Parts
from kapelle.engine.processes.container import end_left_commands
from kapelle.engine.processes.environment import Origin, search_path_of
from kapelle.engine.processes.launch import ProcessLocation
from kapelle.runner.process_dir import Launch, Process, ProcessEnd
from kapelle.settings import Settings
from kapelle.store import attempts, events, processes, runs, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row
from kapelle.store.rows import read_workspace
from kapelle.workspaces import Diff, working_directory

P = ParamSpec("P")
T = TypeVar("T")


class ClaimLost(Exception):
    """The attempt has ended, or belongs to another performer."""


AGENT = "agent"
CHECKS = "checks/"


class ActiveAttempt:
    """One attempt in progress; row and task are the stored rows, with all writes since then."""

    def __init__(
        self,
        parts: Parts,
        row: dict[str, Any],
        task: dict[str, Any],
        settings: Settings,
        process_rows: Mapping[str, Row],
    ) -> None:
        self.parts = parts
        self.row = row
        self.task = task
        self.id: str = row["id"]
        self.token = make_attempt_token(
            parts.secret, self.id
        )  # authenticates its agent to the daemon
        self.task_id: str = task["id"]
        self.number: int = row["number"]
        self.mode: str = row["mode"]
        self.message: str | None = row["message"]
        self.agent_name: str = row["agent"]
        self.process_dir = parts.process_directory(self.id)
        self.processes = {
            name: parts.process(process_row) for name, process_row in process_rows.items()
        }
        self.processes[AGENT] = Process(self.process_dir, bytes.fromhex(row["secret"]))
        self.task_env: dict[str, str] = {}
        if task["env"]:
            self.task_env = parts.secrets.env(self.task_id)
        self.shell = parts.secrets.shell(task["shell"])
        self.settings = settings.on_path(search_path_of(self.shell))
        self.files = parts.home.files / self.id
        self.serving: asyncio.Future[ProcessEnd] | None = None
        self.checks = [CheckSpec.model_validate(spec) for spec in task["check_specs"]]
        self.counted_usage = attempts.read_usage(row)  # usage that was counted while the agent ran

    @classmethod
    async def load(cls, parts: Parts, attempt_id: str) -> "ActiveAttempt":
        """Read an attempt with its task. Raises ClaimLost if another performer has it."""
        (row, task), process_rows = await parts.db.glance(
            lambda connection: (
                load_claim(connection, attempt_id, parts.performer),
                processes.load_by_name(connection, attempt_id),
            )
        )
        try:
            settings = parts.work_settings(task["directory"])
        except (InvalidInput, NotTrusted):
            # A configuration that was broken or changed meanwhile must not end the watch over a
            # running agent.
            if not is_started(parts.process_directory(attempt_id)):
                raise
            settings = Settings()
        return cls(parts, dict(row), dict(task), settings, process_rows)

    def agent(self) -> AgentAdapter:
        """Return a fresh adapter; adapters keep counters. Raises if the agent is not configured."""
        interactive = self.task["interactive"]
        return get_agent(self.agent_name, self.settings, interactive=interactive)

    @property
    def shares_files(self) -> bool:
        """Return whether others may work on the same files."""
        return not self.is_worktree or self.task["workspace_owner"] is not None

    @property
    def directory(self) -> Path:
        """The working directory of its processes."""
        directory = Path(self.task["directory"])
        if self.is_worktree and self.task["workspace_branch"]:
            return working_directory(self.workspace, directory)
        return directory

    @property
    def is_read_only(self) -> bool:
        return bool(self.task["read_only"])

    @property
    def workspace(self) -> Workspace:
        return read_workspace(self.task)

    @property
    def place(self) -> ProcessLocation:
        """Where checks and other commands run."""
        worktree = None
        if self.is_worktree and self.task["workspace_branch"]:
            worktree = Path(self.workspace.path)
        around = (Path(self.task["directory"]), worktree, self.settings.workspace)
        origin = Origin.of(self.shell, *around)
        return ProcessLocation(self.parts, self.settings, self.id, self.directory, self.env, origin)

    @property
    def agent_place(self) -> ProcessLocation:
        """Where the agent runs: at `place`, or for a read-only task in a copy of it."""
        place = self.place
        if not self.is_read_only or place.origin.worktree is None:
            return place
        return place.in_copy(self.parts.workspaces.copy_path(self.owner))

    @property
    def owner(self) -> str:
        """The owner of its worktree: the task itself, or its run."""
        return self.task["workspace_owner"] or self.task_id

    @property
    def is_shared(self) -> bool:
        return self.owner != self.task_id

    @property
    def is_worktree(self) -> bool:
        return bool(self.task["workspace_kind"] == WorkspaceKind.WORKTREE)

    @property
    def is_started(self) -> bool:
        """Return whether the agent was started, by this daemon or an earlier one."""
        return is_started(self.process_dir)

    @property
    def timeout_s(self) -> float | None:
        limit: float | None = self.task["timeout_s"]
        return limit or self.settings.tasks.timeout_s

    @property
    def asks_for_changes(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.checks)

    @property
    def env(self) -> dict[str, str]:
        """The variables of the task, and those that identify the task to a process."""
        marks = {
            "KAPELLE_TASK_ID": self.task_id,
            "KAPELLE_ATTEMPT_ID": self.id,
            "KAPELLE_ATTEMPT_NUMBER": str(self.number),
        }
        if self.task["run_id"]:
            marks["KAPELLE_RUN_ID"] = self.task["run_id"]
        return self.task_env | marks

    async def write(
        self, change: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Write in one transaction. Raises ClaimLost if another performer has the attempt."""

        def change_if_claimed(connection: Connection) -> T:
            require_claim(connection, self.id, self.parts.performer)
            return change(connection, *args, **kwargs)

        return await self.parts.db.write(change_if_claimed)

    async def update(self, **values: Any) -> None:
        """Update the row of the attempt. Raises ClaimLost."""
        await self.write(attempts.update, self.id, **values)
        self.row |= values

    async def update_task(self, **values: Any) -> None:
        """Update the row of the task. Raises ClaimLost."""
        await self.write(tasks.update, self.task_id, **values)
        self.task |= values

    async def warn(self, what: str, text: str) -> None:
        """Record a warning once, in the row and in the history."""

        def warn(connection: Connection) -> None:
            if attempts.add_warning(connection, self.id, what, text):
                about = {"what": what, "text": text}
                events.append(connection, "attempt.warning", self.task_id, self.id, **about)

        await self.write(warn)

    async def process(self, name: str, announce: processes.Announce | None = None) -> Process:
        """Return a process by name; it is stored before any of its files exist."""
        if name not in self.processes:
            row = await self.write(processes.begin, self.id, name, announce)
            self.processes[name] = self.parts.process(row)
        return self.processes[name]

    async def execute(self, name: str, launch: Launch) -> ProcessEnd:
        """Run a process until its end; a request to stop always reaches it."""
        tell = partial(self.write, events.append, TAMPERED, self.task_id, self.id)
        end = await self.parts.execute(self.id, name, launch, self._stop_request, tell)
        if self.settings.workspace.docker.is_configured:
            await end_left_commands(self.parts)
        return end

    async def execute_command(
        self,
        name: str,
        command: str,
        timeout_s: float,
        place: ProcessLocation | None = None,
        *,
        keeps_changes: bool = False,
    ) -> tuple[Process, ProcessEnd]:
        """Run a shell command beside the agent; return its process and its end."""
        process = await self.process(name)
        label = f"{name} of {self.task_id}"
        place = place or self.place
        launch = await place.command(
            process, command, timeout_s, label, keeps_changes=keeps_changes
        )
        return process, await self.execute(name, launch)

    async def load_continued_task(self) -> Task | None:
        """Return the task that this one continues, unless it was deleted meanwhile."""
        with suppress(NotFound):
            if earlier := self.task["continue_from"]:
                return await self.parts.db.read(tasks.get, earlier)
        return None

    async def is_wanted(self) -> bool:
        """Return whether nobody has asked to stop the attempt."""
        return not await self.stop_requested()

    async def stop_requested(self) -> bool:
        """Return whether somebody has asked to stop the attempt. Raises ClaimLost."""
        return await self.parts.db.glance(self._stop_request) is not None

    def _stop_request(self, connection: Connection) -> str | None:
        stop: str | None = require_claim(connection, self.id, self.parts.performer)["stop"]
        return stop


def require_claim(connection: Connection, attempt_id: str, performer: str) -> Row:
    """Return the claim row. Raises ClaimLost if it has ended or another performer has it."""
    claim = attempts.find_claim(connection, attempt_id)
    if not claim or (claim["status"], claim["performer"]) != (AttemptStatus.RUNNING, performer):
        raise ClaimLost(attempt_id)
    return claim


def load_claim(connection: Connection, attempt_id: str, performer: str) -> tuple[Row, Row]:
    """Return the rows of an attempt and its task. Raises ClaimLost."""
    row = attempts.load_row(connection, attempt_id)
    if row["status"] != AttemptStatus.RUNNING or row["performer"] != performer:
        raise ClaimLost(attempt_id)
    return row, tasks.load_row(connection, row["task_id"])


def is_started(process_dir: Path) -> bool:
    """Return whether a process has claimed the process directory."""
    return (process_dir / "claim").exists()


def agent_of(parts: Parts, task: Task, name: str) -> AgentAdapter | None:
    """Return the adapter of an agent that worked on a task; None if it is not configured."""
    try:
        return get_agent(name, parts.settings(task.directory), interactive=task.interactive)
    except KapelleError:
        return None


async def recall_worktree(parts: Parts, work: Task | Run) -> None:
    """Register the worktree of a task or run, or the one that it shared, if it was removed."""
    if work.workspace.owner is not None:
        work = await parts.db.read(runs.get, work.workspace.owner)
    if work.workspace.branch is not None:
        await parts.workspaces.recall(work.id, Path(work.directory), work.workspace)


async def task_diff(parts: Parts, task_id: str, workspace: WorkspaceView) -> Diff:
    """Return the changes of a task since it began."""
    if workspace.owner is None:
        return await parts.workspaces.diff(task_id)
    if workspace.base_commit is None:
        return Diff(b"", "", [])
    # Others may work there after this task, so compare with its own commit.
    end = workspace.commit or await parts.workspaces.tip(workspace.owner)
    return await parts.workspaces.compare(workspace.owner, workspace.base_commit, end)


_PHASES = {
    AGENT: "the agent is working",
    "setup": "its workspace is being set up",
    "difficulty": "its difficulty is being judged",
    "diagnosis": "the previous attempt is being diagnosed",
}


def describe_phase(parts: Parts, attempt_id: str) -> str:
    """Return what an attempt is doing, by its processes here or else by its files."""
    process_dir = parts.process_directory(attempt_id)
    for check in parts.checking.get(attempt_id, ()):
        return check.words(datetime.now(UTC))
    for name in parts.live.get(attempt_id, {}).values():
        if name in _PHASES:
            return _PHASES[name]
    if (process_dir / "exit.json").exists():
        return "its work is being verified"
    if is_started(process_dir):
        return _PHASES[AGENT]
    return "its workspace is being prepared"
