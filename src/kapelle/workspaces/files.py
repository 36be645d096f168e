"""Copy, link, read and write files of a worktree without ever following a symbolic link."""

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from kapelle.domain.errors import InvalidInput, WorkspaceError
from kapelle.workspaces.refs import is_text
from kapelle.workspaces.repository import open_file

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_A_LINK_IN_THE_WAY = {errno.ELOOP, errno.ENOTDIR}


def split_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path; raises InvalidInput if it could lead out of the repository."""
    parts = tuple(part for part in path.split("/") if part not in {"", "."})
    if not is_text(path) or path.startswith("/") or ".." in parts or not parts:
        raise InvalidInput(f"{path!r} is not a path inside the repository.")
    if parts[0].lower() == ".git":
        raise InvalidInput("The .git directory can be neither copied nor linked.")
    return parts


def format_path(name: bytes) -> str:
    """Return a path as text that can be stored and printed anywhere."""
    return name.decode("utf-8", "backslashreplace")


def open_inside(top: Path, path: str) -> BinaryIO | None:
    """Open a regular file below the top to read; None for anything else."""
    with ExitStack() as stack:
        parent, name = _open_parent(stack, top, path)
        if parent is None:
            return None
        return open_file(name, parent)


def read_inside(top: Path, path: str, most: int) -> bytes | None:
    """Return the beginning of a regular file below the top; None for anything else."""
    stream = open_inside(top, path)
    if stream is None:
        return None
    with stream:
        return stream.read(most)


def write_inside(top: Path, path: str, content: bytes) -> None:
    """Write a file below the top, replacing an existing entry of this name."""
    *above, name = split_path(path)
    with (
        ExitStack() as stack,
        _create_file(_descend_or_make(stack, top, above), name, 0o644) as writer,
    ):
        writer.write(content)


def unlink_inside(top: Path, path: str) -> None:
    """Remove a file or link below the top, if it exists."""
    with ExitStack() as stack:
        parent, name = _open_parent(stack, top, path)
        if parent is not None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)


def _open_parent(stack: ExitStack, top: Path, path: str) -> tuple[int | None, str]:
    *above, name = path.split("/")
    leads_away = "\0" in path or any(part in {"", ".", ".."} for part in (*above, name))
    return None if leads_away else _descend(stack, top, above), name


def copy_inside(source: Path, target: Path, path: str) -> bool:
    """Copy a file or directory; return False if the source does not exist."""
    *above, name = split_path(path)
    with ExitStack() as stack:
        origin = _descend(stack, source, above)
        if origin is None or not _is_copyable(origin, name):
            return False
        forbidden = os.stat(target)
        destination = _descend_or_make(stack, target, above)
        _copy_entry(origin, destination, name, (forbidden.st_dev, forbidden.st_ino))
    return True


def link_inside(source: Path, target: Path, path: str) -> bool:
    """Link to a file or directory of the source; an existing target is left alone."""
    *above, name = parts = split_path(path)
    origin = source.joinpath(*parts)
    if not origin.exists() or os.path.lexists(target.joinpath(*parts)):
        return False
    with ExitStack() as stack:
        os.symlink(origin, name, dir_fd=_descend_or_make(stack, target, above))
    return True


def _descend_or_make(stack: ExitStack, root: Path, parts: Sequence[str]) -> int:
    """Open the directory at these parts below the root, and create missing ones."""
    current = _close_later(stack, os.open(root, _DIRECTORY & ~os.O_NOFOLLOW))
    for part in parts:
        current = _close_later(stack, _open_or_make(current, part))
    return current


def _descend(stack: ExitStack, root: Path, parts: Sequence[str]) -> int | None:
    """Open the directory at these parts below the root; None if a part is not a directory."""
    current = _close_later(stack, os.open(root, _DIRECTORY & ~os.O_NOFOLLOW))
    with suppress(OSError):
        for part in parts:
            current = _close_later(stack, os.open(part, _DIRECTORY, dir_fd=current))
        return current
    return None


def _close_later(stack: ExitStack, descriptor: int) -> int:
    """Close a descriptor together with the stack; return it."""
    stack.callback(os.close, descriptor)
    return descriptor


def _open_or_make(parent: int, name: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno not in _A_LINK_IN_THE_WAY:
            raise
        text = f"Nothing was copied through {name!r}: it is not a directory in the worktree."
        hint = "Remove this path from the paths to copy or link."
        raise WorkspaceError(text, hint=hint) from error


def _is_copyable(parent: int, name: str) -> bool:
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _copy_entry(origin: int, destination: int, name: str, forbidden: tuple[int, int]) -> None:
    try:
        descriptor = os.open(name, _SOURCE, dir_fd=origin)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.ENOENT}:
            return  # a link, a socket, or gone meanwhile
        raise
    with ExitStack() as stack:
        _close_later(stack, descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            mode = stat.S_IMODE(status.st_mode) & 0o777
            reader = os.fdopen(os.dup(descriptor), "rb")
            with reader, _create_file(destination, name, mode) as writer:
                shutil.copyfileobj(reader, writer, 1024 * 1024)
                os.fchmod(writer.fileno(), mode)
        elif stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) != forbidden:
            inside = _close_later(stack, _open_or_make(destination, name))
            for entry in sorted(os.listdir(descriptor)):
                _copy_entry(descriptor, inside, entry, forbidden)


def _create_file(parent: int, name: str, mode: int) -> BinaryIO:
    """Return a new file to write, replacing an existing entry of this name."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    return os.fdopen(os.open(name, _TARGET, mode, dir_fd=parent), "wb")
