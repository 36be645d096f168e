"""What is known of an attempt: its rows, put together, how it ended, and what its work is worth."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kapelle.domain.errors import InvalidInput, KapelleError, LimitReached
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import CheckKind, CheckSpec, WorkspaceKind
from kapelle.domain.states import AttemptStatus
from kapelle.domain.task import Exit, Usage, Workspace
from kapelle.engine.parts import Parts
from kapelle.settings import Settings
from kapelle.store import attempts, tasks
from kapelle.store.database import Connection
from kapelle.store.query import workspace_of
from kapelle.workspaces import Diff, working_directory


@dataclass(frozen=True)
class Work:
    attempt_id: str
    task_id: str
    number: int
    mode: str
    message: str | None
    agent: str
    attempt: Any  # the stored rows
    task: Any
    process_dir: Path
    directory: Path
    settings: Settings
    task_env: dict[str, str]
    checks: list[CheckSpec]

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
    def is_claimed(self) -> bool:
        """Whether the agent was started, in this daemon's life or before."""
        return (self.process_dir / "claim").exists()

    @property
    def timeout_s(self) -> float | None:
        limit: float | None = self.task["timeout_s"]
        return limit or self.settings.tasks.timeout_s

    @property
    def starting_tree(self) -> str | None:
        value: str | None = self.task["starting_tree"]
        return value

    @property
    def asks_for_changes(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.checks)

    @property
    def marks(self) -> dict[str, str]:
        """The variables by which a process can tell what it works on."""
        marks = {
            "KAPELLE_TASK_ID": self.task_id,
            "KAPELLE_ATTEMPT_ID": self.attempt_id,
            "KAPELLE_ATTEMPT_NUMBER": str(self.number),
        }
        return marks | ({"KAPELLE_RUN_ID": self.task["run_id"]} if self.task["run_id"] else {})


async def is_running(parts: Parts, attempt_id: str) -> bool:
    attempt = await parts.db.glance(attempts.row, attempt_id)
    return bool(attempt["status"] == AttemptStatus.RUNNING)


async def load_work(parts: Parts, attempt_id: str) -> Work:
    attempt, task = await parts.db.glance(_rows, attempt_id)
    directory = Path(task["directory"])
    if task["workspace_kind"] == WorkspaceKind.WORKTREE and task["workspace_branch"]:
        directory = working_directory(workspace_of(task), directory)
    process_dir = parts.process_directory(attempt_id)
    try:
        settings = parts.settings(task["directory"])
    except InvalidInput:
        # A configuration that was broken meanwhile must not cost a running agent its supervision.
        if not (process_dir / "claim").exists():
            raise
        settings = Settings()
    return Work(
        attempt_id=attempt_id,
        task_id=task["id"],
        number=attempt["number"],
        mode=attempt["mode"],
        message=attempt["message"],
        agent=attempt["agent"],
        attempt=attempt,
        task=task,
        process_dir=process_dir,
        directory=directory,
        settings=settings,
        task_env=parts.secrets.env(task["id"]),
        checks=[CheckSpec.model_validate(spec) for spec in task["check_specs"]],
    )


def _rows(connection: Connection, attempt_id: str) -> tuple[Any, Any]:
    attempt = attempts.row(connection, attempt_id)
    return attempt, tasks.row(connection, attempt["task_id"])


@dataclass(frozen=True)
class Finish:
    """The end of the agent's process."""

    exit: Exit
    timed_out: bool = False
    detail: str | None = None
    output_bytes: int = 0


@dataclass(frozen=True)
class Findings:
    """What the agent reported, and what the checks found."""

    success: bool
    reason: str | None = None
    result: str | None = None
    claimed: Literal["success", "failure"] | None = None
    question: str | None = None
    failure: Failure | None = None
    session_id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    session_usage: dict[str, float] = field(default_factory=dict)
    can_nudge: bool = False


def never_ran(problem: str) -> Finish:
    return Finish(Exit(kind="not_started"), detail=problem)


def not_possible(error: KapelleError) -> Findings:
    """The findings on an attempt whose agent could not even be started."""
    problem = f"{error.message} {error.hint or ''}".strip()
    limited = isinstance(error, LimitReached)
    kind = FailureClass.LIMIT if limited else FailureClass.ENVIRONMENT
    return Findings(False, problem, failure=Failure(kind, problem))


async def task_diff(parts: Parts, task_id: str, workspace: Workspace) -> Diff:
    """From where the task began to what it left."""
    if workspace.owner is None:
        return await parts.workspaces.diff(task_id)
    if workspace.base_commit is None:
        return Diff(b"", "", [])
    # Others work there after it, so what it left is what it committed.
    left = workspace.commit or await parts.workspaces.tip(workspace.owner)
    return await parts.workspaces.compare(workspace.owner, workspace.base_commit, left)
