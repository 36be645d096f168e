"""Move files of a worktree aside that are not in the commit, while checks run.

Git ignores caches, build results and virtual environments, and a check may read them. Those that
existed before the agent began belong to the set-up and stay. The others are moved out of the
worktree during the checks, and moved back afterwards. The time of the last status change (ctime)
decides, because a process without privileges cannot set it.
"""

import asyncio
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kapelle.workspaces.copy import remove_tree
from kapelle.workspaces.files import format_path, read_inside
from kapelle.workspaces.index import make_files_location
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.worktree import Marker

FileState = tuple[int, int, int, int]


@dataclass(frozen=True)
class FileSystemMoment:
    """A time on the clock of the worktree's file system, and the worktree's inode then."""

    ns: int
    inode: int


class WorkspaceLeftovers(WorkspaceGuard):
    """Untracked files of worktrees, and tracked files that differ from the commit."""

    async def moment(self, owner: str) -> FileSystemMoment:
        """Return the present time on the clock of the worktree's file system."""
        return await asyncio.to_thread(_read_moment, self._markers.require(owner))

    async def tree(self, owner: str, commit: str) -> dict[str, str]:
        """Return the files of a commit by path, each with its mode and the id of its content."""
        marker = self._markers.require(owner)
        fields = (await marker.objects.run("ls-tree", "-r", "-z", commit)).fields
        files: dict[str, str] = {}
        for field in fields:
            head, path = field.split(b"\t", 1)
            files[format_path(path)] = head.decode()
        return files

    async def put_aside(self, owner: str, commit: str, since: FileSystemMoment) -> None:
        """Move untracked files that were written after a moment out of the worktree."""
        async with self._lock_worktree(owner) as marker:
            marker.require_present()
            names = await _list_tracked(marker, commit)
            await asyncio.to_thread(_put_aside, marker.toplevel, names, since)

    async def list_aside(self, owner: str, commit: str) -> list[str]:
        """Return the paths of the files aside; whole directories as one path."""
        marker = self._markers.require(owner)
        aside = await asyncio.to_thread(lambda: sorted(_files_below(_aside_path(marker.toplevel))))
        if aside:
            return _summarize(aside, await _list_tracked(marker, commit))
        return []

    async def bring_back(self, owner: str) -> None:
        """Move the files aside back into the worktree."""
        await asyncio.to_thread(bring_back, self._markers.worktree(owner))

    async def check_out(self, owner: str, commit: str, *, every_file: bool = False) -> list[str]:
        """Restore all files to the content of the commit; return those that differed.

        Every file is compared by content, because an agent can write any times and sizes into the
        index. With `every_file` all files are written, because attributes apply to unchanged files
        too.
        """
        async with self._lock_worktree(owner) as marker:
            marker.require_present()
            with self._shadows.scratch() as scratch:
                files = make_files_location(marker.objects, marker, scratch / "index")
                await files.run("read-tree", commit)
                options = ("-z", "--name-only", "--ignore-submodules=all", "--no-ext-diff", "--")
                names = (await files.run("diff-files", *options)).fields
                if every_file:
                    await files.run("checkout-index", "--force", "--all")
                elif names:
                    await files.run("checkout-index", "--force", "-z", "--stdin", stdin=names)
            return [format_path(name) for name in names]

    async def read_start(self, owner: str, path: str, most: int) -> str:
        """Return the beginning of a regular file of the worktree; empty for anything else."""
        top = self._markers.require(owner).toplevel
        content = await asyncio.to_thread(read_inside, top, path, most)
        return (content or b"").decode("utf-8", "replace")

    async def file_states(self, owner: str, commit: str) -> dict[str, FileState | None]:
        """Return values that change when a tracked file is changed, even if changed back."""
        marker = self._markers.require(owner)
        names = await _list_tracked(marker, commit)
        return await asyncio.to_thread(_read_file_states, marker.toplevel, names)


async def _list_tracked(marker: Marker, commit: str) -> list[bytes]:
    output = await marker.objects.run("ls-tree", "-r", "-z", "--name-only", commit)
    return output.fields


def _read_moment(marker: Marker) -> FileSystemMoment:
    """Create and remove a file to read the clock of the file system."""
    file = marker.toplevel.with_name(f".{marker.toplevel.name}.moment")
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        ns = os.fstat(descriptor).st_ctime_ns
    finally:
        os.close(descriptor)
        file.unlink(missing_ok=True)
    return FileSystemMoment(ns, os.lstat(marker.toplevel).st_ino)


def _aside_path(worktree: Path) -> Path:
    return worktree.with_name(f".{worktree.name}.aside")


def _put_aside(worktree: Path, tracked_names: list[bytes], since: FileSystemMoment) -> None:
    aside = _aside_path(worktree)
    # A worktree that was created again has no files of the first set-up.
    if os.lstat(worktree).st_ino == since.inode:
        limit_ns = since.ns
    else:
        limit_ns = -1
    tracked_set = set(tracked_names)
    emptied_directories = set[str]()
    for path in list(_files_below(worktree)):
        if os.fsencode(path) in tracked_set:
            continue
        source = worktree / path
        target = aside / path
        # Written before the agent began: it belongs to the set-up.
        if source.lstat().st_ctime_ns <= limit_ns:
            continue
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.replace(source, target)
        emptied_directories.add(str(source.parent))
    own_git = f"{worktree}{os.sep}.git"
    for place, _, _ in os.walk(worktree, topdown=False):
        if place == own_git or place.startswith(own_git + os.sep):
            continue
        # A checkout has no empty directories; the set-up may have made some.
        is_new = place in emptied_directories or os.lstat(place).st_ctime_ns > limit_ns
        if is_new and Path(place) != worktree:
            with suppress(OSError):
                os.rmdir(place)


def bring_back(worktree: Path) -> None:
    """Move the files aside back into the worktree; files in their place are replaced."""
    aside = _aside_path(worktree)
    if not os.path.lexists(aside):
        return
    for path in list(_files_below(aside)):
        target = worktree / path
        # If a check replaced one of the directories, its files stay and the leftover is deleted.
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.parent.resolve() == worktree.resolve() / Path(path).parent:
                os.replace(aside / path, target)
    remove_aside(worktree)


def remove_aside(worktree: Path) -> None:
    """Delete the files aside, if there are any."""
    remove_tree(_aside_path(worktree))


def _files_below(top: Path) -> Iterator[str]:
    """Yield every file and link below a directory, without .git at its top."""
    for place, folders, names in os.walk(top):
        inside = os.path.relpath(place, top)
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if name not in links]
        if inside == ".":
            folders[:] = [name for name in folders if name != ".git"]
            names = [name for name in names if name != ".git"]
        for name in (*links, *names):
            yield os.path.normpath(os.path.join(inside, name))


def _summarize(paths: Iterable[str], tracked_names: list[bytes]) -> list[str]:
    """Return paths in which a directory without tracked files stands for its files."""
    holding = {""}
    for name in map(os.fsdecode, tracked_names):
        above = os.path.dirname(name)
        while above not in holding:
            holding.add(above)
            above = os.path.dirname(above)
    summary = dict[str, None]()
    for path in paths:
        parts = path.split("/")
        depth = 1
        while depth < len(parts) and "/".join(parts[:depth]) in holding:
            depth += 1
        name = "/".join(parts[:depth])
        summary[f"{name}/" if depth < len(parts) else name] = None
    return [format_path(os.fsencode(name)) for name in summary]


def _read_file_states(worktree: Path, names: list[bytes]) -> dict[str, FileState | None]:
    top = os.fsencode(worktree)
    states = dict[str, FileState | None]()
    for name in names:
        try:
            status = os.lstat(os.path.join(top, name))
        except OSError:
            states[format_path(name)] = None
            continue
        if not stat.S_ISDIR(status.st_mode):
            fields = (status.st_ctime_ns, status.st_ino, status.st_mode, status.st_size)
            states[format_path(name)] = fields
    return states
