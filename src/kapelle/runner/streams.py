"""One output pipe of the agent, its redaction and its log; standard library only."""

import os

from .redactor import Redactor
from .rundir import DISK_TROUBLE, RETRY_S

_CHUNK = 65536
# More than a pipe holds: what comes after that, once the tree is dead, is from somebody else.
_LAST_BYTES = 64 << 20


class Stream:
    """Moves bytes from a pipe to a log, and stops reading while the disk refuses them."""

    def __init__(self, pipe: int, log: int, redactor: Redactor) -> None:
        os.set_blocking(pipe, False)
        self.pipe = pipe
        self.log = log
        self.written = 0
        self.retry_at: float | None = None
        self._redactor = redactor
        self._pending = b""
        self._open = True
        self._last_bytes: int | None = None

    @property
    def readable(self) -> bool:
        return self._open and not self._pending

    @property
    def finished(self) -> bool:
        return not self._open and not self._pending

    def pump(self, now: float) -> None:
        """Move one chunk, or what is left of the last one."""
        if self._pending:
            self._write(now)
        elif self._open:
            self._read()
            self._write(now)

    def drain(self, now: float) -> None:
        """Move what is left in the pipe, now that nobody we know writes to it."""
        if self._last_bytes is None:
            self._last_bytes = _LAST_BYTES
        while self.readable:
            self.pump(now)
        if self._pending and self.retry_at is not None and now >= self.retry_at:
            self._write(now)

    def sync(self) -> str | None:
        """Force the log to the disk; what went wrong, if anything."""
        try:
            if self.written:
                os.fsync(self.log)
        except OSError as error:
            # A second fsync may succeed although the bytes are gone.
            return f"durability_unknown: {error.strerror}"
        return None

    def _read(self) -> None:
        try:
            chunk = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            if self._last_bytes is not None:
                self._end()
            return
        if not chunk:
            self._end()
            return
        self._pending = self._redactor.feed(chunk)
        if self._last_bytes is not None:
            self._last_bytes -= len(chunk)
            if self._last_bytes <= 0:
                self._pending += self._redactor.flush()
                self._open = False

    def _end(self) -> None:
        self._pending = self._redactor.flush()
        self._open = False

    def _write(self, now: float) -> None:
        self.retry_at = None
        while self._pending:
            try:
                count = os.write(self.log, self._pending)
            except OSError as error:
                if error.errno not in DISK_TROUBLE:
                    raise
                self.retry_at = now + RETRY_S
                return
            self.written += count
            self._pending = self._pending[count:]
