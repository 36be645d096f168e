"""Use cases of the work itself: what a task changed, and merging it."""

import asyncio

from kapelle.domain.errors import Conflict
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.states import TaskStatus
from kapelle.domain.views import DiffView, MergeView
from kapelle.engine.parts import Stage
from kapelle.engine.task_diff import task_diff
from kapelle.service.merging import merge, require_branch, require_verified
from kapelle.store import tasks
from kapelle.workspaces import Diff


class Changes:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def diff(self, text: str, against: str | None = None) -> DiffView:
        """What a task changed since it began, uncommitted work included; or how its work differs
        from another task's."""
        diff = await (self._diff(text) if against is None else self._between(against, text))
        return await shown(diff)

    async def patch(self, text: str) -> bytes:
        """The same as bytes, which `git apply` takes whatever the encoding of the files."""
        return (await self._diff(text)).patch

    async def _between(self, one: str, other: str) -> Diff:
        tasks_ = [await self._stage.db.read(tasks.get, text) for text in (one, other)]
        commits = [task.workspace.commit for task in tasks_]
        for task, commit in zip(tasks_, commits, strict=True):
            if commit is None:
                raise Conflict(f"{task.id} left no commit that could be compared.")
        owner = tasks_[0].workspace.owner or tasks_[0].id
        return await self._stage.workspaces.compare(owner, str(commits[0]), str(commits[1]))

    async def _diff(self, text: str) -> Diff:
        task = await self._stage.db.read(tasks.get, text)
        if task.workspace.kind is not WorkspaceKind.WORKTREE:
            raise Conflict(
                f"{task.id} works in place, so its changes cannot be told from others'.",
                hint=f"`git -C {task.directory} diff` shows what is uncommitted there.",
            )
        if task.workspace.branch is None:
            return Diff(b"", "", [])
        return await task_diff(self._stage, task.id, task.workspace)

    async def merge(self, text: str, into: str | None, force: bool) -> MergeView:
        """Merge a completed task's branch; nothing is called merged unless git says so."""
        task = await self._stage.db.read(tasks.get, text)
        require_branch(task)
        if task.status is TaskStatus.RUNNING:
            raise Conflict(f"{task.id} is still running.", hint=f"kapelle wait {task.id}")
        if not force:
            require_verified(task)
        return await merge(self._stage, task, into, force)


async def shown(diff: Diff) -> DiffView:
    """A diff as text."""
    patch = await asyncio.to_thread(diff.patch.decode, "utf-8", "replace")
    return DiffView(patch=patch, stat=diff.stat, files=diff.files, truncated=diff.truncated)
