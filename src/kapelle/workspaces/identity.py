"""Whether a directory is still the one that Kapelle made; an agent may replace its own worktree."""

import os
import shutil
import stat
from pathlib import Path

from kapelle.domain.errors import WorkspaceError


def inode_of(path: Path) -> int:
    return os.lstat(path).st_ino


def is_same_directory(path: Path, inode: int) -> bool:
    """Whether a real directory of this inode is at the path."""
    try:
        return _matches(os.lstat(path), path, inode)
    except OSError:
        return False


def is_real_directory(path: Path) -> bool:
    """Whether a directory, and not a link to one, is at the path."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _matches(status: os.stat_result, path: Path, inode: int) -> bool:
    # The device of the parent, not a remembered one: its number may change with each boot.
    device = os.stat(path.parent).st_dev
    return stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) == (device, inode)


def delete_directory(path: Path, inode: int) -> None:
    """Delete the directory by its descriptor, so that nothing put in its place is ever entered."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if not _matches(os.fstat(descriptor), path, inode):
                raise WorkspaceError(f"{path} was replaced while it was being removed.")
            for name in os.listdir(descriptor):
                _delete_entry(name, descriptor)
        finally:
            os.close(descriptor)
        path.rmdir()
    except OSError as error:
        raise WorkspaceError(
            f"{path} could not be removed: {error.strerror} ({error.filename}).",
            hint="Its content is archived; see what is in the way, then try again.",
        ) from error


def _delete_entry(name: str, parent: int) -> None:
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)
