"""Putting a worktree back to its base, and taking it away, never before its content is kept."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.workspaces.commit import (
    archive_worktree,
    checkout_of,
    commit_now,
    read_heads,
    stage_all,
    tree_of,
)
from kapelle.workspaces.content import Staging, files_place, install_index
from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Git
from kapelle.workspaces.identity import delete_directory, inode_of
from kapelle.workspaces.link import (
    clear_operations,
    clear_stale_locks,
    ensure_gitdir,
    restore_dot_git,
)
from kapelle.workspaces.marker import Marker, Markers
from kapelle.workspaces.refs import move_ref, point_head, read_ref, repository_place
from kapelle.workspaces.skeleton import Skeletons
from kapelle.workspaces.worktree import base_of


async def reset_worktree(
    git: Git, skeletons: Skeletons, markers: Markers, marker: Marker, name: str, base: str | None
) -> Marker:
    """Archive, then put branch, index and files back to the base, or to another base."""
    marker.require_present()
    ensure_gitdir(marker)
    restore_dot_git(marker)
    clear_stale_locks(marker)
    goal = marker
    if base is not None:
        resolved = await base_of(git, checkout_of(marker), base)
        goal = replace(marker, base=resolved.branch or base, base_commit=resolved.commit)
    await archive_worktree(git, skeletons, marker, name)
    marker = goal
    await _restore_files(git, skeletons, marker)
    place = repository_place(Path(marker.common_dir))
    tip = await commit_now(git, marker)
    if tip != marker.base_commit:
        await move_ref(git, place, marker.ref, marker.base_commit, tip, "kapelle: reset")
    own = repository_place(Path(marker.common_dir), Path(marker.gitdir))
    await point_head(git, own, marker.ref)
    clear_operations(marker)
    markers.write(marker)
    return marker


async def _restore_files(git: Git, skeletons: Skeletons, marker: Marker) -> None:
    """With an index that knows the untracked files, read-tree removes them as well."""
    heads = await read_heads(git, marker)
    reading = await skeletons.reading(marker.lender)
    with skeletons.scratch() as scratch:
        staging = Staging(git, reading, marker.work_tree, scratch)
        staged = await staging.stage(heads.parent)
        files = files_place(reading, marker.work_tree, staged.index)
        marker.require_present()
        arguments = ("read-tree", "--reset", "-u", marker.base_commit)
        await git.run(files, *arguments, timeout_s=CONTENT_TIMEOUT_S)
        for nested in await staging.nested_repositories():
            # Its files are archived; what is left is a repository of the agent's own making.
            await asyncio.to_thread(shutil.rmtree, nested, ignore_errors=True)
        install_index(staged.index, marker.work_tree.index)


async def remove_worktree(git: Git, skeletons: Skeletons, markers: Markers, marker: Marker) -> None:
    """Archive, verify the archive, and only then remove; the branch stays.

    What somebody put in the place of the worktree is not ours and stays as well.
    """
    if marker.removed:
        return
    if not marker.has_repository and not marker.present:
        # A person deleted both: there is neither anything to keep nor a place to keep it.
        markers.write(replace(marker, removed=True))
        return
    ensure_gitdir(marker)
    if marker.present:
        restore_dot_git(marker)
    clear_stale_locks(marker)
    archived = await archive_worktree(git, skeletons, marker, "final")
    await _verify(git, skeletons, marker, archived)
    # Not `git worktree remove`, which follows a link that is put there at the last moment.
    if marker.present:
        inode = marker.inode or inode_of(Path(marker.path))
        await asyncio.to_thread(delete_directory, Path(marker.path), inode)
    await asyncio.to_thread(shutil.rmtree, marker.gitdir)
    markers.write(replace(marker, removed=True))


async def _verify(
    git: Git, skeletons: Skeletons, marker: Marker, archived: tuple[str, str] | None
) -> None:
    reading = await skeletons.reading(marker.lender)
    held: str | None = marker.base_commit
    if archived is not None:
        held = await read_ref(git, repository_place(Path(marker.common_dir)), archived[0])
    if held is None or (archived is not None and held != archived[1]):
        raise WorkspaceError(f"The archive of {marker.task_id} could not be verified.")
    if not marker.present:
        return
    heads = await read_heads(git, marker)
    if await stage_all(git, skeletons, marker, heads) != await tree_of(git, reading, held):
        raise WorkspaceError(
            f"{marker.path} changed while it was being archived.",
            hint="See that nothing works there any more, then try again.",
        )
