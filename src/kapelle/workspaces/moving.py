"""Moving a branch together with the checkouts that stand on it; a crash leaves neither behind."""

import asyncio
import os
from pathlib import Path

from kapelle.domain.errors import Conflict, GitError, Unavailable
from kapelle.workspaces.checkout import BaseCheckout, checkouts_of
from kapelle.workspaces.commit import commit_tree, keep
from kapelle.workspaces.content import Staging
from kapelle.workspaces.files import unlink_inside
from kapelle.workspaces.git import Git, Place
from kapelle.workspaces.journal import Journal, Move
from kapelle.workspaces.marker import Marker
from kapelle.workspaces.names import BRANCHES
from kapelle.workspaces.obstacles import obstacles
from kapelle.workspaces.recovery import Recovery
from kapelle.workspaces.refs import move_ref, repository_place
from kapelle.workspaces.skeleton import Skeletons


class Mover:
    """For one repository, on behalf of one owner; whoever uses it holds the lock for merging.

    The worktree of ours that stands on the branch, if there is one, is told as well.
    """

    def __init__(
        self,
        git: Git,
        skeletons: Skeletons,
        owner: Marker,
        journals: Path,
        standing: Marker | None = None,
    ) -> None:
        self._git = git
        self._skeletons = skeletons
        self._owner = owner
        self._standing = standing
        self._common_dir = Path(owner.common_dir)
        self._refs = repository_place(self._common_dir)
        self._journal = Journal(journals, self._common_dir)
        self._recovery = Recovery(git, skeletons, owner.lender, self._journal)

    async def recover(self) -> Path | None:
        """Make good what was cut short in this repository; returns the checkout it concerned."""
        return await self._recovery.recover()

    async def move(self, ref: str, old: str, new: str) -> Path | None:
        """Compare and swap the branch and take its clean checkouts along; returns the first."""
        toplevel, name = Path(self._owner.toplevel), ref.removeprefix(BRANCHES)
        reading = await self._skeletons.reading(self._owner.lender)
        if self._standing is not None:
            await _make_way(self._git, self._skeletons, self._standing, old, new)
        found = await checkouts_of(self._git, self._common_dir, toplevel, name)
        toplevels = tuple(str(item.toplevel) for item in found)
        self._journal.write(Move(ref, old, new, toplevels, self._owner.task_id))
        with self._skeletons.scratch() as scratch:
            checkouts = [
                await self._recovery.base_checkout(reading, item, scratch) for item in found
            ]
            try:
                await self._move_with(checkouts, ref, old, new)
            except asyncio.CancelledError:
                await self._recovery.recover()
                raise
            except Exception:
                for checkout in checkouts:
                    checkout.unlock()
                self._journal.clear()
                raise
        self._journal.clear()
        return found[0].toplevel if found else None

    async def _move_with(self, checkouts: list[BaseCheckout], ref: str, old: str, new: str) -> None:
        for checkout in checkouts:
            checkout.lock()
            await checkout.require_clean(old, new)
        await move_ref(self._git, self._refs, ref, new, old, f"kapelle: {self._owner.task_id}")
        await self._advance(checkouts, ref, old, new)
        for checkout in checkouts:
            checkout.unlock()

    async def _advance(self, checkouts: list[BaseCheckout], ref: str, old: str, new: str) -> None:
        for number, checkout in enumerate(checkouts):
            try:
                await checkout.advance(old, new)
            except (GitError, Unavailable) as error:
                if number == 0:
                    await move_ref(self._git, self._refs, ref, old, new, "kapelle: undo")
                    if isinstance(error, Unavailable):
                        raise
                top = checkout.work_tree.directory
                raise Conflict(
                    f"{top} changed during the merge: {error.message}",
                    hint=f"Look at git -C {top} status, then merge again.",
                ) from error


async def _make_way(git: Git, skeletons: Skeletons, marker: Marker, old: str, new: str) -> None:
    """Archive and take away ignored files where the new commit has files of its own."""
    reading = await skeletons.reading(marker.lender)
    found = await obstacles(git, reading, Path(marker.path), old, new)
    if not found:
        return
    with skeletons.scratch() as scratch:
        staging = Staging(git, reading, marker.work_tree, scratch)
        await staging.stage(old)
        ignored = await staging.ignored(found)
        if not ignored:
            return
        await _archive_with(git, reading, marker, staging, ignored, old)
    marker.require_present()
    for name in ignored:
        await asyncio.to_thread(unlink_inside, Path(marker.path), os.fsdecode(name))


async def _archive_with(
    git: Git, reading: Place, marker: Marker, staging: Staging, ignored: list[bytes], old: str
) -> None:
    tree = await staging.include(ignored)
    message = f"kapelle: {marker.task_id} with ignored files that were in the way"
    commit = await commit_tree(git, reading, tree, [old], message)
    await keep(git, reading, marker, "in-the-way", commit, is_new=True)
