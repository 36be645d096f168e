"""The daemon's end of a terminal: send input to the supervisor of its process."""

import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from kapelle.runner.shim import files
from kapelle.runner.shim.terminal import LARGEST, RESIZE, TYPE, make_message


def has_begun(process_dir: Path) -> bool:
    """Tell whether the process has, or had, a terminal that accepts input."""
    return (process_dir / files.INPUT).is_fifo()


def is_open(process_dir: Path) -> bool:
    """Tell whether the terminal accepts input now."""
    return has_begun(process_dir) and not (process_dir / files.EXIT).exists()


def make_input_messages(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Split typed bytes into messages."""
    return ((TYPE, data[at : at + LARGEST]) for at in range(0, len(data), LARGEST))


def make_resize_message(rows: int, columns: int) -> tuple[bytes, bytes]:
    """Return the message that changes the size of the terminal."""
    return RESIZE, struct.pack("!HH", rows, columns)


def send(process_dir: Path, secret: bytes, kind: bytes, data: bytes) -> bool:
    """Send a message; return False while its pipe is full.

    A message to a terminal that has ended is dropped, and counts as sent.
    """
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        pipe = os.open(process_dir / files.INPUT, flags)
    except OSError:
        return True
    try:
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            # The monotonic clock continues over a restart of the daemon, and no process survives a
            # reboot.
            os.write(pipe, make_message(secret, time.monotonic_ns(), kind, data))
    except OSError as error:
        return error.errno != errno.EAGAIN
    finally:
        os.close(pipe)
    return True
