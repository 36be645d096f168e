"""One output pipe of the agent, its redaction and its log; standard library only."""

import bisect
import errno
import hashlib
import os
import re
from functools import cached_property

from .files import DISK_TROUBLE, RETRY_S, open_regular

_REPLACEMENT = b"[redacted]"
_NEEDLE_BYTES = 32
# So many bytes are rare enough in a text to be looked for.
_BEGINNING = 4
_PLAIN = re.compile(rb"[0-9A-Za-z]+")
_CHUNK = 65536
# More than a pipe holds: what comes after that, once the tree is dead, is from somebody else.
_LAST_BYTES = 64 << 20
# What a terminal or a wrapped line puts inside a secret: the ends of lines and colour codes.
_LINE_ENDS = b"\r\n"
_COLOUR = rb"\x1b\[[0-?]*[ -/]*[@-~]"
# What a wrapped line puts there where it is indented: no more than this, so that a secret is looked
# for in a bounded part of the text. Where the blanks belong to the secret they count.
_MOST_INDENT = 64
_INDENTED = rb"[\r\n](?:" + _COLOUR + rb")*[ \t]{1,%d}" % _MOST_INDENT
_INDENT = re.compile(_INDENTED)
_BROKEN = re.compile(rb"\x1b(?:\[[0-?]{0,40}[ -/]{0,4})?\Z")
_COLOURS = re.compile(_COLOUR)
# What stands between the digits where bytes are written in hexadecimal: 73:6b, 0x73, \\x73, %73.
_BETWEEN = b" \t:-,;_%\\xXuU{}&#"
_LOWER = bytes.maketrans(b"ABCDEF", b"abcdef")
_DIGITS = re.compile(rb"[0-9a-f]{12,}")
# A line that ends with fewer characters of a secret than this is passed on at once, and of a secret
# that goes on behind it only the rest is replaced.
_FEW = 6


class Redactor:
    """Replaces every pattern, the longest first, and holds back only what may still become one.

    Patterns are found across line ends, also where the next line is indented, and colour codes;
    those of hexadecimal digits alone also in upper case and with anything usual between the digits.
    """

    def __init__(self, patterns: tuple[bytes, ...], *, eager: bool = False) -> None:
        self._patterns = patterns
        self._eager = eager
        # What may still become one, and how much of its beginning was passed on all the same.
        self._held = b""
        self._passed = 0

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now that this chunk has come."""
        if not self._patterns:
            return chunk
        if self._held:
            data = self._held + chunk
        else:
            data = chunk
        return self._clean(data, self._hold_from(data, 0))

    def flush(self) -> bytes:
        """What was held back, at the end of the stream."""
        if self._held:
            return self.whole(self._held)
        return b""

    def whole(self, data: bytes) -> bytes:
        """Data without secrets, after which nothing comes."""
        return self._clean(data, len(data))

    # Each of these is made when it is first needed: by a process that prints nothing, never.
    @cached_property
    def _given(self) -> set[bytes]:
        return {pattern.translate(None, _LINE_ENDS) for pattern in self._patterns} - {b""}

    @cached_property
    def _needles(self) -> list[bytes]:
        return _needles({_bare(pattern) for pattern in self._given})

    @cached_property
    def _digits(self) -> "_Patterns":
        found = {pattern for pattern in self._given if _DIGITS.fullmatch(pattern)}
        return _Patterns(found, _LINE_ENDS + _BETWEEN, _LOWER)

    @cached_property
    def _texts(self) -> "_Patterns":
        found = {pattern for pattern in self._given if not _DIGITS.fullmatch(pattern)}
        return _Patterns(found, _LINE_ENDS)

    @cached_property
    def _indented(self) -> "_IndentedPatterns":
        found = {pattern for pattern in self._given if not _DIGITS.fullmatch(pattern)}
        return _IndentedPatterns(found, _LINE_ENDS)

    @cached_property
    def _tail(self) -> int:
        """How far from the end what may still become one can begin."""
        longest = max(map(len, self._given), default=0)
        return longest + min(7 * longest, 1 << 14)

    def _clean(self, data: bytes, hold: int) -> bytes:
        """The data without secrets up to where it is held back, or to the end of the last one."""
        clean = []
        passed = position = self._passed
        for begin, end in self._found(data):
            if begin >= hold:
                break
            if end <= passed:
                continue
            clean += [data[position:begin], _REPLACEMENT]
            position = end
            if position > hold:
                hold = self._hold_from(data, position)
        clean.append(data[position:hold])
        self._held, self._passed = data[hold:], max(0, passed - hold)
        if len(self._held) <= _FEW and (self._eager or self._held.endswith(b"\n")):
            # No line waits for the few last characters of it, nor does what somebody types, but
            # they are remembered.
            clean.append(self._held[self._passed :])
            self._passed = len(self._held)
        return b"".join(clean)

    def _found(self, data: bytes) -> list[tuple[int, int]]:
        """Where secrets are, in order and apart from each other."""
        # Most output holds no secret, and searching it for a few needles is fast.
        bare = _bare(data)
        if not any(needle in bare for needle in self._needles):
            return []
        found: list[tuple[int, int]] = []
        spans = self._texts.spans(data) + self._digits.spans(data) + self._indented.spans(data)
        for begin, end in sorted(spans):
            if found and begin < found[-1][1]:
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            else:
                found.append((begin, end))
        return found

    def _hold_from(self, data: bytes, begin: int) -> int:
        """Where the longest tail begins that may be the beginning of a secret."""
        start = max(begin, len(data) - self._tail)
        tail = data[start:]
        if broken := _BROKEN.search(tail[-48:]):
            tail = tail[: -len(broken[0])]
        begins = (self._texts.begins(tail), self._digits.begins(tail), self._indented.begins(tail))
        return start + min(begins)


def _bare(data: bytes) -> bytes:
    """What is left of the data, and of a secret in it, however it is spelled: in this form many
    spellings are the same, such as 73, 0x73 and \\u0073."""
    return _uncoloured(data).translate(_LOWER, _BETWEEN + b"0" + _LINE_ENDS)


def _uncoloured(data: bytes) -> bytes:
    if b"\x1b" in data:
        return _COLOURS.sub(b"", data)
    return data


class _PatternPositions:
    """Where the bytes that are left, when a pattern is taken out of data, stood in it."""

    def __init__(self, data: bytes, without: bytes) -> None:
        # For each piece that is left: where it begins among what is left, and where in the data.
        self._left = [0]
        self._data = [0]
        taken = 0
        for match in re.finditer(without, data):
            taken += match.end() - match.start()
            self._left.append(match.end() - taken)
            self._data.append(match.end())

    def begin(self, at: int) -> int:
        piece = bisect.bisect_right(self._left, at) - 1
        return self._data[piece] + at - self._left[piece]

    def span(self, begin: int, end: int) -> tuple[int, int]:
        return self.begin(begin), self.begin(end - 1) + 1


class _Patterns:
    """Some byte strings, looked for together, in data without what does not count inside them."""

    def __init__(self, patterns: set[bytes], ignored: bytes, table: bytes | None = None) -> None:
        self._ignored = ignored
        self._table = table
        self._without = rb"(?:" + _COLOUR + rb"|[" + re.escape(ignored) + rb"])+"
        self._patterns = sorted(patterns, key=lambda p: (-len(p), p))
        self._beginnings = {p[:n] for p in patterns for n in range(1, min(_BEGINNING, len(p)))}
        self._regex: re.Pattern[bytes] | None = None

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Where they are."""
        # Compiling takes longer than starting an agent.
        if self._regex is None:
            self._regex = re.compile(b"|".join(map(re.escape, self._patterns)) or rb"(?!)")
        found = [match.span() for match in self._regex.finditer(self._counting(data))]
        if not found:
            return []
        places = _PatternPositions(data, self._without)
        return [places.span(*span) for span in found]

    def begins(self, data: bytes) -> int:
        """Where the longest tail begins that is a proper prefix of one of them, or the end."""
        at = self._begins(self._counting(data))
        if at is None:
            return len(data)
        return _PatternPositions(data, self._without).begin(at)

    def _counting(self, data: bytes) -> bytes:
        return _uncoloured(data).translate(self._table, self._ignored)

    def _begins(self, data: bytes) -> int | None:
        end = earliest = len(data)
        for pattern in self._patterns:
            first = pattern[:_BEGINNING]
            at = max(0, end - len(pattern) + 1) - 1
            while (at := data.find(first, at + 1, earliest + _BEGINNING - 1)) != -1:
                if pattern.startswith(data[at:]):
                    earliest = at
                    break
        for at in range(max(0, end - _BEGINNING + 1), earliest):
            if data[at:] in self._beginnings:
                return at
        return earliest if earliest < end else None


class _IndentedPatterns(_Patterns):
    """Patterns across wrapped lines that are indented; data without such lines costs one look."""

    def __init__(self, patterns: set[bytes], ignored: bytes) -> None:
        super().__init__(patterns, ignored)
        one = rb"|".join((_COLOUR, _INDENTED, rb"[" + re.escape(ignored) + rb"]"))
        self._without = rb"(?:" + one + rb")+"
        self._removed = re.compile(self._without)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        return super().spans(data) if _INDENT.search(data) else []

    def begins(self, data: bytes) -> int:
        return super().begins(data) if _INDENT.search(data) else len(data)

    def _counting(self, data: bytes) -> bytes:
        return self._removed.sub(b"", data)


def _needles(patterns: set[bytes]) -> list[bytes]:
    """A few short strings, one of which is in every pattern."""
    needles: list[bytes] = []
    for pattern in sorted(patterns, key=len):
        if not any(needle in pattern for needle in needles):
            # A run of letters and digits is what the encodings of one secret share.
            plain = max(_PLAIN.findall(pattern), key=len, default=b"")
            needles.append((plain if len(plain) >= 8 else pattern)[:_NEEDLE_BYTES])
    return needles


class PipeStream:
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

    def is_intact(self, path: str) -> bool:
        """Whether the log at this path holds what was written to it, and nothing else."""
        file = open_regular(path)
        if file is None:
            return False
        try:
            # Another file may have been put in the place of the log.
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
            chunk = b""  # so ends a terminal
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
