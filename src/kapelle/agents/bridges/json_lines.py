"""Runs a command and prints each JSON document of its output in one line, all else unchanged."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator

from kapelle.agents.bridges.base import Child

_LARGEST = 1 << 26
_OPENS = re.compile(rb'\{\s*(?:"|$)|\[\s*(?:[\[{]|$)')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


def main() -> None:
    """The command is what follows our own name."""
    with Child(sys.argv[1:], os.environ) as child:
        for line in joined(child.lines()):
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
        child.end_likewise()


def joined(lines: Iterable[bytes], largest: int = _LARGEST) -> Iterator[bytes]:
    """Lines in which a document that took several takes one; one that never ends is left alone."""
    held: list[bytes] = []
    depth = size = 0
    for line in lines:
        if held and _is_whole(line):
            # Nothing inside a document stands alone like this: what was held is none.
            yield from held
            held, depth, size = [], 0, 0
        if not held and (not _OPENS.match(line) or _is_whole(line)):
            yield line
            continue
        held.append(line)
        depth, size = depth + _depth(line), size + len(line)
        if depth <= 0 or size > largest:
            is_one = _is_json(b"\n".join(held))
            yield from [b" ".join(line.strip() for line in held)] if is_one else held
            held, depth, size = [], 0, 0
    yield from held


def _depth(line: bytes) -> int:
    """By how much this line goes deeper; no string of JSON contains the end of a line."""
    bare = _STRING.sub(b"", line)
    return sum(step * bare.count(letter.encode()) for letter, step in _STEPS.items())


def _is_whole(line: bytes) -> bool:
    looks_so = line.startswith((b'{"', b"[{")) and line.rstrip().endswith((b"}", b"]"))
    return looks_so and _is_json(line)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


if __name__ == "__main__":
    main()
