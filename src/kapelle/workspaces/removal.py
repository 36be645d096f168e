"""Taking a worktree away, never before its content is kept."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.workspaces.commit import (
    archive_worktree,
    commit_now,
    is_ancestor,
    read_heads,
    stage_all,
    tree_of,
)
from kapelle.workspaces.git import Git
from kapelle.workspaces.identity import delete_directory, inode_of
from kapelle.workspaces.link import clear_stale_locks, ensure_gitdir, restore_dot_git
from kapelle.workspaces.marker import Marker, Markers
from kapelle.workspaces.refs import delete_ref, read_ref, repository_place
from kapelle.workspaces.skeleton import Skeletons


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


async def drop_empty_branch(git: Git, skeletons: Skeletons, marker: Marker) -> None:
    """Delete the branch of a removed worktree when all that it holds is in its base."""
    tip = await commit_now(git, marker)
    reading = await skeletons.reading(marker.lender)
    if tip is not None and await is_ancestor(git, reading, tip, marker.base_commit):
        await delete_ref(git, repository_place(Path(marker.common_dir)), marker.ref, tip)
