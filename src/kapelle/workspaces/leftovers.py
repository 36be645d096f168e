"""What lies in a worktree and is not in the commit: put aside while checks run on the commit.

Git ignores caches, build results and virtual environments, and a check may read them. Those that
were there before the agent began are of the set-up. The others are moved out of the worktree while
checks are made, and come back afterwards. The time of a change of status (ctime) decides, for a
process without privileges cannot set it.
"""

import asyncio
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kapelle.workspaces.copy import remove_tree
from kapelle.workspaces.files import read_inside, shown_path
from kapelle.workspaces.index import files_place
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.worktree import Marker

FileState = tuple[int, int, int, int]


@dataclass(frozen=True)
class FileSystemMoment:
    """A time by the clock of the worktree's file system, and the inode of the worktree then."""

    ns: int
    inode: int


class WorkspaceLeftovers(WorkspaceGuard):
    """Untracked files of worktrees, and whether tracked files are what the commit holds."""

    async def moment(self, owner: str) -> FileSystemMoment:
        """Return the present time as the file system of the worktree counts it."""
        return await asyncio.to_thread(_moment, self._markers.require(owner))

    async def tree(self, owner: str, commit: str) -> dict[str, str]:
        """Return the files of a commit by path, each with its mode and the id of its content."""
        marker = self._markers.require(owner)
        fields = (await marker.objects.run("ls-tree", "-r", "-z", commit)).fields
        pairs = (field.split(b"\t", 1) for field in fields)
        return {shown_path(path): head.decode() for head, path in pairs}

    async def put_aside(self, owner: str, commit: str, since: FileSystemMoment) -> None:
        """Move untracked files that were written after a moment out of the worktree."""
        async with self._standing(owner) as marker:
            marker.require_present()
            tracked = await _tracked(marker, commit)
            await asyncio.to_thread(_put_aside, marker.toplevel, tracked, since)

    async def list_aside(self, owner: str, commit: str) -> list[str]:
        """Return what lies aside, whole directories as one."""
        marker = self._markers.require(owner)
        aside = await asyncio.to_thread(lambda: sorted(_files_below(_aside_of(marker.toplevel))))
        if aside:
            return _summarized(aside, await _tracked(marker, commit))
        return []

    async def bring_back(self, owner: str) -> None:
        """Move what was put aside back to where it was."""
        await asyncio.to_thread(bring_back, self._markers.worktree(owner))

    async def check_out(self, owner: str, commit: str, *, every_file: bool = False) -> list[str]:
        """Give all files the content of a fresh checkout of the commit; return those changed.

        Every file is read, for an agent can write any times and sizes into the index. With
        every_file all are written, for attributes apply to files that the work did not change.
        """
        async with self._standing(owner) as marker:
            marker.require_present()
            with self._shadows.scratch() as scratch:
                files = files_place(marker.objects, marker, scratch / "index")
                await files.run("read-tree", commit)
                options = ("-z", "--name-only", "--ignore-submodules=all", "--no-ext-diff", "--")
                changed = (await files.run("diff-files", *options)).fields
                if every_file:
                    await files.run("checkout-index", "--force", "--all")
                elif changed:
                    await files.run("checkout-index", "--force", "-z", "--stdin", stdin=changed)
            return [shown_path(name) for name in changed]

    async def read_start(self, owner: str, path: str, most: int) -> str:
        """Return the beginning of a regular file of the worktree; nothing of anything else."""
        top = self._markers.require(owner).toplevel
        content = await asyncio.to_thread(read_inside, top, path, most)
        return (content or b"").decode("utf-8", "replace")

    async def file_states(self, owner: str, commit: str) -> dict[str, FileState | None]:
        """Return what tells that a tracked file was changed, also if it was changed back."""
        marker = self._markers.require(owner)
        tracked = await _tracked(marker, commit)
        return await asyncio.to_thread(_file_states, marker.toplevel, tracked)


async def _tracked(marker: Marker, commit: str) -> list[bytes]:
    output = await marker.objects.run("ls-tree", "-r", "-z", "--name-only", commit)
    return output.fields


def _moment(marker: Marker) -> FileSystemMoment:
    file = marker.toplevel.with_name(f".{marker.toplevel.name}.moment")
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        ns = os.fstat(descriptor).st_ctime_ns
    finally:
        os.close(descriptor)
        file.unlink(missing_ok=True)
    return FileSystemMoment(ns, os.lstat(marker.toplevel).st_ino)


def _aside_of(worktree: Path) -> Path:
    return worktree.with_name(f".{worktree.name}.aside")


def _put_aside(worktree: Path, tracked: list[bytes], since: FileSystemMoment) -> None:
    aside = _aside_of(worktree)
    # A worktree that was made anew has nothing of the first one's set-up.
    if os.lstat(worktree).st_ino == since.inode:
        limit_ns = since.ns
    else:
        limit_ns = -1
    known = set(tracked)
    emptied = set[str]()
    for path in list(_files_below(worktree)):
        if os.fsencode(path) in known:
            continue
        source = worktree / path
        target = aside / path
        if source.lstat().st_ctime_ns <= limit_ns:
            continue
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.replace(source, target)
        emptied.add(str(source.parent))
    for place, _, _ in os.walk(worktree, topdown=False):
        # None in a checkout is empty; one of the set-up may be.
        is_new = place in emptied or os.lstat(place).st_ctime_ns > limit_ns
        if is_new and Path(place) != worktree:
            with suppress(OSError):
                os.rmdir(place)


def bring_back(worktree: Path) -> None:
    """Move what was put aside back into the worktree; what took its place meanwhile goes."""
    aside = _aside_of(worktree)
    if not os.path.lexists(aside):
        return
    for path in list(_files_below(aside)):
        target = worktree / path
        # What a check made in the place of one of its directories stays, and the leftover goes.
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.parent.resolve() == worktree.resolve() / Path(path).parent:
                os.replace(aside / path, target)
    remove_aside(worktree)


def remove_aside(worktree: Path) -> None:
    """Remove what was put aside, if there is anything."""
    remove_tree(_aside_of(worktree))


def _files_below(top: Path) -> Iterator[str]:
    """Yield every path below a directory that is no directory itself, without .git at its top."""
    for place, folders, names in os.walk(top):
        inside = os.path.relpath(place, top)
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if name not in links]
        if inside == ".":
            folders[:] = [name for name in folders if name != ".git"]
            names = [name for name in names if name != ".git"]
        for name in (*links, *names):
            yield os.path.normpath(os.path.join(inside, name))


def _summarized(paths: Iterable[str], tracked: list[bytes]) -> list[str]:
    """Name a directory once instead of its files where nothing in it is tracked."""
    holding = {""}
    for name in map(os.fsdecode, tracked):
        above = os.path.dirname(name)
        while above not in holding:
            holding.add(above)
            above = os.path.dirname(above)
    shown = dict[str, None]()
    for path in paths:
        parts = path.split("/")
        depth = 1
        while depth < len(parts) and "/".join(parts[:depth]) in holding:
            depth += 1
        name = "/".join(parts[:depth])
        shown[f"{name}/" if depth < len(parts) else name] = None
    return [shown_path(os.fsencode(name)) for name in shown]


def _file_states(worktree: Path, tracked: list[bytes]) -> dict[str, FileState | None]:
    top = os.fsencode(worktree)
    states = dict[str, FileState | None]()
    for name in tracked:
        try:
            status = os.lstat(os.path.join(top, name))
        except OSError:
            states[shown_path(name)] = None
            continue
        if not stat.S_ISDIR(status.st_mode):
            fields = (status.st_ctime_ns, status.st_ino, status.st_mode, status.st_size)
            states[shown_path(name)] = fields
    return states
