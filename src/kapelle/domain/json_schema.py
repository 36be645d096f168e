"""What a judge's answer may be asked to fit: a JSON schema without references to elsewhere."""

import math
from collections.abc import Iterable
from functools import cache
from itertools import count, islice
from typing import Any

from kapelle.domain.text import printable

_MOST_PROBLEMS, _HALF = 20, 100
_DEEPEST = 60
_LARGEST = 10_000
_DEFINITIONS = ("$defs", "definitions")
# What may take for ever, or leads elsewhere.
_IGNORED = ("pattern", "patternProperties", "$ref", "$dynamicRef")
_AS_WRITTEN = ("enum", "const", "default", "examples", "required", *_DEFINITIONS)


@cache
def _validator() -> Any:
    """The class that holds values against a schema; numbers are finite, as in JSON."""
    from jsonschema import Draft202012Validator, validators  # few runs need it

    def is_number(_: Any, value: Any) -> bool:
        is_one = isinstance(value, int | float) and not isinstance(value, bool)
        return is_one and (isinstance(value, int) or math.isfinite(value))

    types = Draft202012Validator.TYPE_CHECKER.redefine("number", is_number)
    ignored = dict.fromkeys(_IGNORED, lambda *_: None)
    return validators.extend(Draft202012Validator, ignored, type_checker=types)


def check_schema(schema: Any) -> None:
    """Raise ValueError with the path of the first thing that makes a schema unusable."""
    from jsonschema import SchemaError

    if not isinstance(schema, dict):
        raise ValueError("the schema must be an object")
    try:
        _validator().check_schema(written_out(schema))
    except SchemaError as error:
        raise ValueError(_said(error)) from None


def matches_schema(value: Any, schema: dict[str, Any]) -> list[str]:
    """What is wrong with a value, each with its path, at most 20 of them; none if it fits.

    The schema is one that passed `check_schema`. Patterns are ignored, and keywords unknown.
    """
    problems: Iterable[Any] = _validator()(written_out(schema)).iter_errors(value)
    return [_said(problem) for problem in islice(problems, _MOST_PROBLEMS)]


def _said(problem: Any) -> str:
    """A problem with its path, and with why each alternative does not fit."""
    path = ""
    for step in problem.absolute_path:
        path = f"{path}[{step}]" if isinstance(step, int) else _below(path, str(step))
    why = "; or ".join(_short(one.message) for one in problem.context or ())
    text = _short(problem.message) + (f" ({why})" if why else "")
    return printable(f"{path or 'the value'}: {text}")


def _short(text: str) -> str:
    """Its beginning quotes the value, and its end says what is wrong."""
    return text if len(text) <= 2 * _HALF else f"{text[:_HALF]} … {text[-_HALF:]}"


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
