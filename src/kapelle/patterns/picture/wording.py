"""Names and expressions of a pattern's source in words that a person understands."""

import ast
import re

from kapelle.patterns.picture.scope import (
    ContextMethod,
    Later,
    Method,
    Scope,
    TheContext,
    TheSpec,
    Words,
)

# What an object is called says little beside what it is.
_GENERIC = frozenset({"label", "title", "display_title", "name", "id", "text"})
_WRAPPERS = frozenset({"enumerate", "sorted", "reversed", "list", "tuple", "zip", "set", "iter"})
SIGNS = {
    ast.Eq: "is", ast.NotEq: "is not", ast.Lt: "<", ast.LtE: "≤", ast.Gt: ">", ast.GtE: "≥",
    ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "times", ast.Div: "/",
}  # fmt: skip
_LONGEST = 70


def label(expression: ast.expr, scope: Scope) -> str:
    """A text as far as it is fixed, with «placeholders» for the rest."""
    match expression:
        case ast.Constant(value=str(text)):
            return _first_line(text)
        case ast.JoinedStr(values=parts):
            text = "".join(_part(part, scope) for part in parts)
            # What is made of placeholders only, such as (3/7), tells nothing here.
            return _first_line(re.sub(r"\s*\((?:«[^»]*»|[\s/,])+\)", "", text))
        case ast.IfExp(body=first) | ast.BinOp(left=first, op=ast.Add()):
            return label(first, scope)
        case ast.BoolOp(values=[first, *_]) | ast.Starred(value=first):
            return label(first, scope)
        case ast.Name(id=name) if isinstance(found := scope.names.get(name), Words):
            return found.text
        case ast.Name() if isinstance(found := scope.resolve(expression), Later):
            return _placeholder(found.expression, found.scope)
    return _placeholder(expression, scope)


def _part(part: ast.expr, scope: Scope) -> str:
    if isinstance(part, ast.FormattedValue):
        found = label(part.value, scope)
        return found if "«" in found else f"«{found}»"
    return str(part.value) if isinstance(part, ast.Constant) else ""


def _placeholder(expression: ast.expr, scope: Scope) -> str:
    return f"«{_plain(words(expression, scope))}»"


def _plain(text: str) -> str:
    return re.sub("[«»]", "", text)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return first if len(first) <= _LONGEST else first[: _LONGEST - 1].rstrip() + "…"


def words(expression: ast.expr, scope: Scope) -> str:
    """What an expression is about."""
    match expression:
        case ast.Name(id=name):
            return _name(name, scope)
        case ast.Attribute(value=value, attr=attribute):
            return _attribute(value, attribute, scope)
        case ast.Constant(value=value):
            return str(value)
        case ast.Call():
            return _call(expression, scope)
        case ast.BinOp(left=left, op=op, right=right):
            sign = SIGNS.get(type(op), "…")
            return f"{words(left, scope)} {sign} {words(right, scope)}"
        case ast.Await(value=inner) | ast.Starred(value=inner) | ast.NamedExpr(value=inner):
            return words(inner, scope)
        case ast.Subscript(value=inner) | ast.BoolOp(values=[inner, *_]):
            return words(inner, scope)
        case ast.ListComp(generators=[first, *_]) | ast.GeneratorExp(generators=[first, *_]):
            return words(first.iter, scope)
    return _first_line(ast.unparse(expression))


def _name(name: str, scope: Scope) -> str:
    found = scope.names.get(name)
    if isinstance(found, Words):
        return _plain(found.text)
    if found is None and isinstance(fixed := scope.outside.get(name), int | float):
        return str(fixed)
    return humanised(name)


def _attribute(value: ast.expr, attribute: str, scope: Scope) -> str:
    owner = scope.resolve(value)
    if isinstance(owner, TheContext) and attribute == "is_git":
        return "in a git worktree"
    is_self = isinstance(value, ast.Name) and value.id in {"self", "cls"}
    if isinstance(owner, TheSpec):
        return f"«{humanised(attribute).removeprefix('display ')}»"
    if isinstance(owner, TheContext) or is_self:
        return humanised(attribute)
    if attribute in _GENERIC:
        return words(value, scope)
    if attribute == "number":
        return attribute
    return f"{words(value, scope)} {humanised(attribute)}"


def _call(call: ast.Call, scope: Scope) -> str:
    match call:
        case ast.Call(func=ast.Name(id="len"), args=[counted]):
            return f"number of {words(counted, scope)}"
        case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in _WRAPPERS:
            return words(first, scope)
        case ast.Call(func=ast.Attribute(value=value, attr="items" | "values" | "keys")):
            return words(value, scope)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    text = humanised(name)
    if text.startswith(("is ", "has ", "can ")) and call.args:
        return f"{words(call.args[0], scope)} {text}"
    found = scope.resolve(call.func)
    if isinstance(found, ContextMethod) and call.args:
        return f"{text} {words(call.args[0], scope)}"
    return f"it {text}" if isinstance(found, Method) else text


def humanised(name: str) -> str:
    """A name without its marks and units."""
    return re.sub(r"_(s|usd)$", "", name.strip("_")).replace("_", " ")


def singular(text: str) -> str:
    """One of several, where English is regular."""
    if text.endswith("ies"):
        return text[:-3] + "y"
    return text[:-1] if text.endswith("s") and not text.endswith("ss") else text


def one_of(target: ast.expr, iterated: ast.expr, scope: Scope) -> str:
    """What a loop goes over, one at a time."""
    many = _plain(words(iterated, scope))
    if many.endswith("s"):
        return singular(many)
    return words(target, scope) if isinstance(target, ast.Name) else many


def asked_again(iterated: ast.expr) -> str | None:
    """What a loop over "this" and "this (again)" does: the same step, as a query asks again."""
    match iterated:
        case ast.Tuple(elts=[ast.Constant(value=str(first)), ast.Constant(value=str(second))]):
            return first if second.startswith(f"{first} (") else None
    return None


def times(target: ast.expr, iterated: ast.expr, scope: Scope) -> str:
    """How often a loop is run through."""
    match iterated:
        case ast.Call(func=ast.Name(id="count")):
            return "again and again"
        case ast.Call(func=ast.Name(id="range"), args=[limit]):
            return f"up to {words(limit, scope)} times"
        case ast.Call(
            func=ast.Name(id="range"),
            args=[ast.Constant(value=1), ast.BinOp(left=limit, right=ast.Constant(value=1))],
        ):
            return f"up to {words(limit, scope)} times"
        case ast.Call(func=ast.Name(id="range")):
            return "several times"
    return f"for each {one_of(target, iterated, scope)}"
