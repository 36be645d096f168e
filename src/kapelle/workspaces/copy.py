"""A temporary copy of a worktree with all its files, as a check finds them there.

The copy lies beside the worktree under a name of the same length. Every path into the worktree
inside a file is replaced by the path into the copy, because virtual environments and build
directories contain their own path, in texts and in binary files. The copy is no workspace: it
has a repository of its own that borrows the objects, so the user's repository does not show it.
"""

import asyncio
import math
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.workspaces.clone import read_template, write_repository
from kapelle.workspaces.files import unlink_inside
from kapelle.workspaces.index import copy_index, make_files_location
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import require_plain_name
from kapelle.workspaces.worktree import Marker

_MAX_BYTES = 2_000_000_000
# Larger files are data, and copied unchanged.
_MOST_READ = 50_000_000
_NONSENSE = b")]}> Kapelle garbled this file to see whether a check notices it. <{[(\n"


def _copy_path(worktree: Path) -> Path:
    """Return the path of the copy of a worktree; no owner has a dot in its name."""
    return worktree.with_name(worktree.name.replace("_", ".", 1))


class WorkspaceCopies(WorkspaceGuard):
    """The temporary copy of a worktree; each worktree has at most one."""

    def copy_path(self, owner: str) -> Path:
        """Return the path of an owner's copy."""
        return _copy_path(self._markers.worktree(owner))

    def copying(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of the copy."""
        return self._hold_lock("copy", require_plain_name(owner))

    async def copy(
        self,
        owner: str,
        paths: Sequence[str] = (),
        base: str | None = None,
        *,
        garbled_paths: Sequence[str] = (),
        is_alone: bool = False,
    ) -> Path:
        """Make a new copy in which these files are garbled, or reverted to the base commit.

        `garbled_paths` are garbled in addition to reverted ones. With `is_alone`, the copy knows no
        remote to push to. Raises WorkspaceError if the worktree is too large.
        """
        async with self._lock_worktree(owner) as marker:
            marker.require_present()
            template = await read_template(marker.git, marker.common_dir)
            commit = await marker.tip() or marker.base_commit
            # Read-only tasks always work in a copy, so no size is too large.
            room = math.inf if is_alone else _MAX_BYTES
            copy = await asyncio.to_thread(_make_copy, marker, room)
            write = partial(write_repository, copy / ".git", template, owner=owner)
            with_remotes = partial(write, has_remotes=not is_alone)
            await asyncio.to_thread(with_remotes, branch=marker.ref, commit=commit)
            await asyncio.to_thread(copy_index, marker.index, copy / ".git" / "index")
            if base is None:
                await asyncio.to_thread(_garble, copy, paths)
            else:
                await _revert(marker, copy, paths, base)
                await asyncio.to_thread(_garble, copy, garbled_paths)
            return copy

    async def remove_copy(self, owner: str) -> None:
        """Remove the copy, if there is one."""
        await asyncio.to_thread(remove_copy, self._markers.worktree(owner))


def _make_copy(marker: Marker, room: float) -> Path:
    """Copy the files, and replace paths."""
    source = marker.toplevel
    target = _copy_path(marker.toplevel)
    remove_copy(source)
    target.mkdir(mode=0o700)
    for place, folders, names in os.walk(source):
        if place == str(source):
            folders[:] = filter(_is_not_git, folders)
            names = list(filter(_is_not_git, names))
        inside = target / Path(place).relative_to(source)
        for name in (*folders, *names):
            paths = (os.fsencode(source), os.fsencode(target))
            room -= _copy(Path(place, name), inside / name, *paths)
            if room < 0:
                limit = f"{_MAX_BYTES // 1_000_000_000} GB"
                raise WorkspaceError(f"The workspace {source} is larger than {limit}.")
    return target


def _is_not_git(name: str) -> bool:
    return name != ".git"


def _copy(source: Path, target: Path, old: bytes, new: bytes) -> int:
    """Copy one entry of a directory with its times; return its size in bytes."""
    status = source.lstat()
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(os.fsencode(source)).replace(old, new), os.fsencode(target))
        return 0
    if stat.S_ISDIR(status.st_mode):
        target.mkdir(mode=stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
        return 0
    if not stat.S_ISREG(status.st_mode):
        return 0
    if status.st_size > _MOST_READ:
        shutil.copyfile(source, target)
    else:
        target.write_bytes(source.read_bytes().replace(old, new))
    shutil.copystat(source, target)
    return status.st_size


def _garble(copy: Path, paths: Sequence[str]) -> None:
    """Write nonsense into these files of a copy, never through a link."""
    for path in paths:
        file = copy / path
        if file.is_file():
            mode = file.stat().st_mode
        else:
            mode = 0o644
        unlink_inside(copy, path)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(mode))
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_NONSENSE)


async def _revert(marker: Marker, copy: Path, paths: Sequence[str], base: str) -> None:
    """Restore these files of a copy from a commit; remove those that it does not have."""
    await asyncio.to_thread(_remove_paths, copy, paths)
    with marker.shadows.scratch() as scratch:
        files = make_files_location(
            marker.objects, replace(marker, toplevel=copy), scratch / "index"
        )
        await files.run("read-tree", base)
        names_in_base = set((await files.run("ls-files", "-z")).fields)
        names = [name for name in map(os.fsencode, paths) if name in names_in_base]
        await files.run("checkout-index", "--force", "-z", "--stdin", stdin=names)


def _remove_paths(copy: Path, paths: Sequence[str]) -> None:
    """Remove these files of a copy, and the directories that are empty then."""
    for path in paths:
        # A directory in the place of a file: git replaces it with the file of the base.
        with suppress(IsADirectoryError, PermissionError):
            unlink_inside(copy, path)
        for above in list(Path(path).parents)[:-1]:
            # Never through a link.
            if (copy / above).resolve() == copy.resolve() / above:
                with suppress(OSError):
                    (copy / above).rmdir()


def remove_copy(worktree: Path) -> None:
    """Remove the copy of a worktree, if there is one."""
    remove_tree(_copy_path(worktree))


def remove_tree(place: Path) -> None:
    """Remove a directory with all its content, if it exists, whatever its permissions are."""
    if os.path.lexists(place):
        shutil.rmtree(place, onerror=_remove_unwritable)


def _remove_unwritable(function: object, path: str, _: object) -> None:
    """Make an entry writable and remove it, after a check changed its permissions."""
    for place in (os.path.dirname(path), path):
        if not os.path.islink(place):
            os.chmod(place, 0o700)
    (shutil.rmtree if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
