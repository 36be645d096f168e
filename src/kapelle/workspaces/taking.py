"""Taking another branch into a worktree, conflicts and all, so that they can be resolved there."""

import asyncio
from pathlib import Path

from kapelle.domain.errors import GitError, InvalidInput
from kapelle.workspaces.commit import (
    checkout_of,
    commit_worktree,
    is_ancestor,
    new_commit,
    tree_of,
)
from kapelle.workspaces.conflicts import marked_files, merged_tree, shown_path
from kapelle.workspaces.git import Git, Place, RefMoved
from kapelle.workspaces.history import tip_of
from kapelle.workspaces.link import is_amid_operation
from kapelle.workspaces.marker import Marker
from kapelle.workspaces.moving import Mover
from kapelle.workspaces.names import branch_ref
from kapelle.workspaces.refs import head_branch, read_ref, repository_place
from kapelle.workspaces.restoring import restore_worktree
from kapelle.workspaces.skeleton import Skeletons

_TRIES = 5


async def take_in(
    git: Git, skeletons: Skeletons, marker: Marker, mover: Mover, branch: str, message: str
) -> list[str]:
    """Merge the branch into the worktree; returns the paths in conflict.

    A conflict is committed with its markers. While any of them stand, they are returned again and
    nothing more is taken in on top of them.
    """
    await _require_branch(git, marker, branch)
    await mover.recover()
    for _ in range(_TRIES):
        try:
            tip = await _committed(git, skeletons, marker, branch)
            theirs = await _require_branch(git, marker, branch)
            return await _merge(git, skeletons, marker, mover, (tip, theirs), message)
        except RefMoved:
            continue
    raise GitError(f"{marker.branch} kept changing while {branch} was being taken in.")


async def _require_branch(git: Git, marker: Marker, branch: str) -> str:
    ref = branch_ref(branch)
    place = repository_place(Path(marker.common_dir))
    commit = None if ref is None else await read_ref(git, place, ref)
    if commit is None:
        raise InvalidInput(
            f"{branch!r} is not a branch of {marker.toplevel}.", hint="`git branch` lists them."
        )
    return commit


async def _committed(git: Git, skeletons: Skeletons, marker: Marker, branch: str) -> str:
    """Commit what is there and stand on the branch's tip, whatever the agent was amid."""
    await commit_worktree(git, skeletons, marker, f"Work before {branch} was taken in")
    tip = await tip_of(git, marker)
    is_on_branch = await head_branch(git, checkout_of(marker)) == marker.branch
    if not is_on_branch or is_amid_operation(marker):
        await restore_worktree(git, skeletons, marker, f"before-{tip[:12]}", tip)
    return tip


async def _merge(
    git: Git,
    skeletons: Skeletons,
    marker: Marker,
    mover: Mover,
    sides: tuple[str, str],
    message: str,
) -> list[str]:
    tip, theirs = sides
    reading = await skeletons.reading(marker.lender)
    standing = await _standing_conflicts(git, reading, marker, tip)
    if await is_ancestor(git, reading, theirs, tip):
        return standing
    if await _marked(marker, standing):
        return standing
    merged = await merged_tree(git, reading, tip, theirs)
    new = await new_commit(git, reading, merged.tree, [tip, theirs], message)
    await mover.move(marker.ref, tip, new)
    return [shown_path(name) for name in merged.conflicts]


async def _standing_conflicts(git: Git, reading: Place, marker: Marker, tip: str) -> list[str]:
    """What is left of the last merge: all its conflicts while nobody did anything, else markers."""
    options = ("rev-list", "--first-parent", "--merges", "--max-count=1", "--parents")
    output = await git.run(reading, *options, tip, f"^{marker.base_commit}", "--")
    last, *parents = output.line.split() or [""]
    if len(parents) != 2:
        return []
    try:
        merged = await merged_tree(git, reading, parents[0], parents[1])
    except GitError:  # somebody's own merge of what git would not merge by itself
        return []
    conflicts = [shown_path(name) for name in merged.conflicts]
    if last == tip and merged.tree == await tree_of(git, reading, tip):
        return conflicts
    return await _marked(marker, conflicts)


async def _marked(marker: Marker, paths: list[str]) -> list[str]:
    return await asyncio.to_thread(marked_files, Path(marker.path), paths)
