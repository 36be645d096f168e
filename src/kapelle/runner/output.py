"""Reading logs by byte offset, never as a whole."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kapelle.runner.rundir import open_regular

_BLOCK = 65536
MAX_LINE = 8 << 20


def _open(path: Path) -> BinaryIO | None:
    file = open_regular(str(path))
    return None if file is None else os.fdopen(file, "rb")


def read(path: Path, offset: int, limit: int) -> bytes:
    """At most limit bytes from an offset on; nothing if the log is missing or shorter."""
    file = _open(path)
    if file is None:
        return b""
    with file:
        try:
            file.seek(offset)
        except (OverflowError, OSError):
            return b""  # no file is that long
        return file.read(limit)


def tail_offset(path: Path, lines: int) -> int:
    """Where the last lines of a log begin; an unterminated last line counts as one."""
    file = _open(path)
    if file is None:
        return 0
    with file:
        end = file.seek(0, os.SEEK_END)
        if lines <= 0 or end == 0:
            return end
        file.seek(end - 1)
        wanted = lines + (file.read(1) == b"\n")
        position = end
        while position > 0:
            begin = max(0, position - _BLOCK)
            file.seek(begin)
            block = file.read(position - begin)
            found = block.count(b"\n")
            if found >= wanted:
                return begin + _nth_newline_from_end(block, wanted) + 1
            wanted -= found
            position = begin
    return 0


def _nth_newline_from_end(block: bytes, number: int) -> int:
    at = len(block)
    for _ in range(number):
        at = block.rindex(b"\n", 0, at)
    return at


def tail_text(path: Path, max_bytes: int) -> str:
    """The end of a log as text, from the beginning of a line if there is one in reach."""
    file = _open(path)
    if file is None:
        return ""
    with file:
        end = file.seek(0, os.SEEK_END)
        begin = max(0, end - max_bytes)
        # One byte more shows whether the tail happens to begin with a line.
        file.seek(max(0, begin - 1))
        data = file.read(min(end, max_bytes + 1))
    if begin > 0:
        _, newline, rest = data.partition(b"\n")
        data = rest if newline and rest else data[1:]
    return data.decode("utf-8", "replace")


class Line(NamedTuple):
    """One line without its newline; a truncated one has lost what exceeded the limit."""

    data: bytes
    truncated: bool


class LineSplitter:
    """Cuts a stream into lines in bounded memory."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._begun = bytearray()
        self._truncated = False

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that this chunk completes."""
        *whole, rest = chunk.split(b"\n")
        lines = []
        for piece in whole:
            self._add(piece)
            lines.append(self._take())
        self._add(rest)
        return lines

    def flush(self) -> Line | None:
        """The last line, if it was not terminated."""
        return self._take() if self._begun or self._truncated else None

    def _add(self, piece: bytes) -> None:
        room = self._max_line - len(self._begun)
        if len(piece) > room:
            self._truncated = True
            piece = piece[:room]
        self._begun += piece

    def _take(self) -> Line:
        line = Line(bytes(self._begun), self._truncated)
        self._begun = bytearray()
        self._truncated = False
        return line


def lines_of(path: Path, last_bytes: int | None = None) -> Iterator[str]:
    """A log's lines as text, or those in its last bytes; nothing if it is missing."""
    splitter = LineSplitter()
    file = _open(path)
    if file is None:
        return
    with file:
        if last_bytes is not None:
            file.seek(max(0, path.stat().st_size - last_bytes))
        while block := file.read(_BLOCK):
            for line in splitter.feed(block):
                yield line.data.decode("utf-8", "replace")
    last = splitter.flush()
    if last is not None:
        yield last.data.decode("utf-8", "replace")
