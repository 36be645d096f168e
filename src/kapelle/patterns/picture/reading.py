"""Reads the flow of a pattern out of its source, statement by statement."""

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from kapelle.patterns.picture import facts
from kapelle.patterns.picture.calls import awaited, expression, target
from kapelle.patterns.picture.conditions import condition
from kapelle.patterns.picture.flow import OTHERWISE, Body, Choice, Loop, Node, Step, Way
from kapelle.patterns.picture.frame import Frame, Read, choice
from kapelle.patterns.picture.scope import (
    FunctionNode,
    Instance,
    Later,
    Local,
    Scope,
    TheContext,
    TheSpec,
    Words,
    node_of,
)
from kapelle.patterns.picture.wording import asked_again, label, times, words

_CATCHING = frozenset({"Failed", "Exception", "BaseException"})


def read(function: Callable[..., Any], follows: Callable[[Any], bool]) -> Body:
    """The flow of a pattern; its first parameter is the context, its second the specification."""
    function = inspect.unwrap(function)
    assert isinstance(function, FunctionType)
    node = node_of(function)
    parameters = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
    names = dict(zip(parameters, (TheContext(), TheSpec()), strict=False))
    scope = Scope(function.__globals__, follows, names)
    return tuple(_whole(node, Frame(scope, _whole, stack=(node.name,))))


def _whole(node: FunctionNode, frame: Frame) -> list[Node]:
    """All that a function does; where it ends by failing, that is said."""
    done = _block(node.body, frame)
    falls = done.leaves == "raise" and not frame.caught
    # Only after a loop that is left by success is it clear when this happens.
    if falls and done.nodes and isinstance(done.nodes[-1], Loop):
        return [*done.nodes, Step("end", "otherwise it fails")]
    return done.nodes


def _block(body: Sequence[ast.stmt], frame: Frame) -> Read:
    """Statements in their order, up to one that leaves them."""
    found: list[Node] = []
    for index, statement in enumerate(body):
        if isinstance(statement, ast.If):
            done = _if(statement, body[index + 1 :], frame)
            return Read(found + done.nodes, done.leaves)
        done = _statement(statement, frame)
        found += done.nodes
        if done.leaves is not None:
            return Read(found, done.leaves)
    return Read(found)


def _if(statement: ast.If, rest: Sequence[ast.stmt], frame: Frame) -> Read:
    """A branch and what comes after it, which may depend on how the branch is left."""
    test = statement.test
    before = expression(test, frame)
    holds = facts.truth(test, frame.scope, frame.facts)
    if holds is not None:
        chosen = statement.body if holds else statement.orelse
        after = _block([*chosen, *rest], frame)
        return Read(before + after.nodes, after.leaves)
    then, other = frame.knowing(test, True), frame.knowing(test, False)
    yes, no = _block(statement.body, then), _block(statement.orelse, other)
    if yes.leaves == "raise" and not yes.nodes:
        said = f"fails if {condition(test, frame.scope)}"
        failing: list[Node] = [] if frame.caught else [Step("end", said)]
        after = _block([*statement.orelse, *rest], other)
        return Read([*before, *failing, *after.nodes], after.leaves)
    if yes.leaves in {"return", "break"} and frame.until is not None and not no.leaves:
        frame.until.append(condition(test, frame.scope))
        after = _block(rest, other)
        ways = choice(test, frame, yes.nodes, no.nodes)
        return Read([*before, *ways, *after.nodes], after.leaves)
    after = Read([])
    if yes.leaves and not no.leaves:
        no = after = _block([*statement.orelse, *rest], other)
        after = Read([], after.leaves)
    elif no.leaves and not yes.leaves:
        yes = after = _block([*statement.body, *rest], then)
        after = Read([], after.leaves)
    else:
        after = Read([], yes.leaves) if yes.leaves else _block(rest, frame)
    return Read([*before, *choice(test, frame, yes.nodes, no.nodes), *after.nodes], after.leaves)


def _statement(statement: ast.stmt, frame: Frame) -> Read:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            frame.scope.names[statement.name] = Local(statement, frame.scope)
            return Read([])
        case ast.Return(value=value):
            return Read(_returned(value, frame), "return")
        case ast.Raise(exc=error):
            return Read([], "return" if _is_bug(error) else "raise")
        case ast.Break():
            return Read([], "break")
        case ast.Continue():
            return Read([], "continue")
        case ast.For() | ast.AsyncFor() | ast.While():
            return Read(_loop(statement, frame))
        case ast.Try():
            return _try(statement, frame)
        case ast.With() | ast.AsyncWith():
            inside = _block(statement.body, frame)
            entered = [
                node for item in statement.items for node in expression(item.context_expr, frame)
            ]
            return Read(entered + inside.nodes, inside.leaves)
        case ast.Match():
            return Read(_match(statement, frame))
    children = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]
    found = [node for child in children for node in expression(child, frame)]
    _remember(statement, frame)
    return Read(found)


def _returned(value: ast.expr | None, frame: Frame) -> list[Node]:
    if value is None:
        return []
    # What a plain function returns is awaited by whoever called it.
    if not frame.is_async and isinstance(value, ast.Call):
        return awaited(value, frame)
    return expression(value, frame)


def _is_bug(error: ast.expr | None) -> bool:
    """Whether what is raised says only that this place is never reached."""
    name = error.func if isinstance(error, ast.Call) else error
    return isinstance(name, ast.Name) and name.id == "AssertionError"


def _remember(statement: ast.stmt, frame: Frame) -> None:
    """Bind a local name whose meaning a label or a call may need later."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            names, made = frame.scope.names, frame.scope.resolve(value)
            names.pop(name, None)
            if isinstance(value, ast.Constant | ast.JoinedStr):
                names[name] = Words(label(value, frame.scope))
            elif isinstance(value, ast.ListComp | ast.GeneratorExp):
                names[name] = Later(value, frame.scope)
            elif isinstance(made, Instance | TheContext | TheSpec):
                names[name] = made


def _loop(statement: ast.For | ast.AsyncFor | ast.While, frame: Frame) -> list[Node]:
    until: list[str] = []
    inside = replace(frame, until=until)
    before: list[Node] = []
    each: list[Node] = []
    if isinstance(statement, ast.While):
        each = expression(statement.test, frame)
        endless = isinstance(statement.test, ast.Constant)
        head = "again and again" if endless else f"while {condition(statement.test, frame.scope)}"
    else:
        before = expression(statement.iter, frame)
        inside = inside.with_names(target(statement.target, statement.iter, frame))
        head = times(statement.target, statement.iter, frame.scope)
    nodes = each + _block(statement.body, inside).nodes
    if not nodes or (isinstance(statement, ast.For) and asked_again(statement.iter)):
        return before + nodes
    head += f", until {' or '.join(dict.fromkeys(until))}" if until else ""
    return [*before, Loop(head, tuple(nodes)), *_block(statement.orelse, frame).nodes]


def _try(statement: ast.Try, frame: Frame) -> Read:
    catches = any(_catches(handler) for handler in statement.handlers)
    body = _block(statement.body, replace(frame, caught=frame.caught or catches))
    ways = []
    for handler in statement.handlers:
        kind = words(handler.type, frame.scope) if handler.type else "anything"
        done = _block(handler.body, replace(frame, caught=True))
        if done.nodes:
            ways.append(Way(f"it raises {kind}", tuple(done.nodes)))
    nodes = body.nodes + ([Choice(tuple(ways))] if ways else [])
    for part in (statement.orelse, statement.finalbody):
        nodes += _block(part, frame).nodes
    return Read(nodes, None if statement.handlers else body.leaves)


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in _CATCHING for kind in kinds)


def _match(statement: ast.Match, frame: Frame) -> list[Node]:
    subject = words(statement.subject, frame.scope)
    ways = []
    for case in statement.cases:
        if nodes := _block(case.body, frame).nodes:
            text = ast.unparse(case.pattern)
            ways.append(Way(OTHERWISE if text == "_" else f"{subject} is {text}", tuple(nodes)))
    return expression(statement.subject, frame) + ([Choice(tuple(ways))] if ways else [])
