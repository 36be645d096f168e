"""What is known of the specification on the way to a step: impossible ways are not drawn."""

import ast

from kapelle.patterns.picture.scope import Scope, TheContext, TheSpec

Facts = dict[str, bool]


def truth(test: ast.expr, scope: Scope, facts: Facts) -> bool | None:
    """Whether a condition holds, None when that depends."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            found = truth(inner, scope, facts)
            return None if found is None else not found
        case ast.BoolOp(op=op, values=values):
            known = [truth(value, scope, facts) for value in values]
            decisive = isinstance(op, ast.Or)
            if decisive in known:
                return decisive
            return None if None in known else not decisive
    key = _key(test, scope)
    return None if key is None else facts.get(key)


def learned(test: ast.expr, holds: bool, scope: Scope, facts: Facts) -> Facts:
    """The facts with what follows when a condition holds, or does not."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return learned(inner, not holds, scope, facts)
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == holds:
            for value in values:
                facts = learned(value, holds, scope, facts)
            return facts
    key = _key(test, scope)
    return facts if key is None else {**facts, key: holds}


def _key(test: ast.expr, scope: Scope) -> str | None:
    """A name for a condition that cannot change while the run lasts."""
    match test:
        case ast.Attribute(value=value, attr=name):
            owner = scope.resolve(value)
            if isinstance(owner, TheSpec) or (isinstance(owner, TheContext) and name == "is_git"):
                return name
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=value)]):
            found = _key(left, scope)
            return found and f"{found} {type(op).__name__} {value!r}"
    return None
