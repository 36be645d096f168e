"""What a YAML or TOML file says, each value as its own text and with the lines it stands on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

MOST_NODES = 10_000
DEEPEST = 50


@dataclass(frozen=True)
class Problem:
    """What is wrong on a line, and what to do about it."""

    line: int
    words: str
    hint: str = ""


class Unusable(Exception):
    """A file that cannot be used, with everything that is wrong with it."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems[0].words)
        self.problems = problems


@dataclass(frozen=True)
class Node:
    """A text, nothing, a list or a mapping; in a mapping its line is that of its key.

    Numbers and words such as yes stay as they were written: what they mean is decided by who
    wants them. The size counts the node and all below it, the depth how far they go down.
    """

    line: int
    last: int
    value: "str | list[Node] | dict[str, Node] | None"
    size: int = 1
    depth: int = 0

    def at(self, line: int) -> "Node":
        return replace(self, line=line)

    def below(self, part: str | int) -> "Node | None":
        if isinstance(self.value, dict):
            return self.value.get(str(part))
        if isinstance(self.value, list) and isinstance(part, int) and part < len(self.value):
            return self.value[part]
        return None

    def nearest(self, path: Sequence[str | int]) -> "Node":
        """What stands at a path, or as near to it as there is something."""
        here = self
        for part in path:
            inner = here.below(part)
            if inner is None:
                break
            here = inner
        return here


def kind(value: Any) -> str:
    """What a value of a file is, in a word."""
    names = {dict: "a mapping", list: "a list", str: "text", type(None): "nothing"}
    return names.get(type(value), "a value")
