"""Where the reader of a source is, and what it brings back."""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kapelle.patterns.picture.conditions import condition
from kapelle.patterns.picture.facts import Facts, learned
from kapelle.patterns.picture.flow import OTHERWISE, Choice, Node, Way
from kapelle.patterns.picture.scope import FunctionNode, Scope

Leaves = Literal["return", "raise", "break", "continue"]


@dataclass(frozen=True)
class Frame:
    """In which function, knowing what, inside which loop; enter reads a function's statements."""

    scope: Scope
    enter: "Callable[[FunctionNode, Frame], list[Node]]"
    facts: Facts = field(default_factory=dict)
    until: list[str] | None = None
    caught: bool = False
    is_async: bool = True
    stack: tuple[str, ...] = ()

    def knowing(self, test: ast.expr, holds: bool) -> "Frame":
        return replace(self, facts=learned(test, holds, self.scope, self.facts))

    def with_names(self, names: dict[str, Any]) -> "Frame":
        return replace(self, scope=self.scope.with_names(names))

    def inside(self, scope: Scope, node: FunctionNode) -> "Frame":
        """A function that this one calls."""
        is_async = isinstance(node, ast.AsyncFunctionDef)
        stack = (*self.stack, node.name)
        return Frame(scope, self.enter, self.facts, None, self.caught, is_async, stack)


@dataclass(frozen=True)
class Read:
    """What some statements do, and how they are left if not at their end."""

    nodes: list[Node]
    leaves: Leaves | None = None


def choice(test: ast.expr, frame: Frame, yes: list[Node], no: list[Node]) -> list[Node]:
    """The ways behind a condition that do something."""
    ways = []
    if yes:
        ways.append(Way(condition(test, frame.scope), tuple(yes)))
    if no:
        said = OTHERWISE if ways else condition(test, frame.scope, holds=False)
        ways.append(Way(said, tuple(no)))
    return [Choice(tuple(ways))] if ways else []
