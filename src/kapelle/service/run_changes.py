"""Use cases of a run's work: what it changed, merging it, and putting it away."""

from contextlib import suppress
from datetime import UTC, datetime

from kapelle.domain.errors import Conflict, KapelleError
from kapelle.domain.run import Run
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.states import RUN_FINAL
from kapelle.domain.views import DiffView, MergeView
from kapelle.engine.parts import Stage
from kapelle.service.changes import shown
from kapelle.service.merging import merge, require_branch, require_verified
from kapelle.service.tasks import Tasks
from kapelle.store import events, runs
from kapelle.store.database import Connection
from kapelle.workspaces import Diff


class RunChanges:
    def __init__(self, stage: Stage, tasks: Tasks) -> None:
        self._stage = stage
        self._tasks = tasks

    async def diff(self, text: str) -> DiffView:
        """What a run changed since it began, as far as it was brought together."""
        return await shown(await self._diff(text))

    async def patch(self, text: str) -> bytes:
        return (await self._diff(text)).patch

    async def _diff(self, text: str) -> Diff:
        run = await self._stage.db.read(runs.get, text)
        if run.workspace.kind is not WorkspaceKind.WORKTREE:
            raise Conflict(
                f"{run.id} works in place, so its changes cannot be told from others'.",
                hint=f"`git -C {run.directory} diff` shows what is uncommitted there.",
            )
        if run.workspace.branch is None:
            return Diff(b"", "", [])
        return await self._stage.workspaces.diff(run.workspace.owner or run.id)

    async def merge(self, text: str, into: str | None, force: bool) -> MergeView:
        """Merge a completed run's branch; nothing is called merged unless git says so."""
        run = await self._stage.db.read(runs.get, text)
        require_branch(run)
        if run.status not in RUN_FINAL:
            raise Conflict(f"{run.id} has not ended.", hint=f"kapelle wait {run.id}")
        if not force:
            require_verified(run)
        return await merge(self._stage, run, into, force)

    async def archive(self, text: str) -> Run:
        """Put an ended run away with its tasks: worktrees are removed, the work is kept."""
        run = await self._stage.db.write(_archive, text)
        for task_id in await self._stage.db.read(runs.ended_tasks, run.id):
            with suppress(Conflict):  # somebody has taken it up again
                await self._tasks.archive(task_id)
        for child in (await self._stage.db.read(runs.family, run.id))[1:]:
            if (await self._stage.db.read(runs.row, child))["parent_id"] == run.id:
                await self.archive(child)
        try:
            if run.workspace.branch and run.workspace.owner is None:
                await self._stage.workspaces.remove(run.id)
        except KapelleError:
            await self._stage.db.write(runs.update, run.id, archived_at=None)
            raise
        (self._stage.home.secrets / f"{run.id}.json").unlink(missing_ok=True)
        return await self._stage.db.read(runs.get, run.id)


def _archive(connection: Connection, text: str) -> Run:
    run = runs.get(connection, text)
    if run.status not in RUN_FINAL:
        raise Conflict(
            f"{run.id} is {run.status}; only an ended run can be archived.",
            hint=f"kapelle cancel {run.id} ends it.",
        )
    still_going = runs.open_tasks(connection, runs.family(connection, run.id))
    if still_going:
        task_id = still_going[0]["id"]
        raise Conflict(
            f"{task_id} of {run.id} has not ended.", hint=f"kapelle cancel {task_id} ends it."
        )
    if run.archived_at is None:
        runs.update(connection, run.id, archived_at=datetime.now(UTC))
        events.append(connection, "run.archived", run_id=run.id, title=run.title)
    return runs.get(connection, run.id)
