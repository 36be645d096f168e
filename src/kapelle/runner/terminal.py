"""The daemon's end of a terminal: what people type goes to the supervisor of its process."""

import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from kapelle.runner.shim import files
from kapelle.runner.shim.terminal import LARGEST, RESIZE, TYPE, message


def is_begun(process_dir: Path) -> bool:
    """Whether there is, or was, a terminal that can be typed into."""
    return (process_dir / files.INPUT).is_fifo()


def is_open(process_dir: Path) -> bool:
    return is_begun(process_dir) and not (process_dir / files.EXIT).exists()


def typed(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What is typed, as messages."""
    return ((TYPE, data[at : at + LARGEST]) for at in range(0, len(data), LARGEST))


def resized(rows: int, columns: int) -> tuple[bytes, bytes]:
    return RESIZE, struct.pack("!HH", rows, columns)


def send(process_dir: Path, secret: bytes, kind: bytes, data: bytes) -> bool:
    """Send a message; False while its pipe is full. One to a terminal that has ended is lost."""
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        pipe = os.open(process_dir / files.INPUT, flags)
    except OSError:
        return True
    try:
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            # This clock goes on over a restart of the daemon, and no process outlives the machine.
            os.write(pipe, message(secret, time.monotonic_ns(), kind, data))
    except OSError as error:
        return error.errno != errno.EAGAIN
    finally:
        os.close(pipe)
    return True
