"""Undoing a merge: the branch goes back while nothing was built on the merge, else by a revert."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kapelle.domain.errors import Conflict, InvalidInput, MergeConflict, WorkspaceError
from kapelle.workspaces.checkout import Mover, git_in, shown
from kapelle.workspaces.commit import keep
from kapelle.workspaces.git import RefMoved
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import BRANCHES, branch_ref
from kapelle.workspaces.repository import read_person
from kapelle.workspaces.shadow import Objects
from kapelle.workspaces.signature import Signing, read_signing
from kapelle.workspaces.worktree import Marker

_TRIES = 20
_HELD_BY = ("refs/heads/", "refs/remotes/", "refs/tags/")


@dataclass(frozen=True)
class PastMerge:
    """A merge that was made: the branch, and its commits before and after."""

    into: str
    parent: str
    commit: str


@dataclass(frozen=True)
class UndoResult:
    """The branch after the undoing, how that was done, and the checkout that moved along."""

    commit: str
    how: Literal["moved_back", "reverted"]
    checkout_updated: Path | None


async def merged_tree(objects: Objects, ours: str, theirs: str) -> tuple[str, list[bytes]]:
    """The tree of two commits merged, and where they conflict: those files hold markers."""
    options = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")
    output = await objects.run(*options, ours, theirs, ok=(0, 1))
    tree, *conflicts = output.fields
    return tree.decode(), conflicts if output.code == 1 else []


async def apply_change(
    objects: Objects, base: str, onto: str, target_tree: str
) -> tuple[str, list[bytes]]:
    """Apply the change from a commit to a tree onto another commit; the tree, and conflicts.

    Git merges by what commits have in common: here that is the base alone.
    """
    trees = (await objects.tree_of(onto), target_tree)
    sides = [await objects.commit(tree, [base], "side") for tree in trees]
    return await merged_tree(objects, *sides)


class WorkspaceUndos(WorkspaceGuard):
    """Undoing the merges of owners' branches."""

    async def undo_merge(
        self, owner: str, past: PastMerge, tip: str | None, message: str, *, sign: bool
    ) -> UndoResult:
        """Undo a merge and keep the owner's branch at its tip, so that it can be merged again.

        The branch moves back if it still holds the merge and nothing else does; otherwise a commit
        reverts the merge. Raises Conflict, and changes nothing, where uncommitted changes of a
        checkout would be lost, and MergeConflict where later commits changed the same.
        """
        marker = self._markers.require(owner)
        ref = branch_ref(past.into)
        if ref is None:
            raise InvalidInput(f"{past.into!r} cannot be the name of a branch.")
        if sign:
            signing = await read_signing(marker.git, marker.common_dir)
        else:
            signing = None
        for number in range(_TRIES):
            try:
                async with self._onto(past.into) as standing, self._merging(marker.common_dir):
                    mover = self._mover(marker)
                    await mover.recover()
                    await _keep_work(marker, tip, past)
                    new, how = await _goal(marker, ref, past, message, signing)
                    now = await marker.refs.read(ref)
                    updated = await _move(marker, mover, ref, now, new, standing)
                    return UndoResult(new, how, updated)
            except RefMoved:
                await asyncio.sleep(0.01 * number)
        raise Conflict(f"{past.into} kept moving.", hint="Undo the merge again later.")


async def _keep_work(marker: Marker, tip: str | None, past: PastMerge) -> None:
    """Have references hold the owner's work and the merge, whatever becomes of the branch."""
    if tip is not None and await marker.tip() is None:
        await marker.refs.move(marker.ref, tip, None, f"kapelle: {marker.task_id}")
    await keep(marker, "undone", past.commit)


async def _goal(
    marker: Marker, ref: str, past: PastMerge, message: str, signing: Signing | None
) -> tuple[str, Literal["moved_back", "reverted"]]:
    """The commit that the branch goes to, and how the merge is undone by that."""
    objects = marker.objects
    now = await marker.refs.read(ref)
    if now is None:
        raise WorkspaceError(f"The branch {past.into} does not exist any more.")
    if not await objects.is_ancestor(past.commit, now):
        if await objects.is_ancestor(past.parent, now):
            return now, "moved_back"  # before a crash, or by a person
        raise Conflict(
            f"{past.into} does not hold the merge {past.commit[:12]} any more, so there is nothing "
            "to undo."
        )
    if now == past.commit and not await _is_built_upon(marker, ref, past.commit):
        return past.parent, "moved_back"
    parent_tree = await objects.tree_of(past.parent)
    tree, conflicts = await apply_change(objects, past.commit, now, parent_tree)
    if conflicts:
        top = git_in(marker.source)
        raise MergeConflict(
            f"Later commits on {past.into} changed what the merge changed, in {shown(conflicts)}. "
            f"{past.into} was not changed.",
            hint=f"Undo it by hand: {top} revert -m 1 {past.commit[:12]} (without -m 1 for a "
            "squash)",
        )
    if tree == await objects.tree_of(now):
        return now, "reverted"  # before a crash, or by a person
    person = await read_person(marker.git, marker.common_dir)
    return await objects.commit(tree, [now], message, signing, **person), "reverted"


async def _is_built_upon(marker: Marker, ref: str, commit: str) -> bool:
    """Whether a branch, tag or remote besides the branch itself and the owner's holds a commit."""
    options = ("--contains", commit, "--format=%(refname)")
    output = await marker.refs.run("for-each-ref", *options, *_HELD_BY)
    return bool({*output.line.splitlines()} - {ref, marker.ref})


async def _move(
    marker: Marker, mover: Mover, ref: str, now: str | None, new: str, standing: Marker | None
) -> Path | None:
    if now is None:
        raise RefMoved(f"{ref.removeprefix(BRANCHES)} moved")
    if now == new:
        return None
    return await mover.move(marker, ref, now, new, standing)
