"""Everything Kapelle does with git, behind one door."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from kapelle.domain.errors import Conflict
from kapelle.domain.task import Workspace
from kapelle.workspaces import repository
from kapelle.workspaces.commit import archive_worktree, commit_worktree
from kapelle.workspaces.diff import (
    Diff,
    diff_since_snapshot,
    diff_worktree,
    take_snapshot,
    worktree_changed,
)
from kapelle.workspaces.discovery import find_checkout
from kapelle.workspaces.git import Git
from kapelle.workspaces.locks import Locks
from kapelle.workspaces.marker import Marker, Markers
from kapelle.workspaces.merge import Merge, Merger
from kapelle.workspaces.names import plain_name
from kapelle.workspaces.recovery import finish_merges
from kapelle.workspaces.removal import remove_worktree, reset_worktree
from kapelle.workspaces.repository import Repository
from kapelle.workspaces.skeleton import Skeletons
from kapelle.workspaces.worktree import Order, base_of, clear_half_made, create_worktree

_SNAPSHOT_AGE_DAYS = 30


class Workspaces:
    """Worktrees of tasks under one home, and snapshots of directories worked on in place."""

    def __init__(
        self, home: Path, author_name: str, author_email: str, *, executable: str = "git"
    ) -> None:
        home = home.absolute()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Resolved, because git writes resolved paths and they are compared.
        self._home = home.resolve()
        empty_home = self._home / "git" / "empty"
        empty_home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._git = Git(executable, empty_home, author_name, author_email)
        self._skeletons = Skeletons(self._git, self._home)
        self._markers = Markers(self._home / "worktrees")
        self._locks = Locks(self._home / "locks")

    async def locate(self, directory: Path) -> Repository | None:
        return await repository.locate(self._git, directory)

    async def create(
        self,
        task_id: str,
        directory: Path,
        base: str | None,
        copy: Sequence[str] = (),
        link: Sequence[str] = (),
    ) -> Workspace:
        """A worktree on the branch kapelle/<task_id>; called again, it returns the same one."""
        async with self._locks.hold("task", plain_name(task_id)):
            order = Order(task_id, directory, base, copy, link)
            return await create_worktree(self._git, self._skeletons, self._markers, order)

    async def commit(self, task_id: str, message: str) -> str | None:
        """Commit everything onto the task's branch; None when there is nothing but the base."""
        async with self._exclusive(task_id) as marker:
            if marker.removed:
                raise Conflict(f"The worktree of {task_id} was removed.", hint="Create it again.")
            return await commit_worktree(self._git, self._skeletons, marker, message)

    async def diff(self, task_id: str) -> Diff:
        return await diff_worktree(self._git, self._skeletons, self._markers.require(task_id))

    async def changed(self, task_id: str) -> bool:
        return await worktree_changed(self._git, self._skeletons, self._markers.require(task_id))

    async def snapshot(self, directory: Path) -> str:
        return await take_snapshot(self._git, self._skeletons, directory)

    async def diff_since(self, directory: Path, tree: str) -> Diff:
        return await diff_since_snapshot(self._git, self._skeletons, directory, tree)

    async def archive(self, task_id: str, name: str) -> str | None:
        """Keep the content under refs/kapelle/archive/<task_id>/<name>; None if it is the base."""
        plain_name(name)
        async with self._exclusive(task_id) as marker:
            if not marker.removed:
                marker.require_present()
            archived = await archive_worktree(self._git, self._skeletons, marker, name)
            return None if archived is None else archived[1]

    async def reset(self, task_id: str, name: str, base: str | None = None) -> Workspace:
        """Archive, then go back to the base commit, or to the present commit of another base."""
        plain_name(name)
        async with self._exclusive(task_id) as marker:
            tools = (self._git, self._skeletons, self._markers)
            return (await reset_worktree(*tools, marker, name, base)).as_workspace()

    async def remove(self, task_id: str) -> None:
        """Archive, verify, remove; the branch and what is needed to show a diff stay."""
        async with self._locks.hold("task", plain_name(task_id)):
            half_made = self._markers.intended(task_id) is not None
            read = self._markers.read if half_made else self._markers.require
            await self._put_away(task_id, read(task_id))

    async def check_base(self, directory: Path, base: str) -> None:
        """Raise InvalidInput when the base is unknown in the repository around the directory."""
        checkout = find_checkout(directory)
        if checkout is not None:
            await base_of(self._git, checkout, base)

    async def merge(
        self, task_id: str, into: str | None, message: str, *, expected: str | None = None
    ) -> Merge:
        """Merge the task's branch into a branch, by default the one it was made from.

        When the branch does not hold the expected commit, nothing is merged.
        """
        marker = self._markers.require(task_id)
        async with self._locks.hold("merge", marker.common_dir):
            return await self._merger(marker).merge(into, message, expected)

    async def finish_merges(self) -> list[str]:
        """Complete or undo merges that a crash cut short; returns the tasks they were of."""
        journals = self._home / "merges"
        return await finish_merges(self._git, self._skeletons, self._locks, journals)

    async def is_merged(self, task_id: str, into: str | None) -> bool:
        return await self._merger(self._markers.require(task_id)).is_merged(into)

    async def traces(self) -> set[str]:
        """Tasks of which anything is known here, be their worktrees ready, half-made or removed."""
        return await asyncio.to_thread(self._markers.traces)

    async def standing(self) -> set[str]:
        """Tasks whose worktree is on the disk, ready or half-made."""
        return await asyncio.to_thread(self._markers.standing)

    async def discard(self, task_id: str) -> None:
        """Archive and remove a worktree, or clear away a half-made one, and forget the task."""
        async with self._locks.hold("task", plain_name(task_id)):
            await self._put_away(task_id, self._markers.read(task_id))
            self._markers.forget(task_id)

    async def _put_away(self, task_id: str, marker: Marker | None) -> None:
        begun_in = self._markers.intended(task_id)
        if marker is not None and not marker.removed:
            await remove_worktree(self._git, self._skeletons, self._markers, marker)
        elif begun_in is not None:
            await clear_half_made(self._markers, task_id, begun_in)
            self._markers.fulfilled(task_id)
        elif os.path.lexists(path := self._markers.worktree(task_id)):
            raise Conflict(f"{path} was not made by Kapelle.", hint="Remove it by hand.")

    async def tidy(self) -> None:
        """Drop old snapshots and what killed processes left behind."""
        await self._skeletons.tidy(_SNAPSHOT_AGE_DAYS)

    def _merger(self, marker: Marker) -> Merger:
        return Merger(self._git, self._skeletons, marker, self._home / "merges")

    @asynccontextmanager
    async def _exclusive(self, task_id: str) -> AsyncIterator[Marker]:
        async with self._locks.hold("task", plain_name(task_id)):
            yield self._markers.require(task_id)


def working_directory(workspace: Workspace, directory: Path) -> Path:
    """The place inside a worktree that corresponds to a directory of its repository."""
    top = Path(workspace.path)
    checkout = find_checkout(directory)
    if checkout is None:
        return top
    inside = top / directory.resolve().relative_to(checkout.toplevel)
    # A tracked symbolic link may lead out, and an untracked directory does not exist there.
    safe = inside.is_dir() and inside.resolve().is_relative_to(top.resolve())
    return inside if safe else top
