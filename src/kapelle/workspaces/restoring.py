"""Putting a worktree back to a commit, never before what would be lost is kept."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from kapelle.workspaces.commit import (
    archive_worktree,
    checkout_of,
    commit_now,
    read_heads,
    tree_of,
)
from kapelle.workspaces.content import Staging, files_place, install_index
from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Git
from kapelle.workspaces.link import clear_operations, is_amid_operation, make_ready
from kapelle.workspaces.marker import Marker, Markers
from kapelle.workspaces.refs import head_branch, move_ref, point_head, repository_place
from kapelle.workspaces.skeleton import Skeletons
from kapelle.workspaces.worktree import base_of


async def reset_worktree(
    git: Git, skeletons: Skeletons, markers: Markers, marker: Marker, name: str, base: str | None
) -> Marker:
    """Put a worktree back to its base, or to another base."""
    make_ready(marker)
    goal = marker
    if base is not None:
        resolved = await base_of(git, checkout_of(marker), base)
        goal = replace(marker, base=resolved.branch or base, base_commit=resolved.commit)
    await restore_worktree(git, skeletons, marker, name, goal.base_commit)
    markers.write(goal)
    return goal


async def restore_worktree(
    git: Git, skeletons: Skeletons, marker: Marker, name: str, commit: str
) -> None:
    """Archive, then put branch, index and files to the commit; nothing is done where it stands."""
    make_ready(marker)
    if await _stands_at(git, skeletons, marker, commit):
        return
    await archive_worktree(git, skeletons, marker, name, commit)
    await _restore_files(git, skeletons, marker, commit)
    tip = await commit_now(git, marker)
    if tip != commit:
        place = repository_place(Path(marker.common_dir))
        await move_ref(git, place, marker.ref, commit, tip, "kapelle: restore")
    own = repository_place(Path(marker.common_dir), Path(marker.gitdir))
    await point_head(git, own, marker.ref)
    clear_operations(marker)


async def _stands_at(git: Git, skeletons: Skeletons, marker: Marker, commit: str) -> bool:
    """Whether branch and files hold the commit and nothing else; then the index does after it."""
    heads = await read_heads(git, marker)
    if heads.tip != commit or is_amid_operation(marker):
        return False
    if await head_branch(git, checkout_of(marker)) != marker.branch:
        return False
    reading = await skeletons.reading(marker.lender)
    with skeletons.scratch() as scratch:
        staging = Staging(git, reading, marker.work_tree, scratch)
        staged = await staging.stage(commit)
        if staged.tree != await tree_of(git, reading, commit):
            return False
        if await staging.nested_repositories():
            return False
        install_index(staged.index, marker.work_tree.index)
    return True


async def _restore_files(git: Git, skeletons: Skeletons, marker: Marker, commit: str) -> None:
    """With an index that knows the untracked files, read-tree removes them as well."""
    heads = await read_heads(git, marker)
    reading = await skeletons.reading(marker.lender)
    with skeletons.scratch() as scratch:
        staging = Staging(git, reading, marker.work_tree, scratch)
        staged = await staging.stage(heads.parent)
        files = files_place(reading, marker.work_tree, staged.index)
        marker.require_present()
        arguments = ("read-tree", "--reset", "-u", commit)
        await git.run(files, *arguments, timeout_s=CONTENT_TIMEOUT_S)
        for nested in await staging.nested_repositories():
            # Its files are archived; what is left is a repository of the agent's own making.
            await asyncio.to_thread(shutil.rmtree, nested, ignore_errors=True)
        install_index(staged.index, marker.work_tree.index)
