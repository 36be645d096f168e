"""Read logs by byte offset, never as a whole."""

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
# Larger than any log. File systems refuse offsets that no file can have.
FARTHEST = 10**13


def read(path: Path, offset: int, limit: int) -> bytes:
    """Return at most `limit` bytes from an offset; nothing if the log is missing or shorter."""
    with open_file(path) or io.BytesIO() as file:
        try:
            file.seek(offset)
        except (OverflowError, OSError):
            return b""  # the offset is larger than any file
        return file.read(limit)


def find_text(path: Path, text: str, offset: int, limit: int) -> tuple[list[int], int | None]:
    """Return the offsets of a text in a log, ignoring case, and the offset to continue from.

    The second value is None when the rest of the log holds no more matches.
    """
    pattern = re.compile(re.escape(text.encode("utf-8")), re.IGNORECASE)
    offsets: list[int] = []
    while block := read(path, offset, _BLOCK):
        for match in pattern.finditer(block):
            offsets.append(offset + match.start())
            if len(offsets) == limit:
                return offsets, offset + match.end()
        if len(block) < _BLOCK:
            break
        # A match that the end of this block cuts is whole in the next block.
        offset += _BLOCK - len(text.encode("utf-8")) + 1
    return offsets, None


def find_tail_offset(path: Path, lines: int, until: int | None = None, first: bytes = b"") -> int:
    """Return the offset at which the last lines of a log begin.

    Only the part before `until` counts, if it is given. An unterminated last line counts as a line.
    With `first`, only lines that begin with one of these bytes count.
    """
    with open_file(path) or io.BytesIO() as file:
        begin = end = min(file.seek(0, os.SEEK_END), FARTHEST if until is None else until)
        if lines <= 0:
            return end
        file.seek(max(0, end - 1))
        missing_lines = lines
        if file.read(1) == b"\n":
            # The newline at the end begins no further line.
            missing_lines += 1
        block = b""
        while begin > 0:
            at = min(begin, _BLOCK)
            begin -= at
            file.seek(begin)
            block = file.read(at) + block[:1]
            while (at := block.rfind(b"\n", 0, at)) != -1:
                if not first or block[at + 1 : at + 2] in first:
                    missing_lines -= 1
                if missing_lines == 0:
                    return begin + at + 1
    return 0


def read_tail(path: Path, max_bytes: int) -> str:
    """Return the end of a log as text, from the beginning of a line if one is in reach."""
    end = find_tail_offset(path, 0)
    # One byte more, to see whether the tail begins at the start of a line.
    data = read(path, max(0, end - max_bytes - 1), min(end, max_bytes + 1))
    if end > max_bytes:
        _, newline, rest = data.partition(b"\n")
        data = rest if newline and rest else data[1:]
    return data.decode("utf-8", "replace")


def read_both_streams(process_dir: Path, max_bytes: int) -> str:
    """Return the end of standard output and of standard error of a command."""
    texts = [read_tail(process_dir / name, max_bytes) for name in (OUT, ERR)]
    return "\n".join(text.rstrip("\n") for text in texts if text.strip())


class LogLine(NamedTuple):
    """One line of a log as text, without its newline, and the offset behind it."""

    text: str
    end: int


class LogReader:
    """Yield the lines of a growing log, each once it is complete, in bounded memory.

    A line is cut at the maximum length. A reader that starts at the `end` of a line continues
    behind it; a reader with `until` reads no further than that.
    """

    def __init__(
        self, path: Path, offset: int = 0, max_line: int = MAX_LINE, until: int = FARTHEST
    ) -> None:
        self._path = path
        self._position = offset
        self._until = until
        self._max_line = max_line
        self._unfinished_line = bytearray()

    def lines(self, *, is_complete: bool = False) -> list[LogLine]:
        """Return the next lines; nothing if no line is complete yet.

        With `is_complete`, nothing will be appended any more, so an unterminated last line counts
        too.
        """
        lines: list[LogLine] = []
        while not lines and (block := self._read_block()):
            *whole, rest = block.split(b"\n")
            for piece in whole:
                self._add_piece(piece)
                self._position += 1
                lines.append(self._take_line())
            self._add_piece(rest)
        if not lines and is_complete and self._unfinished_line:
            lines.append(self._take_line())
        return lines

    def _read_block(self) -> bytes:
        return read(self._path, self._position, max(0, min(_BLOCK, self._until - self._position)))

    def _add_piece(self, piece: bytes) -> None:
        self._position += len(piece)
        self._unfinished_line += piece[: self._max_line - len(self._unfinished_line)]

    def _take_line(self) -> LogLine:
        line = LogLine(self._unfinished_line.decode("utf-8", "replace"), self._position)
        self._unfinished_line.clear()
        return line


def read_lines(path: Path, last_bytes: int | None = None) -> Iterator[str]:
    """Yield the lines of a log as text, or those in its last bytes; none if it is missing."""
    if last_bytes is None:
        begin = 0
    else:
        begin = max(0, find_tail_offset(path, 0) - last_bytes)
    reader = LogReader(path, begin)
    while lines := reader.lines(is_complete=True):
        yield from (line.text for line in lines)
