"""Where two commits conflict, and which files still show it."""

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kapelle.workspaces.files import open_inside
from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Git, Place

_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")
_PIECE = 65_536
_TELLING = 8_000  # git takes a file for binary by the beginning alone, too


@dataclass(frozen=True)
class Merged:
    """The tree of two commits merged; where they conflict its files hold conflict markers."""

    tree: str
    conflicts: list[bytes]


async def merged_tree(git: Git, reading: Place, ours: str, theirs: str) -> Merged:
    options = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")
    output = await git.run(reading, *options, ours, theirs, ok=(0, 1), timeout_s=CONTENT_TIMEOUT_S)
    tree, *conflicts = output.fields
    return Merged(tree.decode(), conflicts if output.code == 1 else [])


def shown_path(name: bytes) -> str:
    """A path as text that can be stored and printed anywhere."""
    return name.decode("utf-8", "backslashreplace")


def marked_files(top: Path, paths: Sequence[str]) -> list[str]:
    """Those of the paths that are text files below the top and hold conflict markers."""
    return [path for path in paths if any(_is_marked(top, name) for name in _spellings(path))]


def _spellings(path: str) -> set[str]:
    """The path as it is, and with the bytes put back that shown_path wrote as text."""
    try:
        raw = _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), path)
        return {path, os.fsdecode(os.fsencode(raw))}
    except UnicodeEncodeError:
        return set()


def _is_marked(top: Path, path: str) -> bool:
    with ExitStack() as stack:
        descriptor = open_inside(stack, top, path)
        if descriptor is None:
            return False
        return _holds_markers(stack.enter_context(os.fdopen(os.dup(descriptor), "rb")))


def _holds_markers(stream: BinaryIO) -> bool:
    """Whether lines that begin, divide and end a conflict follow each other in a text file."""
    if b"\0" in stream.read(_TELLING):
        return False
    stream.seek(0)
    awaited = [b"<<<<<<< ", b"=======", b">>>>>>> "]
    at_start = True
    # In pieces: a file may hold a line of any length.
    while awaited and (piece := stream.readline(_PIECE)):
        if at_start and _is_marker(piece, awaited[0]):
            awaited.pop(0)
        at_start = piece.endswith(b"\n")
    return not awaited


def _is_marker(line: bytes, marker: bytes) -> bool:
    return line.startswith(marker) if marker.endswith(b" ") else line.rstrip(b"\r\n") == marker
