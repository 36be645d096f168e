"""The steps of a context that are made with git, in the daemon as in the library."""

import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kapelle.domain.errors import InvalidInput, KapelleError, MergeConflict, Unavailable
from kapelle.patterns.context import Context
from kapelle.patterns.results import Combined, Merged, RunResult, TaskResult
from kapelle.patterns.spec import PatternSpec
from kapelle.workspaces import Workspaces

T = TypeVar("T")

_log = logging.getLogger("kapelle.runs")
_SUMMARY = 4_000
_PATCH = 30_000


class GitContext(Context):
    """A run in a worktree, its owner's, or in a directory without git, where these do nothing.

    What a step is, such as a row that outlives a crash, is up to the class that extends this.
    """

    def __init__(
        self, run_id: str, spec: PatternSpec, workspaces: Workspaces, owner: str, *, is_git: bool
    ) -> None:
        self.run_id = run_id
        self.spec = spec
        self._workspaces = workspaces
        self._owner = owner
        self._is_git = is_git

    @property
    def is_git(self) -> bool:
        return self._is_git

    @abstractmethod
    async def _branch(self) -> str:
        """The branch that the run's worktree is on."""

    @abstractmethod
    async def _git_step(
        self, kind: str, label: str, perform: Callable[[], Awaitable[T]], *, again: bool = True
    ) -> T:
        """Make a step; again says that nothing is lost if a crash has it made twice."""

    async def put_away(self, task: TaskResult) -> None:
        await self._git_step("put_away", task.id, lambda: self._put_away(task.id))

    async def _put_away(self, owner: str) -> None:
        """Remove a worktree that has served its purpose; its content is archived first."""
        if self._is_git:
            try:
                await self._workspaces.remove(owner, empty_branch=True)
            except KapelleError as error:
                _log.warning("the worktree of %s stays: %s", owner, error.message)

    async def take_in(self, task: TaskResult) -> list[str]:
        return await self._git_step("take_in", task.id, lambda: self._take_in(task), again=False)

    async def _take_in(self, task: TaskResult) -> list[str]:
        branch = await self._branch()
        message = f"Take in {branch}\n\nTask: {task.id}\nRun: {self.run_id}"
        # What others did, Kapelle's own commits among it, is not told to be the task's.
        return await self._workspaces.take_in(task.id, branch, message, as_base=True)

    async def combine(self, task: TaskResult) -> Combined:
        async def perform() -> dict[str, Any]:
            conflicts = await self._take_in(task)
            return {"commit": await self._workspaces.tip(task.id), "conflicts": conflicts}

        combination = await self._git_step("combine", task.id, perform, again=False)
        return Combined.model_validate(combination)

    async def read_file(self, path: str, task: TaskResult | None = None) -> str | None:
        place = (task.id if task else self._owner, Path(self.spec.directory), path)
        return await self._git_step("read", path, partial(self._workspaces.read_file, *place))

    async def write_file(self, path: str, text: str) -> None:
        place = (self._owner, Path(self.spec.directory), path)
        write = partial(self._workspaces.write_file, *place, text)
        await self._git_step("write", path, write)

    async def name_branch(self, name: str, task: TaskResult, before: str | None = None) -> bool:
        async def perform() -> bool:
            new = task.commit or await self._workspaces.tip(task.id)
            return await self._workspaces.name_branch(task.id, name, new, before)

        return await self._git_step("branch", name, perform)

    async def conflicted(self, task: TaskResult, paths: list[str]) -> list[str]:
        look = partial(self._workspaces.find_conflicted, task.id, paths)
        return await self._git_step("conflicted", task.id, look)

    async def changes(self, task: TaskResult | None = None, *, patch: bool = False) -> str:
        async def perform() -> str:
            if not self._is_git:
                return ""
            owner = task.id if task else self._owner
            commits = await self._workspaces.log(owner)
            diff = await self._workspaces.diff(owner)
            lines = [f"{commit.id[:10]} {commit.subject}" for commit in commits]
            summary = "\n".join([*lines, "", diff.stat])[-_SUMMARY:].strip()
            if patch:
                text = diff.patch[:_PATCH].decode("utf-8", "replace")
            else:
                text = ""
            return f"{summary}\n\n{text}".strip()

        return await self._git_step("changes", task.id if task else "changes", perform)

    async def astray(self) -> str | None:
        async def perform() -> str | None:
            if self._is_git:
                return await self._workspaces.astray(self._owner)
            return None

        return await self._git_step("astray", "branch", perform)

    async def compare(self, one: TaskResult, other: TaskResult) -> str:
        async def perform() -> str:
            if not self._is_git or not one.commit or not other.commit:
                return ""
            diff = await self._workspaces.compare(one.id, one.commit, other.commit)
            return diff.stat[-_SUMMARY:]

        return await self._git_step("compare", f"{one.id} {other.id}", perform)

    async def _merge(self, work: TaskResult | RunResult) -> Merged:
        """Merge a branch if it holds exactly what was verified, and remove its worktree.

        Whatever keeps it from that is said in the result.
        """
        if not self._is_git or not work.changed or work.commit is None:
            return Merged(commit=None, problem="it changed nothing")
        if not await is_here(self._workspaces, self.spec, work.directory):
            return Merged(commit=None, problem="it is in another repository", elsewhere=True)
        message = f"Merge {work.title}\n\nFrom: {work.id}\nRun: {self.run_id}"
        try:
            merged = await self._workspaces.merge(
                work.id, await self._branch(), message, expected_tip=work.commit
            )
        except MergeConflict as error:
            return Merged(commit=None, problem=error.message, conflict=True)
        except Unavailable:
            raise
        except KapelleError as error:
            return Merged(commit=None, problem=error.message)
        await self._put_away(work.id)
        return Merged(commit=merged.commit)


async def is_here(workspaces: Workspaces, spec: PatternSpec, directory: str) -> bool:
    """Return whether a directory is in the repository of a run."""
    own = await workspaces.locate(Path(spec.directory))
    other = await workspaces.locate(Path(directory))
    return own is not None and other is not None and own.common_dir == other.common_dir


def foreign(directory: str | None) -> InvalidInput:
    """Return the error for a task outside the repository of its run."""
    return InvalidInput(
        f"{directory} is not in the repository of the run, whose workspace it shares.",
        hint="Give each step a workspace of its own: --workspaces each.",
    )
