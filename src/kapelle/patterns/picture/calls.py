"""What expressions do: steps of the context, and functions of the pattern that are followed."""

import ast
import inspect
from dataclasses import replace
from types import FunctionType
from typing import Any

from kapelle.patterns.picture.flow import Block, Body, Loop, Node, Together
from kapelle.patterns.picture.frame import Frame, choice
from kapelle.patterns.picture.naming import note_of, step
from kapelle.patterns.picture.scope import (
    Code,
    ContextMethod,
    FunctionNode,
    Instance,
    Later,
    Local,
    Method,
    Scope,
    TheContext,
    TheSpec,
    Words,
    arguments,
    node_of,
)
from kapelle.patterns.picture.wording import asked_again, label, one_of, times


def expression(found: ast.expr, frame: Frame) -> list[Node]:
    """What an expression does, in the order in which that happens."""
    match found:
        case ast.Await(value=ast.Call() as call):
            return awaited(call, frame)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            first = found.generators[0]
            nodes = expression(found.elt, frame.with_names(target(first.target, first.iter, frame)))
            head = times(first.target, first.iter, frame.scope)
            return [Loop(head, tuple(nodes))] if nodes else []
        case ast.IfExp(test=test, body=body, orelse=other):
            ways = choice(test, frame, expression(body, frame), expression(other, frame))
            return expression(test, frame) + ways
        case ast.Lambda():
            return []
    children = (
        child.value if isinstance(child, ast.keyword) else child
        for child in ast.iter_child_nodes(found)
    )
    return [node for child in children if isinstance(child, ast.expr)
            for node in expression(child, frame)]  # fmt: skip


def target(one: ast.expr, iterated: ast.expr, frame: Frame) -> dict[str, Any]:
    """The name of a loop for the one that it is at."""
    if not isinstance(one, ast.Name):
        return {}
    return {one.id: Words(asked_again(iterated) or f"«{one_of(one, iterated, frame.scope)}»")}


def awaited(call: ast.Call, frame: Frame) -> list[Node]:
    """A call that is waited for: a step, or a function of the pattern to follow."""
    found = frame.scope.resolve(call.func)
    if found == ContextMethod("gather"):
        return _gather(call, frame)
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    before = [node for item in given for node in expression(item, frame)]
    if isinstance(found, ContextMethod):
        made = step(found.name, call, frame.scope)
        return [*before, made] if made else before
    if isinstance(found, FunctionType | Method | Local):
        return before + _followed(found, call, frame)
    return before


def _followed(code: Code, call: ast.Call, frame: Frame) -> list[Node]:
    """What a function of the pattern does; of one that calls itself, the first round."""
    if not _belongs(code, frame):
        return []
    node = node_of(code)
    if node.name in frame.stack:
        return []
    names = _parameters(node, call, frame.scope)
    nodes = frame.enter(node, frame.inside(_scope_of(code, names, frame), node))
    return [Block(tuple(nodes), note_of(code))] if nodes else []


def _belongs(code: Code, frame: Frame) -> bool:
    if isinstance(code, Local):
        return True
    function = inspect.unwrap(code.function if isinstance(code, Method) else code)
    return frame.scope.follows(function) and function.__name__ != "<lambda>"


def _scope_of(code: Code, names: dict[str, Any], frame: Frame) -> Scope:
    if isinstance(code, Local):
        return code.scope.with_names(names)
    own = {"self": code.instance} if isinstance(code, Method) else {}
    function = code.function if isinstance(code, Method) else code
    outside = inspect.unwrap(function).__globals__
    return Scope(outside, frame.scope.follows, {**own, **names})


def _parameters(node: FunctionNode, call: ast.Call, scope: Scope) -> dict[str, Any]:
    """What a function's parameters stand for in a call of it."""
    bound: dict[str, Any] = {}
    for name, given in arguments(node, call).items():
        found = scope.resolve(given)
        of_interest = isinstance(found, TheContext | TheSpec | Instance | Local | Later | Words)
        bound[name] = found if of_interest else Words(label(given, scope))
    return bound


def _gather(call: ast.Call, frame: Frame) -> list[Node]:
    branches: list[Body] = []
    each = None
    for item in call.args:
        value = item.value if isinstance(item, ast.Starred) else item
        inside = frame
        if isinstance(later := frame.scope.resolve(value), Later):
            value, inside = later.expression, replace(frame, scope=later.scope)
        match value:
            case (
                ast.GeneratorExp(elt=one, generators=[first, *_])
                | ast.ListComp(elt=one, generators=[first, *_])
            ):
                each = one_of(first.target, first.iter, inside.scope)
                named = inside.with_names(target(first.target, first.iter, inside))
                branches.append(_branch(one, named))
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                branches += [_branch(part, inside) for part in parts]
            case _:
                branches.append(_branch(value, inside))
    busy = tuple(branch for branch in branches if branch)
    if not busy:
        return []
    return [Together(busy, each if len(busy) == 1 else None)]


def _branch(value: ast.expr, frame: Frame) -> Body:
    return tuple(awaited(value, frame) if isinstance(value, ast.Call) else expression(value, frame))
