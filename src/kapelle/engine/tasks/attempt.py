"""An attempt that this daemon performs: its rows, its place on the disk, and how it ended.

It is loaded once and handed through the phases of its executor, which write by it alone: a
performer that has lost the attempt to another one writes nothing any more.
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
from kapelle.domain.ids import attempt_token
from kapelle.domain.run import Run
from kapelle.domain.specs import CheckKind, CheckSpec, WorkspaceKind
from kapelle.domain.states import AttemptStatus
from kapelle.domain.task import Task, Workspace, WorkspaceView
from kapelle.engine.container import end_left_commands
from kapelle.engine.environment import Origin, search_path_of
from kapelle.engine.launch import ProcessLocation
from kapelle.engine.parts import TAMPERED, Parts
from kapelle.runner.process_dir import Launch, Process, ProcessEnd
from kapelle.settings import Settings
from kapelle.store import attempts, events, processes, runs, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row, workspace_of
from kapelle.workspaces import Diff, working_directory

P = ParamSpec("P")
T = TypeVar("T")


class ClaimLost(Exception):
    """The attempt has ended, or another performer has it: this one has nothing to do with it."""


AGENT = "agent"
CHECKS = "checks/"


class ActiveAttempt:
    """One attempt; row and task are what is stored, with what this performer has written since."""

    def __init__(
        self, parts: Parts, row: dict[str, Any], task: dict[str, Any], settings: Settings,
        begun: Mapping[str, Row],
    ) -> None:  # fmt: skip
        self.parts = parts
        self.row = row
        self.task = task
        self.id: str = row["id"]
        self.token = attempt_token(parts.secret, self.id)  # by which its agent calls the daemon
        self.task_id: str = task["id"]
        self.number: int = row["number"]
        self.mode: str = row["mode"]
        self.message: str | None = row["message"]
        self.agent_name: str = row["agent"]
        self.process_dir = parts.process_directory(self.id)
        self.processes = {name: parts.process(found) for name, found in begun.items()}
        self.processes[AGENT] = Process(self.process_dir, bytes.fromhex(row["secret"]))
        if task["env"]:
            self.task_env = parts.secrets.env(self.task_id)
        else:
            self.task_env = {}
        self.shell = parts.secrets.shell(task["shell"])
        self.settings = settings.on_path(search_path_of(self.shell))
        self.files = parts.home.files / self.id
        self.serving: asyncio.Future[ProcessEnd] | None = None
        self.checks = [CheckSpec.model_validate(spec) for spec in task["check_specs"]]
        self.counted = attempts.usage_of(row)  # while its agent ran, by whoever watched it

    @classmethod
    async def load(cls, parts: Parts, attempt_id: str) -> "ActiveAttempt":
        """Read it with its task; ClaimLost if it is not this performer's any more."""
        (row, task), begun = await parts.db.glance(
            lambda connection: (
                claimed(connection, attempt_id, parts.performer),
                processes.of_owner(connection, attempt_id),
            )
        )
        try:
            settings = parts.work_settings(task["directory"])
        except (InvalidInput, NotTrusted):
            # A configuration that was broken meanwhile, or has changed, must not cost a running
            # agent its watch.
            if not is_started(parts.process_directory(attempt_id)):
                raise
            settings = Settings()
        return cls(parts, dict(row), dict(task), settings, begun)

    def agent(self) -> AgentAdapter:
        """Its adapter, a new one each time, for some count what they read; raises if unknown."""
        interactive = self.task["interactive"]
        return get_agent(self.agent_name, self.settings, interactive=interactive)

    @property
    def shares_files(self) -> bool:
        """Whether others may work on the same files: it has no worktree of its own."""
        return not self.is_worktree or self.task["workspace_owner"] is not None

    @property
    def directory(self) -> Path:
        """Where its processes work."""
        directory = Path(self.task["directory"])
        if self.is_worktree and self.task["workspace_branch"]:
            return working_directory(self.workspace, directory)
        return directory

    @property
    def is_read_only(self) -> bool:
        return bool(self.task["read_only"])

    @property
    def workspace(self) -> Workspace:
        return workspace_of(self.task)

    @property
    def place(self) -> ProcessLocation:
        """Where its checks and other commands are executed."""
        in_worktree = self.is_worktree and self.task["workspace_branch"]
        if in_worktree:
            worktree = Path(self.workspace.path)
        else:
            worktree = None
        around = (Path(self.task["directory"]), worktree, self.settings.workspace)
        origin = Origin.of(self.shell, *around)
        return ProcessLocation(self.parts, self.settings, self.id, self.directory, self.env, origin)

    @property
    def agent_place(self) -> ProcessLocation:
        """Where its agent works: there, or in a throwaway copy of it if it only reports."""
        place = self.place
        if not self.is_read_only or place.origin.worktree is None:
            return place
        return place.in_copy(self.parts.workspaces.copy_of(self.owner))

    @property
    def owner(self) -> str:
        """Whose worktree it works in: its own, or its run's."""
        return self.task["workspace_owner"] or self.task_id

    @property
    def is_shared(self) -> bool:
        return self.owner != self.task_id

    @property
    def is_worktree(self) -> bool:
        return bool(self.task["workspace_kind"] == WorkspaceKind.WORKTREE)

    @property
    def is_started(self) -> bool:
        """Whether the agent was started, in this daemon's life or before."""
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
        """The variables of the task, and those by which a process can tell what it works on."""
        marks = {
            "KAPELLE_TASK_ID": self.task_id,
            "KAPELLE_ATTEMPT_ID": self.id,
            "KAPELLE_ATTEMPT_NUMBER": str(self.number),
        }
        if self.task["run_id"]:
            run = {"KAPELLE_RUN_ID": self.task["run_id"]}
        else:
            run = {}
        return self.task_env | marks | run

    async def write(
        self, change: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Make a change in one transaction; ClaimLost if it is not this performer's any more."""

        def guarded(connection: Connection) -> T:
            require_claim(connection, self.id, self.parts.performer)
            return change(connection, *args, **kwargs)

        return await self.parts.db.write(guarded)

    async def update(self, **values: Any) -> None:
        await self.write(attempts.update, self.id, **values)
        self.row |= values

    async def update_task(self, **values: Any) -> None:
        await self.write(tasks.update, self.task_id, **values)
        self.task |= values

    async def warn(self, what: str, text: str) -> None:
        """Record a warning once, where it can be seen."""

        def warn(connection: Connection) -> None:
            if attempts.warn(connection, self.id, what, text):
                about = {"what": what, "text": text}
                events.append(connection, "attempt.warning", self.task_id, self.id, **about)

        await self.write(warn)

    async def process(self, name: str, announce: processes.Announce | None = None) -> Process:
        """One of its processes; that it is begun is stored before anything of it is there."""
        if name not in self.processes:
            row = await self.write(processes.begin, self.id, name, announce)
            self.processes[name] = self.parts.process(row)
        return self.processes[name]

    async def execute(self, name: str, launch: Launch) -> ProcessEnd:
        """Run one of its processes; a request to stop, whenever it came, reaches it."""
        tell = partial(self.write, events.append, TAMPERED, self.task_id, self.id)
        ended = await self.parts.execute(self.id, name, launch, self._stop_request, tell)
        if self.settings.workspace.docker.wanted:
            await end_left_commands(self.parts)
        return ended

    async def execute_command(
        self, name: str, command: str, timeout_s: float, place: ProcessLocation | None = None
    ) -> tuple[Process, ProcessEnd]:
        """Run a shell command beside the agent; its process, and how it ended."""
        process = await self.process(name)
        label = f"{name} of {self.task_id}"
        launch = await (place or self.place).command(process, command, timeout_s, label)
        return process, await self.execute(name, launch)

    async def continued(self) -> Task | None:
        """The task that this one goes on from, unless it was forgotten meanwhile."""
        with suppress(NotFound):
            if earlier := self.task["continue_from"]:
                return await self.parts.db.read(tasks.get, earlier)
        return None

    async def is_wanted(self) -> bool:
        """Whether nobody has asked to stop it."""
        return not await self.stop_requested()

    async def stop_requested(self) -> bool:
        return await self.parts.db.glance(self._stop_request) is not None

    def _stop_request(self, connection: Connection) -> str | None:
        stop: str | None = require_claim(connection, self.id, self.parts.performer)["stop"]
        return stop


def require_claim(connection: Connection, attempt_id: str, performer: str) -> Row:
    """What is stored of it now; ClaimLost if it has ended or is another performer's."""
    found = attempts.claim(connection, attempt_id)
    if not found or (found["status"], found["performer"]) != (AttemptStatus.RUNNING, performer):
        raise ClaimLost(attempt_id)
    return found


def claimed(connection: Connection, attempt_id: str, performer: str) -> tuple[Row, Row]:
    """The rows of an attempt and its task; ClaimLost if it is not this performer's any more."""
    row = attempts.row(connection, attempt_id)
    if row["status"] != AttemptStatus.RUNNING or row["performer"] != performer:
        raise ClaimLost(attempt_id)
    return row, tasks.row(connection, row["task_id"])


def is_started(process_dir: Path) -> bool:
    return (process_dir / "claim").exists()


def agent_of(parts: Parts, task: Task, name: str) -> AgentAdapter | None:
    """The adapter of an agent that worked on a task; None if it is not configured any more."""
    try:
        return get_agent(name, parts.settings(task.directory), interactive=task.interactive)
    except KapelleError:
        return None


async def recall(parts: Parts, work: Task | Run) -> None:
    """Know the worktree of a task or run again, or the one that it shared, if it was put away."""
    if work.workspace.owner is not None:
        work = await parts.db.read(runs.get, work.workspace.owner)
    if work.workspace.branch is not None:
        await parts.workspaces.recall(work.id, Path(work.directory), work.workspace)


async def task_diff(parts: Parts, task_id: str, workspace: WorkspaceView) -> Diff:
    """From where the task began to what it left."""
    if workspace.owner is None:
        return await parts.workspaces.diff(task_id)
    if workspace.base_commit is None:
        return Diff(b"", "", [])
    # Others work there after it, so what it left is what it committed.
    left = workspace.commit or await parts.workspaces.tip(workspace.owner)
    return await parts.workspaces.compare(workspace.owner, workspace.base_commit, left)


_PHASES = {
    AGENT: "the agent is working",
    "setup": "its workspace is being set up",
    "difficulty": "its difficulty is being judged",
    "diagnosis": "the attempt before is being diagnosed",
}


def phase(parts: Parts, attempt_id: str) -> str:
    """What an attempt is at: by the processes that it has here, else by what is on the disk."""
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
