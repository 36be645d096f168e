"""What changed: from a commit or a snapshot to the files as they are now."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kapelle.domain.errors import InvalidInput, WorkspaceError
from kapelle.workspaces.commit import require_commit, tip_of
from kapelle.workspaces.files import shown_path
from kapelle.workspaces.git import Git, GitLocation
from kapelle.workspaces.index import Staging, files_place
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import ARCHIVE, Refs
from kapelle.workspaces.repository import WorkTree, find_checkout, read_work_tree
from kapelle.workspaces.worktree import Marker

MAX_PATCH = 64 * 1024 * 1024
_DIFF = ("diff-tree", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")
_PATCH = ("-p", "--full-index", "-M", "--src-prefix=a/", "--dst-prefix=b/")
_BINARY = ("--binary",)
# Every file as text, whatever it and its attributes say, and only what is new of it.
_AS_TEXT = ("--text", "--unified=0", "--irreversible-delete")


@dataclass(frozen=True)
class Diff:
    """A patch that git can apply, its summary, and the paths it touches."""

    patch: bytes
    stat: str
    files: list[str]
    truncated: bool = False


class WorkspaceDiffs(WorkspaceGuard):
    """What differs, for the owner of a worktree and for directories worked on in place."""

    async def diff(self, owner: str, *, as_text: bool = False, since: str | None = None) -> Diff:
        """From the base commit to the worktree's files, or to the branch when the worktree is gone;
        as_text is to be searched, not applied. since is a later commit of the branch."""
        marker = self._markers.require(owner)
        if since is not None and await marker.objects.is_ancestor(since, await tip_of(marker)):
            marker = replace(marker, base_commit=since)
        with self._shadows.scratch() as scratch:
            place, new = await _content(marker, scratch)
            if new == await marker.objects.tree_of(marker.base_commit):
                return Diff(b"", "", [])
            return await _diff(place, marker.base_commit, new, _AS_TEXT if as_text else _BINARY)

    async def search_history(self, owner: str, commit: str) -> tuple[bytes, Diff]:
        """What a push of the commit publishes, to be searched: names and messages, and every patch
        on the way from the base; a merge as what it changes of its first parent."""
        marker = self._markers.require(owner)
        log = ("log", "--no-renames", "--diff-merges=first-parent")
        what = (commit, f"^{marker.base_commit}", "--")
        names = ("--format=%an%n%ae%n%cn%n%ce%n%B", "--name-only")
        patches = ("--format=", *_DIFF[1:], *_PATCH, *_AS_TEXT, "--no-renames")
        told, made = [
            await marker.objects.run(*log, *form, *what, max_output=MAX_PATCH)
            for form in (names, patches)
        ]
        return told.stdout, Diff(made.stdout, "", [], told.truncated or made.truncated)

    async def uncommitted(self, owner: str) -> list[str]:
        """Files of the worktree that differ from what the owner's branch holds."""
        return [*map(shown_path, await self._uncommitted(self._markers.require(owner)))]

    async def _uncommitted(self, marker: Marker, *which: str) -> list[bytes]:
        with self._shadows.scratch() as scratch:
            place, new = await _content(marker, scratch)
            options = (*_DIFF, "-r", "-z", "--name-only", "--no-renames", *which)
            return (await place.run(*options, await tip_of(marker), new, "--")).fields

    async def put_back(self, owner: str) -> list[str]:
        """Give the files that the branch holds its content again; returns those that had another.
        What it does not hold stays."""
        async with self._standing(owner) as marker:
            marker.require_present()
            if changed := await self._uncommitted(marker, "--diff-filter=a"):
                with self._shadows.scratch() as scratch:
                    files = files_place(marker.objects, marker, scratch / "index")
                    await files.run("read-tree", await tip_of(marker))
                    await files.run("checkout-index", "--force", "-z", "--stdin", stdin=changed)
        return [shown_path(name) for name in changed]

    async def remove_new(self, owner: str) -> list[str]:
        """Remove files that are neither on the branch nor ignored by git; return their paths."""
        async with self._standing(owner) as marker:
            marker.require_present()
            added = await self._uncommitted(marker, "--diff-filter=A")
            await asyncio.to_thread(_remove_files, marker.toplevel, added)
        return [shown_path(name) for name in added]

    async def compare(self, owner: str, old: str, new: str) -> Diff:
        """From one commit of the owner's repository to another, whosever they are."""
        marker = self._markers.require(owner)
        for commit in (old, new):
            await require_commit(marker, commit)
        return await _diff(marker.objects, old, new)

    async def snapshot(self, directory: Path) -> str:
        """The tree of a repository's files as they are now, kept in our own object store."""
        work_tree = await _work_tree(self._git, directory)
        place = self._shadows.objects_in(
            self._shadows.snapshots(work_tree.object_format), work_tree
        )
        with self._shadows.scratch() as scratch:
            return await _stage(place, work_tree, scratch)

    async def diff_since(self, directory: Path, tree: str) -> Diff:
        """From a snapshot to the files of a repository as they are now."""
        work_tree = await _work_tree(self._git, directory)
        if not work_tree.is_id(tree):
            raise InvalidInput(f"{tree!r} is not a snapshot of this repository.")
        ours = self._shadows.snapshots(work_tree.object_format)
        with self._shadows.scratch() as scratch:
            place = self._shadows.objects_in(scratch / "objects", work_tree, ours)
            return await _diff(place, tree, await _stage(place, work_tree, scratch))


async def _work_tree(git: Git, directory: Path) -> WorkTree:
    checkout = find_checkout(directory)
    if checkout is None:
        raise WorkspaceError(f"{directory} is not in a git repository.")
    return await read_work_tree(git, checkout)


async def _stage(place: GitLocation, work_tree: WorkTree, scratch: Path) -> str:
    head = await Refs.at(place.git, work_tree).head_commit()
    return await Staging(place, work_tree, scratch).stage(head)


async def _content(marker: Marker, scratch: Path) -> tuple[GitLocation, str]:
    if marker.present:
        place = marker.shadows.objects_in(scratch / "objects", marker)
        try:
            heads = await marker.heads()
            tree = await Staging(place, marker, scratch).stage(heads.parent)
        except WorkspaceError:
            if marker.present:
                raise
        else:
            # Replaced meanwhile, it may have been foreign files that were staged.
            if marker.present:
                return place, tree
    tip = await tip_of(marker)
    if tip == marker.base_commit:
        # What failed was never committed, but kept when its worktree was removed.
        tip = await marker.refs.read(f"{ARCHIVE}{marker.task_id}/final") or tip
    return marker.objects, tip


async def _diff(place: GitLocation, old: str, new: str, form: tuple[str, ...] = _BINARY) -> Diff:
    """Paths, summary and patch, in this order, out of one call: only the patch may be cut short."""
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
    return Diff(patch, shown_path(stat), [*map(shown_path, sorted(files))], output.truncated)


def _remove_files(top: Path, names: Sequence[bytes]) -> None:
    """Remove files of a worktree, and the directories that are empty after that."""
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
