"""One attempt's work, put together from the rows that describe it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import CheckKind, CheckSpec, WorkspaceKind
from kapelle.domain.states import AttemptStatus
from kapelle.engine.parts import Stage
from kapelle.settings import Settings
from kapelle.store import attempts, tasks
from kapelle.store.database import Connection
from kapelle.store.query import workspace_of
from kapelle.workspaces import working_directory


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


async def is_running(stage: Stage, attempt_id: str) -> bool:
    attempt = await stage.db.glance(attempts.row, attempt_id)
    return bool(attempt["status"] == AttemptStatus.RUNNING)


async def load_work(stage: Stage, attempt_id: str) -> Work:
    attempt, task = await stage.db.glance(_rows, attempt_id)
    directory = Path(task["directory"])
    if task["workspace_kind"] == WorkspaceKind.WORKTREE and task["workspace_branch"]:
        directory = working_directory(workspace_of(task), directory)
    process_dir = stage.process_directory(attempt_id)
    try:
        settings = stage.settings(task["directory"])
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
        task_env=stage.task_env(task["id"]),
        checks=[CheckSpec.model_validate(spec) for spec in task["check_specs"]],
    )


def _rows(connection: Connection, attempt_id: str) -> tuple[Any, Any]:
    attempt = attempts.row(connection, attempt_id)
    return attempt, tasks.row(connection, attempt["task_id"])
