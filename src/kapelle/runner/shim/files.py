"""The files of a process directory and how they are written; standard library only."""

import contextlib
import errno
import hmac
import os
import stat
import time
from collections.abc import Callable

INTENT = "intent.json"
CLAIM = "claim"
RUN = "run.json"
OUT = "out.log"
ERR = "err.log"
EXIT = "exit.json"
STOP = "stop"
INPUT = "input"
SHIM_LOG = "shim.log"

MARKER = "KAPELLE_RUN_DIR"
PROTOCOL = 1

# Errors of the disk that may pass: the operation is repeated until it succeeds.
DISK_TROUBLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG, errno.ENOMEM}
)
RETRY_S = 0.5
_MAX_READ = 16 << 20


def replace(path: str, data: bytes, *, durable: bool = False) -> None:
    """Write a file, or replace it atomically."""
    temporary = _write_temporary(path, data, durable=durable)
    os.rename(temporary, path)
    if durable:
        sync_directory(os.path.dirname(path))


def publish(path: str, data: bytes, *, durable: bool) -> bool:
    """Write a file atomically unless it exists; return whether this call wrote it."""
    temporary = _write_temporary(path, data, durable=durable)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    if durable:
        sync_directory(os.path.dirname(path))
    return True


def read(path: str) -> bytes | None:
    """Return the content of a small file; None if it is missing or not a regular file."""
    file = open_regular(path)
    if file is None:
        return None
    with os.fdopen(file, "rb") as content:
        return content.read(_MAX_READ)


def open_regular(path: str, directory: int | None = None) -> int | None:
    """Open a regular file to read; None for a missing one, a link, a pipe or a device.

    An agent may have put these in the place of a file.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(path, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR}:
            return None
        raise
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


_SIGNATURE = b', "signature": "'


def sign(secret: bytes, name: str, data: bytes) -> bytes:
    """Return a JSON object with its signature as the last field.

    The key is the secret that the daemon made for this one process and sent to its shim over their
    socket. No other process has it, so none can sign.
    """
    digest = hmac.digest(secret, name.encode() + b"\0" + data, "sha256").hex()
    return data[:-1] + _SIGNATURE + digest.encode() + b'"}'


def verify_signature(secret: bytes, name: str, content: bytes) -> bytes | None:
    """Return the object without its signature; None if the signature is not valid."""
    data = content.rpartition(_SIGNATURE)[0] + b"}"
    if hmac.compare_digest(sign(secret, name, data), content):
        return data
    return None


def size(path: str) -> int:
    """Return the size of a file in bytes; 0 if it is missing."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def sync_directory(path: str) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_temporary(path: str, data: bytes, *, durable: bool) -> str:
    temporary = f"{path}.{os.getpid()}.tmp"
    # Remove it first, so that the data is never written through a link planted under this name.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(file, data) :]
        if durable:
            os.fsync(file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(file)
    return temporary


def retry_while_full(action: Callable[[], object], give_up: Callable[[], bool]) -> bool:
    """Repeat an action on the disk while the disk is in trouble; False if given up.

    Raises every other OSError of the action.
    """
    while True:
        try:
            action()
        except OSError as error:
            if error.errno not in DISK_TROUBLE:
                raise
        else:
            return True
        if give_up():
            return False
        time.sleep(RETRY_S)
