"""The daemon's log, which must not fill the disk."""

import fcntl
import os
from pathlib import Path

from kapelle.home import write_private

_MOST_BYTES = 20_000_000
_KEPT_BYTES = 2_000_000


def shorten(log: Path) -> bool:
    """Move the end of a log that grew too large to <log>.1 and empty it; whether it was done.

    Only a log that is this process's own stderr is touched.
    """
    try:
        named, own = log.stat(), os.fstat(2)
        # A writer that does not append would go on at its old place, after a hole.
        appends = fcntl.fcntl(2, fcntl.F_GETFL) & os.O_APPEND
    except OSError:
        return False
    if not os.path.samestat(named, own) or not appends or named.st_size <= _MOST_BYTES:
        return False
    with log.open("r+b") as stream:
        stream.seek(-_KEPT_BYTES, os.SEEK_END)
        tail = stream.read()
        write_private(log.with_name(f"{log.name}.1"), tail[tail.find(b"\n") + 1 :])
        stream.truncate(0)
    return True
