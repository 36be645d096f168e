"""One output pipe of the agent and its log; standard library only."""

import errno
import hashlib
import os

from .files import DISK_TROUBLE, RETRY_S, open_regular
from .redactor import Redactor

_CHUNK = 65536
# More than a pipe holds. Bytes beyond this, after the tree is dead, come from a foreign process.
_LAST_BYTES = 64 << 20


class PipeStream:
    """Moves bytes from a pipe to a log; stops reading while the disk refuses them."""

    def __init__(self, pipe: int, log: int, redactor: Redactor) -> None:
        os.set_blocking(pipe, False)
        self.pipe = pipe
        self.log = log
        self.written = 0
        self.digest = hashlib.sha256()
        self.retry_at: float | None = None
        self._redactor = redactor
        self._pending = b""
        self._open = True
        self._last_bytes: int | None = None

    @property
    def is_readable(self) -> bool:
        """Tell whether the pipe is to be read."""
        return self._open and not self._pending

    @property
    def is_finished(self) -> bool:
        """Tell whether everything is read and written."""
        return not self._open and not self._pending

    def pump(self, now: float) -> None:
        """Move one chunk, or the rest of the last one."""
        if self._pending:
            self._write(now)
        elif self._open:
            self._read()
            self._write(now)

    def drain(self, now: float) -> None:
        """Move what is left in the pipe, once the process tree is dead."""
        if self._last_bytes is None:
            self._last_bytes = _LAST_BYTES
        while self.is_readable:
            self.pump(now)
        if self._pending and self.retry_at is not None and now >= self.retry_at:
            self._write(now)

    def sync(self) -> str | None:
        """Force the log to the disk; return what failed, if anything."""
        try:
            if self.written:
                os.fsync(self.log)
        except OSError as error:
            # Not repeated: a second fsync may succeed although the bytes are lost.
            return f"durability_unknown: {error.strerror}"
        return None

    def is_intact(self, path: str) -> bool:
        """Tell whether the log at this path holds exactly the bytes written to it."""
        file = open_regular(path)
        if file is None:
            return False
        try:
            # The agent may have put another file in the place of the log.
            if not os.path.sameopenfile(file, self.log):
                return False
            if os.fstat(file).st_size != self.written:
                return False
            digest = hashlib.sha256()
            while chunk := os.read(file, _CHUNK):
                digest.update(chunk)
            return digest.digest() == self.digest.digest()
        finally:
            os.close(file)

    def _read(self) -> None:
        try:
            chunk = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            if self._last_bytes is not None:
                self._end()
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            chunk = b""  # EIO is the end of a terminal
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
            self.digest.update(self._pending[:count])
            self._pending = self._pending[count:]
