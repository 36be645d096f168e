"""Write down the public API: `make api` accepts a change of it, `make quick` finds one.

Public are the names of `kapelle` and of `kapelle.patterns`, the base class of agents, and REST.
docs/versions.md says what is promised of them.
"""

import enum
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, Unpack, get_args, get_origin

from docs.services import idle_services
from pydantic import BaseModel

import kapelle
from kapelle import patterns
from kapelle.agents.base import AgentAdapter
from kapelle.api.app import openapi
from kapelle.domain.errors import KapelleError
from kapelle.patterns import PatternSpec

LIST = Path(__file__).parent / "data" / "public-api.txt"
ACCEPT = (
    "The public API has changed. If that is intended: run `make api`, commit "
    "tests/data/public-api.txt and name the change in CHANGELOG.md. "
    "docs/versions.md says which changes a version may bring."
)


def describe() -> str:
    """Return the whole public API, one line for each name."""
    sections = (
        ("Python: kapelle", _describe_package()),
        ("Python: the client's parts", _describe_client()),
        ("Python: kapelle.patterns", _describe_patterns()),
        ("Python: kapelle.agents.base", _describe_object("AgentAdapter", AgentAdapter)),
        ("REST", _describe_routes()),
    )
    parts = [f"# {title}\n" + "\n".join(lines) + "\n" for title, lines in sections]
    return "\n".join(parts)


def _describe_package() -> Iterator[str]:
    names: list[str] = kapelle.__all__  # type: ignore[attr-defined]
    for name in names:
        yield from _describe_object(name, getattr(kapelle, name))


def _describe_client() -> Iterator[str]:
    """Describe what a client holds, such as `client.tasks`.

    The asyncio client has the same parts, awaited; tests/unit/client compares the two.
    """
    client = kapelle.connect("http://127.0.0.1:9", "none", start=False)
    for name, part in sorted(vars(client).items()):
        if not name.startswith("_"):
            yield from _describe_members(f"Client.{name}", type(part))


def _describe_patterns() -> Iterator[str]:
    for name in sorted(patterns.__all__):
        yield from _describe_object(name, getattr(patterns, name))


def _describe_object(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield name + _format_signature(value)
        return
    bases = [base.__name__ for base in value.__bases__ if base.__name__ in _PUBLIC_BASES]
    yield f"class {name}({', '.join(bases)})"
    if issubclass(value, enum.Enum):
        yield from (f"{name}.{member.name} = {member.value}" for member in value)
    elif issubclass(value, BaseModel):
        yield from _describe_fields(name, value)
    elif issubclass(value, KapelleError) and value is not KapelleError:
        yield f"{name}: {value.code}, HTTP {value.http_status}, exit code {value.exit_code}"
    elif value is not kapelle.AsyncClient:
        yield name + _format_signature(value)
        yield from _describe_members(name, value)


_PUBLIC_BASES = ("KapelleError", "PatternSpec")


def _describe_fields(name: str, kind: type[BaseModel]) -> Iterator[str]:
    """Describe the fields of a model that it does not share with PatternSpec."""
    is_spec = issubclass(kind, PatternSpec) and kind is not PatternSpec
    for field, about in kind.model_fields.items():
        if is_spec and field in PatternSpec.model_fields:
            continue
        default = "" if about.is_required() else " = …"
        yield f"{name}.{field}: {_format_type(about.annotation)}{default}"
    if not is_spec:
        yield from (
            f"{name}.{member}" for member in _own_members(kind) if _is_property(kind, member)
        )


def _describe_members(name: str, kind: type) -> Iterator[str]:
    """Describe the properties and methods of a class."""
    for member in _own_members(kind):
        if _is_property(kind, member):
            yield f"{name}.{member}"
        elif callable(getattr(kind, member)):
            yield f"{name}.{member}{_format_signature(getattr(kind, member))}"


def _own_members(kind: type) -> list[str]:
    """Return the public names that a class and its bases in Kapelle define."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.split(".")[0] == kapelle.__name__:
            names.update(vars(base))
    return sorted(name for name in names if not name.startswith(("_", "model_")))


def _is_property(kind: type, member: str) -> bool:
    return isinstance(inspect.getattr_static(kind, member), property)


def _format_signature(value: Any) -> str:
    """Return a signature with the types' names, without the modules in which they live."""
    signature = inspect.signature(value)
    parts: list[str] = []
    for item in signature.parameters.values():
        if item.name == "self":
            continue
        if item.kind is item.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        parts.append(_format_parameter(item))
    returned = signature.return_annotation
    answer = "" if returned is signature.empty else f" -> {_format_type(returned)}"
    return f"({', '.join(parts)}){answer}"


def _format_parameter(item: inspect.Parameter) -> str:
    if item.kind is item.VAR_KEYWORD and get_origin(item.annotation) is Unpack:
        names = get_args(item.annotation)[0].__annotations__
        return ", ".join(f"{name}=…" for name in sorted(names))
    text = item.name
    if item.kind is item.VAR_POSITIONAL:
        text = f"*{text}"
    elif item.kind is item.VAR_KEYWORD:
        text = f"**{text}"
    if item.annotation is not item.empty:
        text += f": {_format_type(item.annotation)}"
    if item.default is item.empty:
        return text
    if isinstance(item.default, str | int | float | bool | None):
        return f"{text} = {item.default!r}"
    return f"{text} = …"


def _format_type(annotation: Any) -> str:
    """Return the name of a type; constraints of pydantic are left out."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _format_type(inner[0])
    if origin is Literal:
        return " | ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " | ".join(map(_format_type, inner))
    if origin is not None:
        name = getattr(origin, "__name__", str(origin))
        return f"{name}[{', '.join(map(_format_type, inner))}]"
    if isinstance(annotation, list):
        return f"[{', '.join(map(_format_type, annotation))}]"
    if annotation is NoneType or annotation is None:
        return "None"
    if annotation is Ellipsis:
        return "..."
    return str(getattr(annotation, "__name__", annotation))


def _describe_routes() -> Iterator[str]:
    schema = openapi(idle_services())
    for path, operations in sorted(schema["paths"].items()):
        for method, operation in sorted(operations.items()):
            yield " ".join([method.upper(), path, *_describe_request(operation, schema)])
    for name, shape in sorted(schema["components"]["schemas"].items()):
        if "properties" in shape:
            yield f"{name}: {_join_fields(shape)}"


def _describe_request(operation: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """Describe the query and the body; a star marks what is required."""
    query = []
    for item in operation.get("parameters", ()):
        if item["in"] == "query":
            query.append(_mark(item["name"], bool(item.get("required"))))
    if query:
        yield f"query({', '.join(sorted(query))})"
    content = operation.get("requestBody", {}).get("content", {})
    for kind, about in sorted(content.items()):
        shape = about.get("schema", {})
        reference = shape.get("$ref", "").rpartition("/")[2]
        shape = schema["components"]["schemas"].get(reference, shape)
        yield f"body({reference or _join_fields(shape) or kind})"


def _join_fields(shape: dict[str, Any]) -> str:
    required = shape.get("required", ())
    return ", ".join(_mark(name, name in required) for name in sorted(shape.get("properties", ())))


def _mark(name: str, is_required: bool) -> str:
    return f"{name}*" if is_required else name


if __name__ == "__main__":
    LIST.write_text(describe(), encoding="utf-8")
    print(f"{LIST.name} is written.", file=sys.stderr)
