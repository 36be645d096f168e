"""The flow of a pattern as a tree: its steps, and what they are nested in."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["agent", "command", "git", "person", "wait", "run", "end"]


@dataclass(frozen=True)
class Step:
    """One call on the context; placeholders in a label stand in «», and note says why."""

    kind: Kind
    label: str
    note: str = ""


@dataclass(frozen=True)
class Block:
    """What one function does."""

    body: "Body"
    note: str = ""


@dataclass(frozen=True)
class Loop:
    head: str
    body: "Body"
    note: str = ""


@dataclass(frozen=True)
class Together:
    """Branches at the same time; with each, one branch for every one of these."""

    branches: "tuple[Body, ...]"
    each: str | None = None
    note: str = ""

    @property
    def head(self) -> str:
        return "at the same time" + (f", for each {self.each}" if self.each else "")


@dataclass(frozen=True)
class Way:
    condition: str
    body: "Body"


@dataclass(frozen=True)
class Choice:
    """One of several ways, or with a single one: this or nothing."""

    ways: tuple[Way, ...]
    note: str = ""


Node = Step | Block | Loop | Together | Choice
Body = tuple[Node, ...]

OTHERWISE = "otherwise"


def outline(body: Body, depth: int = 0) -> Iterator[str]:
    """The flow as indented lines, for those who do not see the picture."""
    indent = "  " * depth
    for node in body:
        match node:
            case Step():
                yield f"{indent}{node.kind}: {node.label}"
            case Block():
                yield f"{indent}{node.note}"
                yield from outline(node.body, depth + 1)
            case Loop():
                yield f"{indent}{node.head}:"
                yield from outline(node.body, depth + 1)
            case Together():
                yield f"{indent}{node.head}:"
                for branch in node.branches:
                    yield from outline(branch, depth + 1)
            case Choice():
                for way in node.ways:
                    said = way.condition if way.condition == OTHERWISE else f"if {way.condition}"
                    yield f"{indent}{said}:"
                    yield from outline(way.body, depth + 1)
