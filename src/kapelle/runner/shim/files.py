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

# Troubles of the disk that may pass: whoever meets one waits and tries again.
DISK_TROUBLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG, errno.ENOMEM}
)
RETRY_S = 0.5
_MAX_READ = 16 << 20


def replace(path: str, data: bytes, *, durable: bool = False) -> None:
    """Put a file in place as a whole."""
    temporary = _temporary(path, data, durable=durable)
    os.rename(temporary, path)
    if durable:
        sync_directory(os.path.dirname(path))


def publish(path: str, data: bytes, *, durable: bool) -> bool:
    """Put a file in place as a whole unless there is one; whether this call did it."""
    temporary = _temporary(path, data, durable=durable)
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
    """The bytes of a small file; None if it is missing, or something else than a file."""
    file = open_regular(path)
    if file is None:
        return None
    with os.fdopen(file, "rb") as content:
        return content.read(_MAX_READ)


def open_regular(path: str, directory: int | None = None) -> int | None:
    """Open a file to read; an agent may have put a pipe or a link in its place, which is none."""
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
    """The JSON object of a file of this name, with its signature as the last field.

    The key is the secret that the daemon made for this one process and gave to its shim over their
    socket: whoever else writes such a file cannot sign it.
    """
    digest = hmac.digest(secret, name.encode() + b"\0" + data, "sha256").hex()
    return data[:-1] + _SIGNATURE + digest.encode() + b'"}'


def verified(secret: bytes, name: str, signed: bytes) -> bytes | None:
    """The object without its signature; None if it was not signed with this secret."""
    data = signed.rpartition(_SIGNATURE)[0] + b"}"
    if hmac.compare_digest(sign(secret, name, data), signed):
        return data
    return None


def size(path: str) -> int:
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


def _temporary(path: str, data: bytes, *, durable: bool) -> str:
    temporary = f"{path}.{os.getpid()}.tmp"
    # Never through a link that is planted under this name.
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
    """Do something to the disk, again and again while it is in trouble; False if given up."""
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
