"""A throwaway copy of a worktree with all that lies in it, as a check finds it there.

It lies beside the worktree under a name of the same length, and every path into the worktree that
a file of it holds leads into the copy: virtual environments and build directories name their own
place, in texts as well as in binary files. It is no worktree of git's: it has a repository of its
own that borrows the objects, so nothing of it is ever to be seen in the user's.
"""

import asyncio
import math
import os
import re
import shutil
import stat
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.workspaces.files import unlink_inside
from kapelle.workspaces.index import copy_index, files_place
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import plain_name
from kapelle.workspaces.worktree import Marker

_MAX_BYTES = 2_000_000_000
# Larger files are data: they are copied as they are.
_MOST_READ = 50_000_000
_ELSEWHERE = re.compile(r"\s*\[(remote|branch|url|include|includeif)\b", re.IGNORECASE)
_NONSENSE = b")]}> Kapelle garbled this file to see whether a check notices it. <{[(\n"


def _copy_of(worktree: Path) -> Path:
    """Where the copy of a worktree lies: no owner has a dot in its name."""
    return worktree.with_name(worktree.name.replace("_", ".", 1))


class WorkspaceCopies(WorkspaceGuard):
    """The throwaway copy of a worktree, of which there is one at a time."""

    def copy_of(self, owner: str) -> Path:
        return _copy_of(self._markers.worktree(owner))

    def copying(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Alone with the copy."""
        return self._hold("copy", plain_name(owner))

    async def copy(
        self,
        owner: str,
        changed: Sequence[str] = (),
        base: str | None = None,
        *,
        garbled: Sequence[str] = (),
        alone: bool = False,
    ) -> Path:
        """Make the copy anew, in which these files hold nonsense, or are as the base has them.

        The garbled files hold nonsense even where others are as in the base. A copy that is alone
        knows no other repository to push to. Raises WorkspaceError when the worktree is too large.
        """
        async with self._standing(owner) as marker:
            marker.require_present()
            refs = await marker.refs.run("for-each-ref", "--format=%(objectname) %(refname)")
            # Who only reports needs one, however large the worktree is.
            room = math.inf if alone else _MAX_BYTES
            copied = await asyncio.to_thread(_make, marker, refs.stdout, room)
            if alone:
                await asyncio.to_thread(_forget_remotes, copied)
            if base is None:
                await asyncio.to_thread(_garble, copied, changed)
            else:
                await _revert(marker, copied, changed, base)
                await asyncio.to_thread(_garble, copied, garbled)
            return copied

    async def remove_copy(self, owner: str) -> None:
        """Remove the copy, if there is one."""
        await asyncio.to_thread(remove_copy, self._markers.worktree(owner))


def _make(marker: Marker, refs: bytes, room: float) -> Path:
    source = marker.toplevel
    target = _copy_of(marker.toplevel)
    remove_copy(source)
    target.mkdir(mode=0o700)
    for place, folders, names in os.walk(source):
        if place == str(source):
            folders[:] = [name for name in folders if name != ".git"]
            names = [name for name in names if name != ".git"]
        inside = target / Path(place).relative_to(source)
        for name in (*folders, *names):
            paths = (os.fsencode(source), os.fsencode(target))
            room -= _copy(Path(place, name), inside / name, *paths)
            if room < 0:
                limit = f"{_MAX_BYTES // 1_000_000_000} GB"
                raise WorkspaceError(f"The workspace {source} is larger than {limit}.")
    _make_repository(marker, target / ".git", refs)
    return target


def _copy(source: Path, target: Path, old: bytes, new: bytes) -> int:
    """Copy one entry of a directory, and its times; the bytes that it takes."""
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


def _make_repository(marker: Marker, target: Path, refs: bytes) -> None:
    for name in ("objects/info", "objects/pack", "refs/heads", "info"):
        (target / name).mkdir(parents=True)
    (target / "objects" / "info" / "alternates").write_bytes(os.fsencode(marker.object_dir) + b"\n")
    (target / "packed-refs").write_bytes(refs)
    (target / "HEAD").write_text(f"ref: {marker.ref}\n", encoding="utf-8")
    copy_index(marker.index, target / "index")
    for source in (marker.common_dir / "config", marker.common_dir / "shallow"):
        if source.is_file():
            shutil.copyfile(source, target / source.name)


def _forget_remotes(copy: Path) -> None:
    """Take out of its configuration where it came from and what it could be pushed to."""
    config = copy / ".git" / "config"
    kept = list[str]()
    keeps = True
    for line in config.read_text("utf-8", "surrogateescape").splitlines(keepends=True):
        if line.lstrip().startswith("["):
            keeps = not _ELSEWHERE.match(line)
        kept += [line] if keeps else []
    config.write_text("".join(kept), "utf-8", "surrogateescape")


def _garble(copy: Path, paths: Sequence[str]) -> None:
    """Put nonsense into these files of a copy, never through a link."""
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
    """Make these files of a copy what they are in a commit; what it does not have goes."""
    await asyncio.to_thread(_take_away, copy, paths)
    with marker.shadows.scratch() as scratch:
        files = files_place(marker.objects, replace(marker, toplevel=copy), scratch / "index")
        await files.run("read-tree", base)
        held = set((await files.run("ls-files", "-z")).fields)
        names = [name for name in map(os.fsencode, paths) if name in held]
        await files.run("checkout-index", "--force", "-z", "--stdin", stdin=names)


def _take_away(copy: Path, paths: Sequence[str]) -> None:
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
    remove_tree(_copy_of(worktree))


def remove_tree(place: Path) -> None:
    """Remove a directory with all that is in it, if it is there, whatever rights it has."""
    if os.path.lexists(place):
        shutil.rmtree(place, onerror=_made_writable)


def _made_writable(function: object, path: str, _: object) -> None:
    """What a check took the rights from goes as well."""
    for place in (os.path.dirname(path), path):
        if not os.path.islink(place):
            os.chmod(place, 0o700)
    (shutil.rmtree if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
