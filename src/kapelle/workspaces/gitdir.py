"""Read and write the files of a workspace's own git directory, without following a link.

An agent can put anything there: links, pipes, directories in the place of files.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from kapelle.domain.errors import WorkspaceError
from kapelle.runner.shim import files

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REFUSED = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOTEMPTY}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_directory(top: Path, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Open a directory below the top by its descriptor; the top itself may not be a link either.

    With `create`, missing directories are made, and anything in their place is removed. Raises
    OSError.
    """
    current = os.open(top, _DIRECTORY)
    try:
        for part in parts:
            if create:
                _make_directory(current, part)
            inner = os.open(part, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def _make_directory(parent: int, name: str) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o755, dir_fd=parent)


def replace_inside(top: Path, parts: Sequence[str], content: bytes) -> None:
    """Write a file below the top atomically, in the place of whatever is there.

    Raises WorkspaceError if the agent took the permission away.
    """
    try:
        _replace_inside(top, parts, content)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        text = f"{top.joinpath(*parts)} could not be written: {error.strerror}."
        hint = "Restore the permissions of its directories, then try again."
        raise WorkspaceError(text, hint=hint) from error


def _replace_inside(top: Path, parts: Sequence[str], content: bytes) -> None:
    *above, name = parts
    with open_directory(top, above, create=True) as parent:
        # A fixed name, so that at most one such file is left by crashes.
        fresh = f"{name}.kapelle"
        with suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=parent)
        with os.fdopen(os.open(fresh, _NEW, 0o644, dir_fd=parent), "wb") as stream:
            stream.write(content)
        try:
            os.replace(fresh, name, src_dir_fd=parent, dst_dir_fd=parent)
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=parent)
            os.replace(fresh, name, src_dir_fd=parent, dst_dir_fd=parent)


def remove_inside(top: Path, parts: Sequence[str]) -> None:
    """Remove a file below the top, if it exists."""
    *above, name = parts
    with suppress(OSError), open_directory(top, above) as parent:
        os.unlink(name, dir_fd=parent)


def read_inside_git(top: Path, parts: Sequence[str], most: int) -> bytes | None:
    """Return the beginning of a regular file below the top; None for anything else."""
    *above, name = parts
    try:
        with open_directory(top, above) as parent:
            stream = open_at(parent, name)
    except OSError:
        return None
    if stream is None:
        return None
    with stream:
        return stream.read(most)


def open_at(parent: int, name: str) -> BinaryIO | None:
    """Open a regular file of an open directory; None for anything else."""
    try:
        descriptor = files.open_regular(name, parent)
    except OSError:
        return None
    if descriptor is None:
        return None
    return os.fdopen(descriptor, "rb")
