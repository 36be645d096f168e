"""Writes src/kapelle/client/records.py: the JSON objects of the REST API as TypedDicts."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kapelle.domain.task import Event

_REFERENCE = "#/components/schemas/"
_WIDTH = 100
_BASIC_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_HEAD = '''\
"""The JSON objects that the REST API returns, as types for a type checker.

Made by `make docs` from the schemas of docs/openapi.json: do not edit.
"""

from typing import Any, Literal, TypeAlias, TypedDict, final
'''
_WORK = '''

WorkJson: TypeAlias = TaskJson | RunJson
"""A task or a run; only a run has a "pattern"."""
'''


def client_records(openapi: Mapping[str, Any]) -> str:
    """Return the text of the module, made from the OpenAPI document."""
    schemas: dict[str, Any] = openapi["components"]["schemas"]
    # Server-sent events are not described in OpenAPI.
    schemas = {**schemas, "Event": Event.model_json_schema(mode="serialization")}
    names = [*_names_in_answers(openapi, schemas), "Event"]
    ordered = _dependencies_first(names, schemas)
    aliases = [_alias(name, schemas[name]) for name in ordered if "enum" in schemas[name]]
    objects = [_typed_dict(name, schemas) for name in ordered if "properties" in schemas[name]]
    return "".join([_HEAD, *aliases, *objects, _WORK])


def _names_in_answers(openapi: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[str]:
    """Return the names of the schemas that a successful answer contains, directly or not."""
    pending: list[str] = []
    for operations in openapi["paths"].values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if status.startswith("2"):
                    pending += _references(answer)
    names: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            pending += _references(schemas[name])
    return sorted(names)


def _references(schema: Any) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to."""
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(_REFERENCE)
        for part in schema.values():
            yield from _references(part)


def _dependencies_first(names: Iterable[str], schemas: Mapping[str, Any]) -> list[str]:
    """Return the names so that each follows those that it refers to."""
    ordered: list[str] = []

    def add(name: str) -> None:
        if name in ordered:
            return
        for other in _references(schemas[name]):
            add(other)
        ordered.append(name)

    for name in names:
        add(name)
    return ordered


def _typed_dict(name: str, schemas: Mapping[str, Any]) -> str:
    fields = schemas[name]["properties"].items()
    # A field with a default value is not required in the schema, but the daemon always sends it.
    lines = [f"    {key}: {_type(shape, schemas)}\n" for key, shape in fields]
    heading = f'\n\n@final\nclass {_class_name(name)}(TypedDict):\n    """JSON of `{name}`."""\n\n'
    return heading + "".join(lines)


def _alias(name: str, schema: Mapping[str, Any]) -> str:
    values = [json.dumps(value) for value in schema["enum"]]
    line = f"{_alias_name(name)}: TypeAlias = Literal[{', '.join(values)}]\n"
    if len(line) > _WIDTH:
        rows = "".join(f"    {value},\n" for value in values)
        line = f"{_alias_name(name)}: TypeAlias = Literal[\n{rows}]\n"
    return f"\n{line}"


def _class_name(schema: str) -> str:
    return schema.removesuffix("View") + "Json"


def _alias_name(schema: str) -> str:
    return schema + "Name"


def _type(shape: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the annotation for the values of a schema."""
    if "$ref" in shape:
        name = shape["$ref"].removeprefix(_REFERENCE)
        if "properties" in schemas[name]:
            return _class_name(name)
        return _alias_name(name)
    if "anyOf" in shape:
        return " | ".join(_type(part, schemas) for part in shape["anyOf"])
    if "enum" in shape:
        return f"Literal[{', '.join(json.dumps(value) for value in shape['enum'])}]"
    if "const" in shape:
        return f"Literal[{json.dumps(shape['const'])}]"
    if shape.get("type") == "array":
        return f"list[{_type(shape.get('items', {}), schemas)}]"
    if shape.get("type") == "object":
        values = shape.get("additionalProperties")
        if isinstance(values, dict):
            return f"dict[str, {_type(values, schemas)}]"
        return "dict[str, Any]"
    return _BASIC_TYPES.get(shape.get("type", ""), "Any")
