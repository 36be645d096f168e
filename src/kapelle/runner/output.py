"""Reading logs by byte offset, never as a whole."""

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kapelle.runner.pack import open_file
from kapelle.runner.shim.files import ERR, OUT

_BLOCK = 1 << 20
MAX_LINE = 8 << 20
# No log is larger, and file systems refuse offsets that no file can have.
FARTHEST = 10**13


def read(path: Path, offset: int, limit: int) -> bytes:
    """At most limit bytes from an offset on; nothing if the log is missing or shorter."""
    with open_file(path) or io.BytesIO() as file:
        try:
            file.seek(offset)
        except (OverflowError, OSError):
            return b""  # no file is that long
        return file.read(limit)


def find(path: Path, text: str, offset: int, limit: int) -> tuple[list[int], int | None]:
    """Where a text stands in a log from an offset on, in capitals or not, and where to look on."""
    wanted = re.compile(re.escape(text.encode("utf-8")), re.IGNORECASE)
    found: list[int] = []
    while block := read(path, offset, _BLOCK):
        for match in wanted.finditer(block):
            found.append(offset + match.start())
            if len(found) == limit:
                return found, offset + match.end()
        if len(block) < _BLOCK:
            break
        # What the end of a block cuts is whole in the next one.
        offset += _BLOCK - len(text.encode("utf-8")) + 1
    return found, None


def tail_offset(path: Path, lines: int, until: int | None = None, first: bytes = b"") -> int:
    """Where the last lines of a log, or of what is before an offset, begin; an unterminated last
    line counts as one. With first, only lines that begin with one of these bytes count."""
    with open_file(path) or io.BytesIO() as file:
        begin = end = min(file.seek(0, os.SEEK_END), FARTHEST if until is None else until)
        if lines <= 0:
            return end
        file.seek(max(0, end - 1))
        wanted = lines + (file.read(1) == b"\n")
        block = b""
        while begin > 0:
            at = min(begin, _BLOCK)
            begin -= at
            file.seek(begin)
            block = file.read(at) + block[:1]
            while (at := block.rfind(b"\n", 0, at)) != -1:
                wanted -= not first or block[at + 1 : at + 2] in first
                if wanted == 0:
                    return begin + at + 1
    return 0


def tail_text(path: Path, max_bytes: int) -> str:
    """The end of a log as text, from the beginning of a line if there is one in reach."""
    end = tail_offset(path, 0)
    # One byte more shows whether the tail happens to begin with a line.
    data = read(path, max(0, end - max_bytes - 1), min(end, max_bytes + 1))
    if end > max_bytes:
        _, newline, rest = data.partition(b"\n")
        data = rest if newline and rest else data[1:]
    return data.decode("utf-8", "replace")


def both_streams(process_dir: Path, max_bytes: int) -> str:
    """What a command printed on both of its streams, the end of each."""
    texts = [tail_text(process_dir / name, max_bytes) for name in (OUT, ERR)]
    return "\n".join(text.rstrip("\n") for text in texts if text.strip())


class LogLine(NamedTuple):
    """One line of a log as text, without its newline, and the offset behind it."""

    text: str
    end: int


class LogReader:
    """The lines of a growing log, each once it is complete; in bounded memory.

    What exceeds the limit of a line is left out. A reader that begins at the `end` of a line goes
    on behind it; one with `until` reads no further.
    """

    def __init__(
        self, path: Path, offset: int = 0, max_line: int = MAX_LINE, until: int = FARTHEST
    ) -> None:
        self._path = path
        self._position = offset
        self._until = until
        self._max_line = max_line
        self._begun = bytearray()

    def lines(self, *, ended: bool = False) -> list[LogLine]:
        """The next lines, or nothing yet; once the log has ended, an unterminated one as well."""
        found: list[LogLine] = []
        while not found and (block := self._block()):
            *whole, rest = block.split(b"\n")
            for piece in whole:
                self._add(piece)
                self._position += 1
                found.append(self._take())
            self._add(rest)
        if not found and ended and self._begun:
            found.append(self._take())
        return found

    def _block(self) -> bytes:
        return read(self._path, self._position, max(0, min(_BLOCK, self._until - self._position)))

    def _add(self, piece: bytes) -> None:
        self._position += len(piece)
        self._begun += piece[: self._max_line - len(self._begun)]

    def _take(self) -> LogLine:
        line = LogLine(self._begun.decode("utf-8", "replace"), self._position)
        self._begun.clear()
        return line


def lines_of(path: Path, last_bytes: int | None = None) -> Iterator[str]:
    """A log's lines as text, or those in its last bytes; nothing if it is missing."""
    if last_bytes is None:
        begin = 0
    else:
        begin = max(0, tail_offset(path, 0) - last_bytes)
    reader = LogReader(path, begin)
    while lines := reader.lines(ended=True):
        yield from (line.text for line in lines)
