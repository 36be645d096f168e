"""One output pipe of the agent, its redaction and its log; standard library only."""

import hashlib
import os
import re

from .files import DISK_TROUBLE, RETRY_S

_REPLACEMENT = b"[redacted]"
_NEEDLE_BYTES = 32
_PLAIN = re.compile(rb"[0-9A-Za-z]+")
_CHUNK = 65536
# More than a pipe holds: what comes after that, once the tree is dead, is from somebody else.
_LAST_BYTES = 64 << 20


class Redactor:
    """Replaces every pattern, the longest first, and holds back only what may still become one."""

    def __init__(self, patterns: tuple[bytes, ...]) -> None:
        self._patterns = sorted({p for p in patterns if p}, key=lambda p: (-len(p), p))
        self._needles = _needles(self._patterns)
        self._regex: re.Pattern[bytes] | None = None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now that this chunk has come."""
        if not self._patterns:
            return chunk
        data = self._held + chunk if self._held else chunk
        hold = self._hold_from(data, 0)
        # Searching for a few needles is several times faster than the alternation.
        if any(needle in data for needle in self._needles):
            clean, hold = self._replace(data, hold)
        else:
            clean = data[:hold]
        self._held = data[hold:]
        return clean

    def flush(self) -> bytes:
        """What was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return self._compiled().sub(_REPLACEMENT, held) if held else b""

    def _compiled(self) -> re.Pattern[bytes]:
        # Compiling takes longer than starting an agent, and most output holds no secret.
        if self._regex is None:
            self._regex = re.compile(b"|".join(re.escape(pattern) for pattern in self._patterns))
        return self._regex

    def _replace(self, data: bytes, hold: int) -> tuple[bytes, int]:
        clean = []
        position = 0
        for match in self._compiled().finditer(data):
            if match.start() >= hold:
                break
            clean += [data[position : match.start()], _REPLACEMENT]
            position = match.end()
            if position > hold:
                hold = self._hold_from(data, position)
        clean.append(data[position:hold])
        return b"".join(clean), hold

    def _hold_from(self, data: bytes, begin: int) -> int:
        """Where the longest tail begins that is a proper prefix of some pattern."""
        end = len(data)
        earliest = end
        for pattern in self._patterns:
            at = data.find(pattern[:1], max(begin, end - len(pattern) + 1), earliest)
            while at != -1:
                if pattern.startswith(data[at:]):
                    earliest = at
                    break
                at = data.find(pattern[:1], at + 1, earliest)
        return earliest


def _needles(patterns: list[bytes]) -> list[bytes]:
    """A few short strings, one of which is in every pattern."""
    needles: list[bytes] = []
    for pattern in reversed(patterns):
        if not any(needle in pattern for needle in needles):
            # A run of letters and digits is what the encodings of one secret share.
            plain = max(_PLAIN.findall(pattern), key=len, default=b"")
            needles.append((plain if len(plain) >= 8 else pattern)[:_NEEDLE_BYTES])
    return needles


class Stream:
    """Moves bytes from a pipe to a log, and stops reading while the disk refuses them."""

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
            self.digest.update(self._pending[:count])
            self._pending = self._pending[count:]
