"""Compare commits and snapshots with the present files."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kapelle.domain.errors import InvalidInput, WorkspaceError
from kapelle.workspaces.commit import read_tip, require_commit
from kapelle.workspaces.files import format_path
from kapelle.workspaces.git import GitLocation
from kapelle.workspaces.index import Staging, make_files_location
from kapelle.workspaces.intake import receive
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import ARCHIVE, Refs
from kapelle.workspaces.repository import WorkTree, find_checkout, read_work_tree
from kapelle.workspaces.worktree import Marker

MAX_PATCH = 64 * 1024 * 1024
_DIFF = ("diff-tree", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")
_PATCH = ("-p", "--full-index", "-M", "--src-prefix=a/", "--dst-prefix=b/")
_BINARY = ("--binary",)
# Every file as text, whatever its attributes say, and only its new lines.
_AS_TEXT = ("--text", "--unified=0", "--irreversible-delete")


@dataclass(frozen=True)
class Diff:
    """A patch that git can apply, its summary, and the paths it touches."""

    patch: bytes
    stat: str
    files: list[str]
    is_truncated: bool = False


class WorkspaceDiffs(WorkspaceGuard):
    """Differences in an owner's worktree, and in directories that are worked on in place."""

    async def diff(self, owner: str, *, as_text: bool = False, since: str | None = None) -> Diff:
        """Compare the base commit with the worktree's files, or with the branch if removed.

        `since` is a later commit of the branch to compare with instead of the base. `as_text` gives
        a patch to search, not to apply.
        """
        marker = self._markers.require(owner)
        if since is not None and await marker.objects.is_ancestor(since, await read_tip(marker)):
            marker = replace(marker, base_commit=since)
        with self._shadows.scratch() as scratch:
            place, new = await _stage_content(marker, scratch)
            if new == await marker.objects.tree_of(marker.base_commit):
                return Diff(b"", "", [])
            return await _diff(place, marker.base_commit, new, _AS_TEXT if as_text else _BINARY)

    async def search_history(self, owner: str, commit: str) -> tuple[bytes, Diff]:
        """Return everything that a push of the commit would publish, to be searched.

        These are names and messages, and every patch since the base; a merge as its change of the
        first parent.
        """
        await self._refresh(owner)
        marker = self._markers.require(owner)
        log = ("log", "--no-renames", "--diff-merges=first-parent")
        what = (commit, f"^{marker.base_commit}", "--")
        names = ("--format=%an%n%ae%n%cn%n%ce%n%B", "--name-only")
        patches = ("--format=", *_DIFF[1:], *_PATCH, *_AS_TEXT, "--no-renames")
        log_output = await marker.objects.run(*log, *names, *what, max_output=MAX_PATCH)
        patch_output = await marker.objects.run(*log, *patches, *what, max_output=MAX_PATCH)
        return log_output.stdout, Diff(
            patch_output.stdout, "", [], log_output.is_truncated or patch_output.is_truncated
        )

    async def list_uncommitted(self, owner: str) -> list[str]:
        """Return the files of the worktree that differ from the owner's branch."""
        await self._refresh(owner)
        return [*map(format_path, await self._list_uncommitted(self._markers.require(owner)))]

    async def _list_uncommitted(self, marker: Marker, *which: str) -> list[bytes]:
        with self._shadows.scratch() as scratch:
            place, new = await _stage_content(marker, scratch)
            options = (*_DIFF, "-r", "-z", "--name-only", "--no-renames", *which)
            return (await place.run(*options, await read_tip(marker), new, "--")).fields

    async def put_back(self, owner: str) -> list[str]:
        """Restore files of the branch to their committed content; return the changed ones.

        Files that the branch does not have stay.
        """
        async with self._lock_worktree(owner) as marker:
            marker.require_present()
            if names := await self._list_uncommitted(marker, "--diff-filter=a"):
                with self._shadows.scratch() as scratch:
                    files = make_files_location(marker.objects, marker, scratch / "index")
                    await files.run("read-tree", await read_tip(marker))
                    await files.run("checkout-index", "--force", "-z", "--stdin", stdin=names)
        return [format_path(name) for name in names]

    async def remove_new(self, owner: str) -> list[str]:
        """Remove files that are neither on the branch nor ignored by git; return their paths."""
        async with self._lock_worktree(owner) as marker:
            marker.require_present()
            names = await self._list_uncommitted(marker, "--diff-filter=A")
            await asyncio.to_thread(_remove_files, marker.toplevel, names)
        return [format_path(name) for name in names]

    async def compare(self, owner: str, old: str, new: str) -> Diff:
        """Compare two commits of the owner's repository, also of other owners."""
        marker = self._markers.require(owner)
        for commit in (old, new):
            await require_commit(marker, commit)
        return await _diff(marker.objects, old, new)

    async def snapshot(self, directory: Path) -> str:
        """Store the tree of a repository's present files in Kapelle's own object store."""
        work_tree = await self._find_work_tree(directory)
        ours = self._shadows.snapshots(work_tree.object_format)
        place = self._shadows.objects_with_intake(ours, work_tree)
        with self._shadows.scratch() as scratch:
            return await _stage_files(place, work_tree, scratch)

    async def diff_since(self, directory: Path, tree: str) -> Diff:
        """Compare a snapshot with the present files of a repository."""
        work_tree = await self._find_work_tree(directory)
        if not work_tree.is_id(tree):
            raise InvalidInput(f"{tree!r} is not a snapshot of this repository.")
        ours = self._shadows.snapshots(work_tree.object_format)
        with self._shadows.scratch() as scratch:
            place = self._shadows.objects_with_intake(scratch / "objects", work_tree, ours)
            return await _diff(place, tree, await _stage_files(place, work_tree, scratch))

    async def _find_work_tree(self, directory: Path) -> WorkTree:
        checkout = find_checkout(directory)
        if checkout is None:
            raise WorkspaceError(f"{directory} is not in a git repository.")
        work_tree = await read_work_tree(self._git, checkout)
        if work_tree.is_workspace:
            await receive(self._shadows, work_tree)
        return work_tree


async def _stage_files(place: GitLocation, work_tree: WorkTree, scratch: Path) -> str:
    head = await Refs.at(place.git, work_tree).head_commit()
    return await Staging(place, work_tree, scratch).stage(head)


async def _stage_content(marker: Marker, scratch: Path) -> tuple[GitLocation, str]:
    """Return the tree of the worktree's files, or the branch's commit if it is gone."""
    if marker.is_present:
        await receive(marker.shadows, marker)
        place = marker.shadows.objects_with_intake(scratch / "objects", marker)
        try:
            work_tree = marker.without_foreign(scratch)
            tree = await Staging(place, work_tree, scratch).stage(await read_tip(marker))
        except WorkspaceError:
            if marker.is_present:
                raise
        else:
            # If the directory was replaced meanwhile, the staged files may be foreign ones.
            if marker.is_present:
                return place, tree
    tip = await read_tip(marker)
    if tip == marker.base_commit:
        # Work that failed was never committed, but archived when its worktree was removed.
        tip = await marker.refs.read(f"{ARCHIVE}{marker.task_id}/final") or tip
    return marker.objects, tip


async def _diff(place: GitLocation, old: str, new: str, form: tuple[str, ...] = _BINARY) -> Diff:
    """Return paths, summary and patch from one call of git; only the patch may be cut."""
    options = (*_PATCH, *form, "-r", "-z", "--raw", "--stat=120")
    output = await place.run(*_DIFF, *options, old, new, "--", max_output=MAX_PATCH)
    files: set[bytes] = set()
    rest = output.stdout
    while rest.startswith(b":"):
        header, rest = rest.split(b"\0", 1)
        # A rename names both paths.
        if header.rsplit(b" ", 1)[1].startswith((b"R", b"C")):
            count = 2
        else:
            count = 1
        *names, rest = rest.split(b"\0", count)
        files.update(names)
    stat, _, patch = rest.partition(b"\0")
    return Diff(patch, format_path(stat), [*map(format_path, sorted(files))], output.is_truncated)


def _remove_files(top: Path, names: Sequence[bytes]) -> None:
    """Remove files of a worktree, and the directories that are empty then."""
    for name in names:
        path = top / os.fsdecode(name)
        # A directory above it may have become a link that leads out of the worktree.
        if path.parent.resolve() != top.resolve() / path.parent.relative_to(top):
            continue
        with suppress(OSError):
            path.unlink()
            for folder in path.parents:
                if folder == top:
                    break
                folder.rmdir()
