"""Everything Kapelle does with git, behind one door."""

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.task import Workspace
from kapelle.domain.views import MergePreview
from kapelle.workspaces import commit as commits
from kapelle.workspaces import diff, lifecycle, merge, repository
from kapelle.workspaces.commit import Commit
from kapelle.workspaces.copy import (
    MAX_BYTES,
    copy_of,
    forget_remotes,
    garble,
    make_copy,
    remove_copy,
    revert,
)
from kapelle.workspaces.diff import Diff
from kapelle.workspaces.files import read_inside, shown_path, write_inside
from kapelle.workspaces.forge import Remote, find_remote
from kapelle.workspaces.git import Git, RefMoved
from kapelle.workspaces.locks import Guard
from kapelle.workspaces.merge import Candidate, Merge, Merger, Style
from kapelle.workspaces.refs import BRANCHES, Refs, branch_ref, plain_name
from kapelle.workspaces.repository import find_checkout, read_work_tree
from kapelle.workspaces.shadow import Shadows
from kapelle.workspaces.worktree import Marker, Markers

_MANY_OBJECTS = 250
_MOST_TEXT = 5_000_000
# How long a branch that others move all the time is tried again, at least.
_PATIENCE_S, _TRIES = 60.0, 20


@dataclass(frozen=True)
class Repository:
    """The git work tree around a directory."""

    toplevel: Path
    common_dir: Path
    head_commit: str | None


class Workspaces:
    """Worktrees under one home, and snapshots of directories worked on in place.

    An owner is the id of a task or a run. What is done to a worktree may be done again after a
    crash at any moment, and leads to the same.
    """

    def __init__(
        self,
        home: Path,
        author_name: str,
        author_email: str,
        *,
        executable: str = "git",
        filters: Sequence[str] = (),
    ) -> None:
        home = home.absolute()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Resolved, because git writes resolved paths and they are compared.
        self._home = home.resolve()
        empty_home = self._home / "git" / "empty"
        empty_home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._git = Git(executable, empty_home, author_name, author_email, filters)
        self._shadows = Shadows(self._git, self._home)
        self._markers = Markers(self._home / "worktrees", self._shadows)
        self._guard = Guard(self._markers, self._home)

    def close(self) -> None:
        """End the threads that wait for git."""
        self._git.close()

    async def locate(self, directory: Path) -> Repository | None:
        """The repository around a directory, or None outside of one."""
        checkout = find_checkout(directory)
        if checkout is None:
            return None
        head_commit = await Refs.at(self._git, checkout).head_commit()
        return Repository(checkout.toplevel, checkout.common_dir, head_commit)

    async def state(self, directory: Path, base: str | None) -> dict[str, str]:
        """The base branch, HEAD, configuration and hooks of the repository around a directory, to
        be compared; empty outside of one."""
        checkout = find_checkout(directory)
        if checkout is None:
            return {}
        refs, branch = Refs.of(self._git, checkout.common_dir), branch_ref(base or "")
        tip = await refs.read(branch) if branch else None
        known = await asyncio.to_thread(repository.digests, checkout)
        return known | ({branch: tip} if branch and tip else {})

    async def changes_of(self, directory: Path, before: dict[str, str]) -> list[str]:
        """What of the state of a repository is not as it was, but for our own merges."""
        branch = next((name for name in before if name.startswith(BRANCHES)), None)
        now, checkout = await self.state(directory, branch), find_checkout(directory)
        found = [name for name in before if now.get(name) != before[name]]
        moved = repository.moved_by_kapelle
        if branch in found and checkout and moved(checkout, branch, before[branch]):
            found.remove(branch)
        return [name.removeprefix(BRANCHES) for name in found]

    async def create(
        self,
        owner: str,
        directory: Path,
        base: str | None,
        copy: Sequence[str] = (),
        link: Sequence[str] = (),
    ) -> Workspace:
        """A worktree on the branch kapelle/<owner>; called again, it returns the same one."""
        async with self._guard.alone(owner):
            await self._guard.try_to_settle(self._markers.read(owner))
            given = (directory, base, copy, link)
            return await lifecycle.create_worktree(self._markers, owner, *given)

    async def create_aside(
        self, name: str, owner: str, commit: str, copy: Sequence[str], link: Sequence[str]
    ) -> Workspace:
        """A worktree of a commit of the owner's repository, without a branch; discard removes it
        and keeps nothing of it."""
        async with self._guard.alone(name):
            marker = self._markers.require(owner)
            return await lifecycle.make_aside(self._markers, name, marker, commit, copy, link)

    async def commit(self, owner: str, message: str) -> str | None:
        """Commit everything onto the owner's branch; None when there is nothing but the base."""
        async with self._guard.standing(owner) as marker:
            return await commits.commit_worktree(marker, message)

    async def tip(self, owner: str) -> str:
        """The commit that the owner's branch holds now, or the base commit without a branch."""
        return await commits.tip_of(self._markers.require(owner))

    async def astray(self, owner: str) -> str | None:
        """What the worktree stands on instead of the owner's branch; None if on that."""
        marker = self._markers.require(owner)
        marker.make_ready()
        head = await marker.own.head_branch()
        return None if head == marker.branch else head or "a commit without a branch"

    async def log(self, owner: str, limit: int | None = 20) -> list[Commit]:
        """What the branch gained since its base, newest first; a branch taken in counts as one."""
        return await commits.log_of(self._markers.require(owner), limit)

    async def diff(self, owner: str, *, as_text: bool = False) -> Diff:
        return await diff.diff_worktree(self._markers.require(owner), as_text=as_text)

    async def search_history(self, owner: str, commit: str) -> tuple[bytes, Diff]:
        return await diff.search_history(self._markers.require(owner), commit)

    async def uncommitted(self, owner: str) -> list[str]:
        """Files of the worktree that differ from what the owner's branch holds."""
        return [*map(shown_path, await diff.uncommitted(self._markers.require(owner)))]

    async def put_back(self, owner: str) -> list[str]:
        """Give the files that the branch holds its content again; returns those that had another.
        What it does not hold stays."""
        async with self._guard.standing(owner) as marker:
            marker.require_present()
            return await diff.put_back(marker)

    async def read_file(self, owner: str, directory: Path, path: str) -> str | None:
        """A text file of the worktree, by its path from a directory of the repository."""
        top = working_directory(self._markers.require(owner).as_workspace(), directory)
        content = await asyncio.to_thread(read_inside, top, path, _MOST_TEXT)
        return None if content is None else content.decode("utf-8", "replace")

    async def write_file(self, owner: str, directory: Path, path: str, text: str) -> None:
        """Write a text file of the worktree, by its path from a directory of the repository."""
        async with self._guard.standing(owner) as marker:
            marker.require_present()
            top = working_directory(marker.as_workspace(), directory)
            await asyncio.to_thread(write_inside, top, path, text.encode("utf-8", "replace"))

    async def name_branch(self, owner: str, name: str, commit: str, before: str | None) -> bool:
        """Have a branch go from a commit to another of the owner's, or be made for it; False if it
        is not there."""
        refs, ref = self._markers.require(owner).refs, branch_ref(name)
        if ref is None:
            raise InvalidInput(f"{name!r} cannot be the name of a branch.")
        try:
            if await refs.read(ref) != commit:
                await refs.move(ref, commit, before, f"kapelle: {owner}")
        except RefMoved:
            return False
        return True

    async def compare(self, owner: str, old: str, new: str) -> Diff:
        """From one commit of the owner's repository to another, whosever they are."""
        return await diff.diff_commits(self._markers.require(owner), old, new)

    async def snapshot(self, directory: Path) -> str:
        return await diff.take_snapshot(self._shadows, directory)

    async def diff_since(self, directory: Path, tree: str) -> Diff:
        return await diff.diff_since_snapshot(self._shadows, directory, tree)

    async def reset(self, owner: str, name: str, base: str | None = None) -> Workspace:
        """Archive, then go back to the base commit, or to the present commit of another base."""
        plain_name(name)
        async with self._guard.known(owner) as marker:
            return await lifecycle.reset_worktree(self._markers, marker, name, base)

    async def restore(self, owner: str, commit: str, name: str) -> None:
        """Put branch, index and files to a commit; what would be lost is archived before.

        The base stays what it was, and ignored files stay where they are.
        """
        plain_name(name)
        async with self._guard.known(owner) as marker:
            await commits.require_commit(marker, commit)
            await lifecycle.restore_worktree(marker, name, commit)

    async def take_in(
        self, owner: str, branch: str, message: str, *, as_base: bool = False
    ) -> list[str]:
        """Merge a branch into the owner's branch and worktree; returns the paths in conflict.

        What is uncommitted is committed first. A conflict is committed with its markers, so that
        it can be resolved in ordinary files; what is not resolved is returned again. As the base,
        what was merged is what the owner's work is told from afterwards.
        """
        async with self._guard.standing(owner) as marker, self._guard.merging(marker.common_dir):
            conflicts = await merge.take_in(marker, self._guard.mover(marker), branch, message)
            if as_base:
                ends = (await commits.tip_of(marker), f"{await marker.refs.commit_of(branch)}")
                base = (await marker.objects.run("merge-base", *ends)).line
                self._markers.write(replace(marker, base_commit=base))
            return conflicts

    async def unresolved(self, owner: str) -> list[str]:
        """The files in which conflicts of the last branch that was taken in are left."""
        async with self._guard.standing(owner) as marker:
            return await merge.standing_conflicts(marker, await commits.tip_of(marker))

    async def conflicted(self, owner: str, paths: Sequence[str]) -> list[str]:
        """Those of the paths that are text files of the worktree and hold conflict markers."""
        async with self._guard.standing(owner) as marker:
            marker.require_present()
            return await asyncio.to_thread(merge.marked_files, marker.toplevel, paths)

    async def remove(self, owner: str, *, empty_branch: bool = False) -> None:
        """Archive, verify, remove; the branch and what is needed to show a diff stay.

        With empty_branch, a branch that holds nothing but the base goes as well.
        """
        async with self._guard.alone(owner):
            half_made = self._markers.intended(owner) is not None
            marker = (self._markers.read if half_made else self._markers.require)(owner)
            await self._put_away(owner, marker, empty_branch)

    async def check_base(self, directory: Path, base: str) -> None:
        """Raise InvalidInput when the base is unknown in the repository around the directory."""
        checkout = find_checkout(directory)
        if checkout is not None:
            await lifecycle.base_of(self._git, checkout, base)

    async def merge(
        self,
        owner: str,
        into: str | None,
        message: str,
        *,
        expected: str | None = None,
        style: Style = "merge",
        by_person: bool = False,
        verify: Callable[[Candidate], Awaitable[None]] | None = None,
    ) -> Merge:
        """Merge the owner's branch into a branch, by default the one it was made from.

        When the branch does not hold the expected commit, nothing is merged. verify is called, with
        no lock held, for files that are not those of the branch; if it raises, nothing is merged.
        """
        marker = self._markers.require(owner)
        merger = Merger(marker, message, expected, style, by_person)
        ref = await merger.target(marker.base if into is None else into)
        target = ref.removeprefix(BRANCHES)
        began = time.monotonic()
        for number in count():
            mover, found = self._guard.mover(marker), None
            if verify is not None:
                found = await merger.require_candidate(ref)
                if found.is_other:
                    # Minutes of checks are of no use where the move will be refused.
                    await mover.require_clean(marker, ref, found.old, found.new)
                    await verify(found)
            merging = self._guard.merging(marker.common_dir)
            try:
                async with self._guard.onto(target) as standing, merging:
                    found = found or await merger.require_candidate(ref)
                    return await merger.move(found, mover, standing)
            except RefMoved:
                if number >= _TRIES and time.monotonic() - began > _PATIENCE_S:
                    break
                await asyncio.sleep(0.01 * min(number, _TRIES))
        raise Conflict(f"{target} kept moving.", hint="Merge again later.")

    async def remote(self, directory: Path, name: str, environ: Mapping[str, str]) -> Remote:
        """A remote of the repository around a directory, reached with a person's variables."""
        checkout = find_checkout(directory)
        if checkout is None:
            raise Conflict(f"{directory} is in no git repository.")
        shadow = self._shadows.snapshots("sha1").parent
        return await find_remote(self._git, checkout.common_dir, shadow, name, environ)

    async def push(self, owner: str, remote: Remote, token: str, commit: str, **what: Any) -> None:
        """Push a commit of the owner's repository; see Remote.push."""
        await remote.push(self._markers.require(owner).objects, commit, token, **what)

    async def preview_merge(self, owner: str, into: str | None) -> MergePreview:
        """How a merge of the owner's branch would go."""
        marker = self._markers.require(owner)
        merger = Merger(marker, "", None)
        ref = await merger.target(marker.base if into is None else into)
        return await merger.preview(ref, self._guard.mover(marker))

    async def finish_merges(self) -> list[str]:
        """Complete or undo merges that a crash cut short; returns the owners they were of."""
        return await self._guard.finish_merges()

    async def traces(self) -> set[str]:
        """Owners of whom anything is known here, be their worktrees ready, half-made or removed."""
        return await asyncio.to_thread(self._markers.traces)

    async def discard(self, owner: str, *, empty_branch: bool = False) -> None:
        """Like remove, be the worktree ready, half-made or unknown, and forget the owner."""
        async with self._guard.alone(owner):
            await self._put_away(owner, self._markers.read(owner), empty_branch)
            self._markers.forget(owner)

    async def put_away_merged(self, owner: str, into: str, *, squashed: bool = False) -> bool:
        """Remove a worktree whose work a branch holds, if squashed by other commits, and its own
        branch with it; whether that is gone. Then the owner is forgotten: what its row says is
        enough to recall it."""
        async with self._guard.alone(owner):
            marker = self._markers.read(owner)
            await self._put_away(owner, marker, empty_branch=False)
            marker = self._markers.read(owner)
            gone = marker is None or await lifecycle.drop_merged(
                self._markers, marker, into, squashed=squashed
            )
            if gone:
                self._markers.forget(owner)
            return gone

    async def recall(self, owner: str, directory: Path, known: Workspace) -> None:
        """Know a removed worktree again by what its task or run remembers of it."""
        if self._markers.read(owner) is None and self._markers.intended(owner) is None:
            marker = await lifecycle.recalled(self._markers, owner, directory, known)
            if marker is not None:
                self._markers.recall(marker)

    async def _put_away(self, owner: str, marker: Marker | None, empty_branch: bool) -> None:
        await self.remove_copy(owner)
        begun_in = self._markers.intended(owner)
        if marker is not None and not marker.removed:
            await lifecycle.remove_worktree(self._markers, marker)
        elif begun_in is not None:
            await lifecycle.clear_half_made(self._markers, owner, begun_in)
            self._markers.fulfilled(owner)
        elif os.path.lexists(path := self._markers.worktree(owner)):
            raise Conflict(f"{path} was not made by Kapelle.", hint="Remove it by hand.")
        if empty_branch and marker is not None:
            await lifecycle.drop_empty_branch(marker)

    async def copy(
        self,
        owner: str,
        changed: Sequence[str] = (),
        base: str | None = None,
        *,
        alone: bool = False,
    ) -> Path:
        """A throwaway copy of the worktree, in which these files hold nonsense, or are as the base
        has them; made anew. One that is alone knows no other repository to push to."""
        async with self._guard.standing(owner) as marker:
            # Who only reports needs one, however large the worktree is.
            copied = await make_copy(marker, math.inf if alone else MAX_BYTES)
            if alone:
                await asyncio.to_thread(forget_remotes, copied)
            if base is None:
                await asyncio.to_thread(garble, copied, changed)
            else:
                await revert(marker, copied, changed, base)
            return copied

    def copying(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Alone with the throwaway copy, of which there is one at a time."""
        return self._guard.locks.hold("copy", plain_name(owner))

    def copy_of(self, owner: str) -> Path:
        return copy_of(self._markers.worktree(owner))

    async def remove_copy(self, owner: str) -> None:
        """Remove the throwaway copy of the worktree, if there is one."""
        await asyncio.to_thread(remove_copy, self._markers.worktree(owner))

    async def pack_objects(self, directory: Path) -> None:
        """Pack the loose objects of a repository if there are many; none is lost by that."""
        checkout = find_checkout(directory)
        if checkout is None or repository.count_loose(checkout.object_dir) < _MANY_OBJECTS:
            return
        # By git's own upkeep, which keeps from being done twice at once.
        place = self._shadows.objects(await read_work_tree(self._git, checkout))
        upkeep = ("maintenance", "run", "--quiet", "--task=loose-objects")
        await place.run(*upkeep)
        await place.run("prune-packed", "--quiet")

    async def tidy(self) -> None:
        """Drop old snapshots and what killed processes left behind."""
        await self._shadows.tidy()


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
