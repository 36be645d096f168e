"""Conditions of a pattern's source in words, and their opposites."""

import ast
import re

from kapelle.patterns.picture.scope import Later, Scope
from kapelle.patterns.picture.wording import SIGNS, humanised, words

_OPPOSITE = {"is": "is not", "<": "≥", ">": "≤", "in": "not in"}
_OPPOSITE |= {opposite: sign for sign, opposite in _OPPOSITE.items()}
_LONG = 50


def condition(test: ast.expr, scope: Scope, holds: bool = True) -> str:
    """When something is done; or with holds false, when this is not so."""
    match test:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            text = _condition(test, scope, holds)
            if "«" in text:
                return text
            return f"there is {text}" if text.startswith("no ") else f"there is a {text}"
    return _condition(test, scope, holds)


def _condition(test: ast.expr, scope: Scope, holds: bool) -> str:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _condition(inner, scope, not holds)
        case ast.NamedExpr(value=inner) | ast.Await(value=inner):
            return _condition(inner, scope, holds)
        case ast.BoolOp(op=op, values=values):
            joint = " and " if isinstance(op, ast.And) == holds else " or "
            parts = [_condition(value, scope, holds) for value in values]
            return _shortened(_needed(parts), joint)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compared(left, op, right, scope, holds)
    text = words(test, scope)
    if not holds and isinstance(test, ast.Name) and isinstance(scope.names.get(test.id), Later):
        return _negated(text) if (text := humanised(test.id)).endswith("s") else f"nothing {text}"
    return text if holds else _negated(text)


def _needed(parts: list[str]) -> list[str]:
    """Without what another part says as well: "limit and number > limit"."""
    return [
        part
        for part in parts
        if not any(
            part != other and re.search(rf"[<>≤≥] {re.escape(part)}$", other) for other in parts
        )
    ] or parts


def _shortened(parts: list[str], joint: str) -> str:
    """All parts if they fit, else the first ones."""
    while len(parts) > 1 and len(joint.join(parts)) > _LONG:
        parts = [*parts[:-2], "…"] if parts[-1] == "…" else [*parts[:-1], "…"]
    return joint.join(parts).replace(f"{joint}…", " …")


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr, scope: Scope, holds: bool) -> str:
    text = words(left, scope)
    if isinstance(right, ast.Constant) and right.value is None:
        return text if isinstance(op, ast.IsNot) == holds else f"no {text}"
    sign = SIGNS.get(type(op), "?")
    return f"{text} {sign if holds else _OPPOSITE.get(sign, sign)} {words(right, scope)}"


def _negated(text: str) -> str:
    if text == "in a git worktree":
        return "in place"
    for verb in ("is", "has", "can"):
        if f" {verb} " in f" {text}":
            return re.sub(rf"(^| ){verb} ", rf"\1{verb} not ", text, count=1)
    if text.startswith("«"):
        return f"not {text}"
    first, space, last = text.rpartition(" ")
    if space:
        return f"{first} not {last}"
    return f"no {text}" if text.endswith(("s", "ia")) else f"not {text}"
