"""The part of JSON Schema that a judge's answer may be asked to fit."""

import math
import operator
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

from kapelle.domain.text import printable, shown

_MOST_PROBLEMS = 20
_DEEPEST = 60
_LARGEST = 10_000
_DEFINITIONS = ("$defs", "definitions")
_AS_WRITTEN = ("enum", "const", "default", "examples", "required", *_DEFINITIONS)

_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "object": (lambda value: isinstance(value, dict), "an object"),
    "array": (lambda value: isinstance(value, list), "a list"),
    "string": (lambda value: isinstance(value, str), "a text"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "null": (lambda value: value is None, "null"),
    "number": (lambda value: _number(value) is not None, "a number"),
    "integer": (lambda value: (_number(value) or 0.5) % 1 == 0 or value == 0, "a whole number"),
}


def _number(value: Any) -> int | float | None:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, str) else None


def _size(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


# What is measured, how it must compare with the limit, and the words around the limit.
_LIMITS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], bool], str, str]] = {
    "minimum": (_number, operator.ge, "be at least", ""),
    "maximum": (_number, operator.le, "be at most", ""),
    "exclusiveMinimum": (_number, operator.gt, "be more than", ""),
    "exclusiveMaximum": (_number, operator.lt, "be less than", ""),
    "minLength": (_length, operator.ge, "have at least", " characters"),
    "maxLength": (_length, operator.le, "have at most", " characters"),
    "minItems": (_size, operator.ge, "have at least", " items"),
    "maxItems": (_size, operator.le, "have at most", " items"),
}
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def check_schema(schema: Any) -> None:
    """Raise ValueError with the path of the first thing that makes a schema unusable."""
    if not isinstance(schema, dict):
        raise ValueError("the schema must be an object")
    _check(written_out(schema), "")


def _check(schema: Any, path: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{path} must be a schema, which is an object")
    for keyword, value in schema.items():
        place = _below(path, keyword)
        if wanted := _misused(keyword, value):
            raise ValueError(f"{place} must be {wanted}, not {shown(value)}")
        if keyword in {"items", "additionalProperties"}:
            _check(value, place)
        elif keyword in _ALTERNATIVES:
            for index, part in enumerate(value):
                _check(part, f"{place}[{index}]")
        elif keyword == "properties":
            for name, part in value.items():
                _check(part, _below(place, name))


def _misused(keyword: str, value: Any) -> str:
    """What the value of a keyword has to be where it is not; empty where it is."""
    is_list = isinstance(value, list)
    if keyword == "type":
        names = value if is_list and value else [value]
        known = all(isinstance(name, str) and name in _TYPES for name in names)
        return "" if known else f"one or several of {', '.join(_TYPES)}"
    if keyword == "required":
        fits = is_list and all(isinstance(name, str) for name in value)
        return "" if fits else "a list of names"
    if keyword == "enum" or keyword in _ALTERNATIVES:
        wanted = "a list of values" if keyword == "enum" else "a list of schemas"
        return "" if is_list and value else wanted
    if keyword == "properties":
        return "" if isinstance(value, dict) else "an object of schemas"
    if keyword not in _LIMITS:
        return ""
    if _LIMITS[keyword][0] is _number:
        return "" if _number(value) is not None else "a number"
    return "" if type(value) is int and value >= 0 else "a whole number, at least 0"


def matches_schema(value: Any, schema: dict[str, Any]) -> list[str]:
    """What is wrong with a value, each with its path, at most 20 of them; none if it fits.

    The schema is one that passed `check_schema`. Keywords that are not known are ignored.
    """
    return list(islice(_problems(value, written_out(schema), ""), _MOST_PROBLEMS))


def _problems(value: Any, schema: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        if schema is False:
            yield _said(path, "nothing is allowed here")
        return
    wanted = schema.get("type", [])
    names = [wanted] if isinstance(wanted, str) else wanted
    if names and not any(_TYPES[name][0](value) for name in names):
        words = " or ".join(_TYPES[name][1] for name in names)
        yield _said(path, f"must be {words}, not {shown(value)}")
        return
    yield from (_said(path, problem) for problem in _bounds(value, schema))
    if isinstance(value, dict):
        yield from _members(value, schema, path)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from _problems(item, schema.get("items", True), f"{path}[{index}]")
    yield from _alternatives(value, schema, path)


def _bounds(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed and not any(_same(value, one) for one in allowed):
        yield f"must be {' or '.join(map(shown, allowed))}, not {shown(value)}"
    for keyword in filter(schema.__contains__, _LIMITS):
        measure, holds, words, noun = _LIMITS[keyword]
        if (size := measure(value)) is not None and not holds(size, schema[keyword]):
            yield f"must {words} {schema[keyword]}{noun}, not {shown(size)}"


def _members(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", []):
        if name not in value:
            yield _said(_below(path, name), "is missing")
    for name, held in value.items():
        if name not in known and others is False:
            hint = f"; allowed are {', '.join(known)}" if known else ""
            yield _said(_below(path, name), f"is not allowed{hint}")
        else:
            yield from _problems(held, known.get(name, others), _below(path, name))


def _alternatives(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    for part in schema.get("allOf", []):
        yield from _problems(value, part, path)
    for keyword in ("anyOf", "oneOf"):
        first = [next(_problems(value, part, path), "") for part in schema.get(keyword, [])]
        if first and "" not in first:
            yield _said(path, f"fits none of the alternatives ({'; or '.join(first)})")
        elif keyword == "oneOf" and first.count("") > 1:
            yield _said(path, f"must fit exactly one of the alternatives, not {first.count('')}")


def _same(one: Any, other: Any) -> bool:
    """Equality as JSON has it: 1 is 1.0, and true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _said(path: str, problem: str) -> str:
    return f"{printable(path)}: {problem}" if path else f"the value {problem}"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def written_out(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its local references replaced by what they mean.

    Raises ValueError for one that leads nowhere or to itself, and for a schema out of proportion.
    """
    size = count(1)

    def copy(part: Any, path: str, depth: int, following: tuple[str, ...]) -> Any:
        if depth > _DEEPEST or next(size) > _LARGEST:
            raise ValueError(f"{path[:60]}…: the schema is too large or too deep")
        if isinstance(part, list):
            return [copy(item, f"{path}[{n}]", depth + 1, following) for n, item in enumerate(part)]
        if not isinstance(part, dict):
            return part
        if isinstance(name := part.get("$ref"), str):
            if name in following:
                raise ValueError(f"{_below(path, '$ref')} {name!r} leads back to itself")
            target = _target(schema, name, _below(path, "$ref"))
            beside = {key: value for key, value in part.items() if key != "$ref"}
            return copy({**target, **beside}, path, depth + 1, (*following, name))
        return {
            key: value
            if key in _AS_WRITTEN
            else copy(value, _below(path, key), depth + 1, following)
            for key, value in part.items()
        }

    whole: dict[str, Any] = copy(schema, "", 0, ())
    return {key: part for key, part in whole.items() if key not in _DEFINITIONS}


def _target(schema: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    target: Any = schema
    for step in name.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        target = target.get(step) if isinstance(target, dict) else None
    if not name.startswith("#/") or not isinstance(target, dict):
        raise ValueError(f"{path} {name!r} leads nowhere in this schema")
    return target


def without_titles(schema: Any) -> Any:
    """A schema without the titles that only repeat names; a property of that name stays."""
    if isinstance(schema, list):
        return [without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in {"enum", "const", "default"} else without_titles(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }
