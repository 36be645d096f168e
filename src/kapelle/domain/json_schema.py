"""The part of JSON Schema that a judge's answer may be asked to fit.

References are written out before, and patterns are ignored: neither can keep the daemon busy.
"""

from functools import cache
from itertools import count, islice
from typing import Any

from kapelle.domain.text import make_printable

_MOST_PROBLEMS = 20
_DEEPEST = 60
_LARGEST = 2_000
_DEFINITIONS = ("$defs", "definitions")
_AS_WRITTEN = ("enum", "const", "default", "examples", "required", *_DEFINITIONS)
_KEYWORDS = (
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems", "properties", "required",
    "additionalProperties", "items", "anyOf", "oneOf", "allOf",
)  # fmt: skip


@cache
def _draft() -> Any:
    # Imported when it is needed: it takes a quarter of a second, and few loops have a schema.
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped,unused-ignore]

    return Draft202012Validator


@cache
def _validator() -> Any:
    from jsonschema import validators

    draft = _draft()
    known = {name: draft.VALIDATORS[name] for name in _KEYWORDS}
    return validators.create(draft.META_SCHEMA, known, type_checker=draft.TYPE_CHECKER)


def check_schema(schema: Any) -> None:
    """Raise ValueError with the path of the first thing that makes a schema unusable."""
    if not isinstance(schema, dict):
        raise ValueError("the schema must be an object")
    rules = _draft()(_draft().META_SCHEMA)
    for problem in map(_said, rules.iter_errors(resolve_references(schema))):
        raise ValueError(problem)


def list_violations(value: Any, schema: dict[str, Any]) -> list[str]:
    """What is wrong with a value, each with its path, at most 20 of them; none if it fits.

    The schema is one that passed `check_schema`. Keywords that are not known are ignored.
    """
    found = _validator()(resolve_references(schema)).iter_errors(value)
    return [*map(_said, islice(found, _MOST_PROBLEMS))]


def _said(error: Any) -> str:
    path = error.json_path.removeprefix("$").removeprefix(".")
    return make_printable(f"{path}: {error.message}" if path else error.message)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def resolve_references(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its local references replaced by what they mean, and without titles.

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
            if key != "patternProperties" and not (key == "title" and isinstance(value, str))
        }

    whole: dict[str, Any] = copy(schema, "", 0, ())
    return {key: part for key, part in whole.items() if key not in _DEFINITIONS}


def _target(schema: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    target: Any = schema
    for step in name.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(step)
        else:
            target = None
    if not name.startswith("#/") or not isinstance(target, dict):
        raise ValueError(f"{path} {name!r} leads nowhere in this schema")
    return target
