"""The worktrees of one run: its own, and one for each task that wants one."""

import logging
from contextlib import suppress
from pathlib import Path

from kapelle.domain.errors import KapelleError
from kapelle.domain.task import CheckResult, Workspace
from kapelle.engine.runs.git import changes_of, difference, merge_verified
from kapelle.patterns.results import Merged, TaskResult
from kapelle.workspaces import Diff, Workspaces, working_directory

_log = logging.getLogger("kapelle.library")
_SHOWN = 20_000


class Worktrees:
    """Made, committed, merged and put away for one run in one repository."""

    def __init__(
        self, workspaces: Workspaces, run_id: str, directory: Path, run: Workspace
    ) -> None:
        self._workspaces = workspaces
        self._run_id = run_id
        self._directory = directory
        self._run = run
        self._made: list[str] = []
        self._reverts = 0

    @classmethod
    async def begin(
        cls, workspaces: Workspaces, run_id: str, directory: Path, base: str | None
    ) -> "Worktrees":
        """Make the run's own worktree."""
        try:
            run = await workspaces.create(run_id, directory, base)
        except BaseException:
            with suppress(KapelleError, OSError):
                await workspaces.discard(run_id, empty_branch=True)
            raise
        return cls(workspaces, run_id, directory, run)

    @property
    def branch(self) -> str:
        return self._run.branch or ""

    @property
    def base_commit(self) -> str | None:
        return self._run.base_commit

    @property
    def path(self) -> Path:
        return Path(self._run.path)

    @property
    def directory(self) -> Path:
        """Where the run itself works."""
        return working_directory(self._run, self._directory)

    async def make(self, task_id: str, base: str | None) -> tuple[Workspace, Path]:
        """A worktree for one task, from a branch or from where the run's is now."""
        self._made.append(task_id)
        workspace = await self._workspaces.create(task_id, self._directory, base or self.branch)
        return workspace, working_directory(workspace, self._directory)

    async def commit(self, owner: str, message: str) -> str | None:
        return await self._workspaces.commit(owner, f"{message}\n\nRun: {self._run_id}")

    async def checkpoint(self, message: str) -> str:
        """Commit the run's worktree; the commit that its branch then holds."""
        await self.commit(self._run_id, message)
        return await self.tip()

    async def tip(self) -> str:
        return await self._workspaces.tip(self._run_id)

    async def revert(self, commit: str) -> None:
        self._reverts += 1
        await self._workspaces.restore(self._run_id, commit, f"revert-{self._reverts}")

    async def changed(self, owner: str, base: str | None, commit: str | None) -> CheckResult:
        """The check that something was changed since a commit."""
        diff: Diff | None = None
        if base is not None and commit is not None and commit != base:
            diff = await self._workspaces.compare(owner, base, commit)
        good = diff is not None and bool(diff.files)
        output = diff.stat[-_SHOWN:] if diff is not None and good else "The agent changed nothing."
        return CheckResult(name="diff_not_empty", passed=good, output=output, duration_s=0)

    async def merge(self, task: TaskResult, title: str) -> Merged:
        """Merge what a task committed, and nothing else, into the run's branch."""
        if not task.changed:
            return Merged(commit=None, problem="it changed nothing")
        message = f"Merge {title}\n\nTask: {task.id}\nRun: {self._run_id}"
        merged = await merge_verified(
            self._workspaces, task.id, self.branch, message, task.commit or ""
        )
        if merged.ok:
            await self.put_away(task.id)
        return merged

    async def conflicted(self, task_id: str, paths: list[str]) -> list[str]:
        return await self._workspaces.conflicted(task_id, paths)

    async def take_in(self, task_id: str) -> list[str]:
        message = f"Take in {self.branch}\n\nTask: {task_id}\nRun: {self._run_id}"
        return await self._workspaces.take_in(task_id, self.branch, message)

    async def changes(self, owner: str | None, *, patch: bool) -> str:
        """Log and summary of what the run or a task changed."""
        return await changes_of(self._workspaces, owner or self._run_id, patch=patch)

    async def compare(self, one: TaskResult, other: TaskResult) -> str:
        return await difference(self._workspaces, one, other)

    async def put_away(self, task_id: str) -> None:
        """Remove a task's worktree; what it holds beyond its branch goes to the archive."""
        try:
            await self._workspaces.remove(task_id)
        except (KapelleError, OSError) as error:
            _log.warning("The worktree of %s stays: %s", task_id, error)

    async def finish(self) -> str | None:
        """Put away what tasks left; the run's own worktree stays if its branch holds anything.

        Returns the commit of that branch, None when nothing came of the run.
        """
        for task_id in self._made:
            try:
                await self._workspaces.discard(task_id, empty_branch=True)
            except (KapelleError, OSError) as error:
                _log.warning("The worktree of %s stays: %s", task_id, error)
        tip = await self.tip()
        if tip != self._run.base_commit:
            return tip
        await self._workspaces.discard(self._run_id, empty_branch=True)
        return None
