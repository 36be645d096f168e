"""Undo a merge: move the branch back if nothing was built on the merge, otherwise revert it."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kapelle.domain.errors import Conflict, InvalidInput, MergeConflict, WorkspaceError
from kapelle.workspaces.checkout import Mover, format_git_command, format_names
from kapelle.workspaces.commit import archive_commit
from kapelle.workspaces.git import RefMoved
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import BRANCHES, make_branch_ref
from kapelle.workspaces.repository import read_person
from kapelle.workspaces.shadow import Objects
from kapelle.workspaces.signature import Signing, read_signing
from kapelle.workspaces.worktree import Marker

_TRIES = 20
_HELD_BY = ("refs/heads/", "refs/remotes/", "refs/tags/")


@dataclass(frozen=True)
class PastMerge:
    """A past merge: the branch, and its commits before and after."""

    into: str
    parent: str
    commit: str


@dataclass(frozen=True)
class UndoResult:
    """The branch after the undo, how it was undone, and the checkout that was updated."""

    commit: str
    how: Literal["moved_back", "reverted"]
    checkout_updated: Path | None


async def merge_trees(objects: Objects, ours: str, theirs: str) -> tuple[str, list[bytes]]:
    """Return the tree of two merged commits, and the paths in conflict, with markers."""
    options = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")
    output = await objects.run(*options, ours, theirs, ok=(0, 1))
    tree, *conflicts = output.fields
    return tree.decode(), conflicts if output.code == 1 else []


async def apply_change(
    objects: Objects, base: str, onto: str, target_tree: str
) -> tuple[str, list[bytes]]:
    """Apply the change from a commit to a tree onto another commit; return tree and conflicts.

    git merges relative to the common ancestor: here it is the base alone.
    """
    trees = (await objects.tree_of(onto), target_tree)
    sides = [await objects.commit(tree, [base], "side") for tree in trees]
    return await merge_trees(objects, *sides)


class WorkspaceUndos(WorkspaceGuard):
    """Undo the merges of owners' branches."""

    async def undo_merge(
        self, owner: str, past: PastMerge, tip: str | None, message: str, *, sign: bool
    ) -> UndoResult:
        """Undo a merge and keep the owner's branch at its tip, so that it can be merged again.

        The branch moves back if it holds the merge and no other reference contains it; otherwise a
        commit reverts the merge. Raises Conflict, and changes nothing, if uncommitted changes of a
        checkout would be lost. Raises MergeConflict if later commits changed the same lines.
        """
        marker = self._markers.require(owner)
        ref = make_branch_ref(past.into)
        if ref is None:
            raise InvalidInput(f"{past.into!r} cannot be the name of a branch.")
        if sign:
            signing = await read_signing(marker.git, marker.common_dir)
        else:
            signing = None
        for number in range(_TRIES):
            try:
                async with (
                    self._lock_branch_worktree(past.into) as standing,
                    self._lock_merging(marker.common_dir),
                ):
                    mover = self._make_mover(marker)
                    await mover.recover()
                    await _keep_work(marker, tip, past)
                    new, how = await _find_goal(marker, ref, past, message, signing)
                    now = await marker.refs.read(ref)
                    moved_checkout = await _move(marker, mover, ref, now, new, standing)
                    return UndoResult(new, how, moved_checkout)
            except RefMoved:
                await asyncio.sleep(0.01 * number)
        raise Conflict(f"{past.into} kept moving.", hint="Undo the merge again later.")


async def _keep_work(marker: Marker, tip: str | None, past: PastMerge) -> None:
    """Keep the owner's work and the merge in references, whatever happens to the branch."""
    if tip is not None and await marker.tip() is None:
        await marker.refs.move(marker.ref, tip, None, f"kapelle: {marker.task_id}")
    await archive_commit(marker, "undone", past.commit)


async def _find_goal(
    marker: Marker, ref: str, past: PastMerge, message: str, signing: Signing | None
) -> tuple[str, Literal["moved_back", "reverted"]]:
    """Return the commit that the branch goes to, and how the merge is undone by that."""
    objects = marker.objects
    now = await marker.refs.read(ref)
    if now is None:
        raise WorkspaceError(f"The branch {past.into} does not exist any more.")
    if not await objects.is_ancestor(past.commit, now):
        if await objects.is_ancestor(past.parent, now):
            return now, "moved_back"  # undone already, before a crash or by a person
        raise Conflict(
            f"{past.into} does not hold the merge {past.commit[:12]} any more, so there is nothing "
            "to undo."
        )
    if now == past.commit and not await _is_built_upon(marker, ref, past.commit):
        return past.parent, "moved_back"
    parent_tree = await objects.tree_of(past.parent)
    tree, conflicts = await apply_change(objects, past.commit, now, parent_tree)
    if conflicts:
        top = format_git_command(marker.source)
        raise MergeConflict(
            f"Later commits on {past.into} changed what the merge changed, in "
            f"{format_names(conflicts)}. {past.into} was not changed.",
            hint=f"Undo it by hand: {top} revert -m 1 {past.commit[:12]} (without -m 1 for a "
            "squash)",
        )
    if tree == await objects.tree_of(now):
        return now, "reverted"  # reverted already, before a crash or by a person
    person = await read_person(marker.git, marker.common_dir)
    return await objects.commit(tree, [now], message, signing, **person), "reverted"


async def _is_built_upon(marker: Marker, ref: str, commit: str) -> bool:
    """Tell whether a branch, tag or remote other than the two branches contains a commit."""
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
