"""A JSON schema made ready: references written out, noise left out, mistakes named."""

from collections.abc import Iterator
from typing import Any

_TYPES = ("object", "array", "string", "boolean", "null", "number", "integer")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
_LISTS = ("anyOf", "oneOf", "allOf")
_DEFINITIONS = ("$defs", "definitions")
_MAPS = ("properties", "patternProperties", *_DEFINITIONS)
_AS_WRITTEN = ("enum", "const", "default", "examples", "required")
_DEEPEST = 60
_LARGEST = 10_000


def check_schema(schema: Any) -> None:
    """Raise ValueError with the path of the first thing that makes a schema unusable."""
    if not isinstance(schema, dict):
        raise ValueError("the schema must be an object")
    for path, part in _parts(written_out(schema), ""):
        for keyword, value in part.items():
            problem = _problem(keyword, value)
            if problem:
                raise ValueError(f"{path + '.' if path else ''}{keyword} {problem}")


def _problem(keyword: str, value: Any) -> str:
    if keyword == "type":
        names = value if isinstance(value, list) and value else [value]
        wrong = [name for name in names if name not in _TYPES]
        return f"{wrong[0]!r} is none of {', '.join(_TYPES)}" if wrong else ""
    if keyword == "required" and not _are_names(value):
        return "must be a list of names"
    if keyword == "enum" and not (isinstance(value, list) and value):
        return "must be a list of values"
    if keyword in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
        return "must be a number"
    if keyword in _COUNTS and (type(value) is not int or value < 0):
        return "must be a whole number, at least 0"
    return ""


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _parts(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema and every schema inside it that is used, with their paths."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{path} must be a schema, which is an object")
    yield path, schema
    for keyword, value in schema.items():
        for below, part in _inside(keyword, value, f"{path}.{keyword}" if path else keyword):
            yield from _parts(part, below)


def _inside(keyword: str, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if keyword in {"items", "additionalProperties"}:
        yield path, value
    elif keyword in _LISTS:
        if not isinstance(value, list) or not value:
            raise ValueError(f"{path} must be a list of schemas")
        yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
    elif keyword == "properties":
        if not isinstance(value, dict):
            raise ValueError(f"{path} must be an object of schemas")
        yield from ((f"{path}.{name}", part) for name, part in value.items())


def written_out(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its local references replaced by what they mean.

    Raises ValueError for one that leads nowhere or to itself, and for a schema out of proportion.
    """
    copy: dict[str, Any] = _Copy(schema).of(schema, [])
    return {key: part for key, part in copy.items() if key not in _DEFINITIONS}


class _Copy:
    """One pass over a schema that follows references, within limits."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._size = 0
        self._following: list[str] = []

    def of(self, part: Any, path: list[str]) -> Any:
        self._size += 1
        if self._size > _LARGEST or len(path) > _DEEPEST:
            raise ValueError(f"{'.'.join(path[:4])}…: the schema is too large or too deep")
        if isinstance(part, list):
            return [self.of(item, [*path, str(index)]) for index, item in enumerate(part)]
        if not isinstance(part, dict):
            return part
        if isinstance(part.get("$ref"), str):
            return self._followed(part, path)
        return {key: self._below(key, value, [*path, str(key)]) for key, value in part.items()}

    def _below(self, key: str, value: Any, path: list[str]) -> Any:
        # The definitions are only read where something refers to them.
        if key in _AS_WRITTEN or key in _DEFINITIONS:
            return value
        if key in _MAPS and isinstance(value, dict):
            return {name: self.of(part, [*path, str(name)]) for name, part in value.items()}
        return self.of(value, path)

    def _followed(self, part: dict[str, Any], path: list[str]) -> Any:
        name = part["$ref"]
        where = ".".join([*path, "$ref"])
        if name in self._following:
            raise ValueError(f"{where} {name!r} leads back to itself")
        target: Any = self._root
        for step in name.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            target = target.get(step) if isinstance(target, dict) else None
        if not name.startswith("#/") or not isinstance(target, dict):
            raise ValueError(f"{where} {name!r} leads nowhere in this schema")
        beside = {key: value for key, value in part.items() if key != "$ref"}
        self._following.append(name)
        copy = self.of({**target, **beside}, path)
        self._following.pop()
        return copy


def compact(schema: Any) -> Any:
    """A schema without the titles that only repeat names."""
    if isinstance(schema, list):
        return [compact(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    slim = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            slim[key] = {name: compact(part) for name, part in value.items()}
        elif key in _AS_WRITTEN:
            slim[key] = value
        elif key != "title":
            slim[key] = compact(value)
    return slim
