"""What the names in a pattern's source stand for, as far as a picture needs to know."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from types import FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True)
class TheContext:
    """The context of the run."""


@dataclass(frozen=True)
class TheSpec:
    """What the run was asked for; it never changes."""


@dataclass(frozen=True)
class Words:
    """Something else, in words; what is not a fixed text stands in «»."""

    text: str


@dataclass(frozen=True)
class ContextMethod:
    name: str


@dataclass(frozen=True)
class Later:
    """An expression that is looked at where it is used."""

    expression: ast.expr
    scope: "Scope"


@dataclass(frozen=True)
class Local:
    """A function defined inside another."""

    node: "FunctionNode"
    scope: "Scope"


@dataclass(frozen=True)
class Instance:
    """An object of a class of the pattern, and the call that made it."""

    made_from: type
    call: ast.Call
    scope: "Scope"


@dataclass(frozen=True)
class Method:
    function: FunctionType
    instance: Instance


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Code = FunctionType | Method | Local
Follows = Callable[[Any], bool]


@dataclass(frozen=True)
class Scope:
    """Names inside one function, and which code belongs to the pattern."""

    outside: dict[str, Any]
    follows: Follows
    names: dict[str, Any] = field(default_factory=dict)

    def with_names(self, names: dict[str, Any]) -> "Scope":
        return Scope(self.outside, self.follows, {**self.names, **names})

    def resolve(self, expression: ast.expr) -> Any:
        """What an expression stands for, None when that does not matter."""
        match expression:
            case ast.Name(id=name):
                return self.names[name] if name in self.names else self.outside.get(name)
            case ast.Attribute(value=value, attr=name):
                return _attribute(self.resolve(value), name)
            case ast.Call(func=function):
                made = self.resolve(function)
                if isinstance(made, type) and self.follows(made):
                    return Instance(made, expression, self)
        return None


def _attribute(owner: Any, name: str) -> Any:
    if isinstance(owner, TheContext):
        return ContextMethod(name)
    if isinstance(owner, ModuleType):
        return getattr(owner, name, None)
    if isinstance(owner, Instance):
        found = inspect.getattr_static(owner.made_from, name, None)
        return Method(found, owner) if isinstance(found, FunctionType) else _kept(owner, name)
    return None


def _kept(owner: Instance, name: str) -> Any:
    """What an object was given and has kept under this name: self.name = parameter."""
    if is_dataclass(owner.made_from):
        names = [item.name for item in fields(owner.made_from)]
        given = dict(zip(names, owner.call.args, strict=False))
        given |= {item.arg: item.value for item in owner.call.keywords if item.arg}
        return owner.scope.resolve(given[name]) if name in given else None
    begin = inspect.getattr_static(owner.made_from, "__init__", None)
    if not isinstance(begin, FunctionType):
        return None
    node = node_of(begin)
    given = arguments(node, owner.call)
    for statement in ast.walk(node):
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=kept)],
                value=ast.Name(id=parameter),
            ) if kept == name and parameter in given:
                return owner.scope.resolve(given[parameter])
    return None


def node_of(code: Code) -> FunctionNode:
    """The source of a function, parsed."""
    if isinstance(code, Local):
        return code.node
    function = code.function if isinstance(code, Method) else code
    parsed = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(parsed, ast.FunctionDef | ast.AsyncFunctionDef)
    return parsed


def arguments(node: FunctionNode, call: ast.Call) -> dict[str, ast.expr]:
    """What a call gives to each parameter."""
    names = [item.arg for item in (*node.args.posonlyargs, *node.args.args) if item.arg != "self"]
    plain = [item for item in call.args if not isinstance(item, ast.Starred)]
    given = dict(zip(names, plain, strict=False))
    return given | {item.arg: item.value for item in call.keywords if item.arg}
