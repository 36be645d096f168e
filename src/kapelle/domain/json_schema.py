"""The subset of JSON Schema for the answers of judges.

References are resolved first and patterns are ignored, so that no schema can keep the daemon busy.
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
    # Imported on first use: the import takes a quarter of a second, and few loops have a schema.
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped,unused-ignore]

    return Draft202012Validator


@cache
def _validator() -> Any:
    from jsonschema import validators

    draft = _draft()
    keywords = {name: draft.VALIDATORS[name] for name in _KEYWORDS}
    return validators.create(draft.META_SCHEMA, keywords, type_checker=draft.TYPE_CHECKER)


def check_schema(schema: Any) -> None:
    """Raise ValueError with the path of the first mistake of a schema."""
    if not isinstance(schema, dict):
        raise ValueError("the schema must be an object")
    rules = _draft()(_draft().META_SCHEMA)
    error = next(rules.iter_errors(resolve_references(schema)), None)
    if error is not None:
        raise ValueError(_format_violation(error))


def list_violations(value: Any, schema: dict[str, Any]) -> list[str]:
    """Return the violations of a schema by a value, each with its path, at most 20 of them.

    The schema must have passed `check_schema`. Unsupported keywords are ignored.
    """
    violations = _validator()(resolve_references(schema)).iter_errors(value)
    return [_format_violation(error) for error in islice(violations, _MOST_PROBLEMS)]


def _format_violation(error: Any) -> str:
    path = error.json_path.removeprefix("$").removeprefix(".")
    if not path:
        return make_printable(error.message)
    return make_printable(f"{path}: {error.message}")


def _join_path(path: str, name: str) -> str:
    if not path:
        return name
    return f"{path}.{name}"


def resolve_references(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its local references replaced by their definitions, without titles.

    Raise ValueError for a reference without a target, a circular reference, and a schema that is
    too large or too deep.
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
                raise ValueError(f"{_join_path(path, '$ref')} {name!r} is circular")
            target = _find_target(schema, name, _join_path(path, "$ref"))
            beside = {key: value for key, value in part.items() if key != "$ref"}
            return copy({**target, **beside}, path, depth + 1, (*following, name))
        result: dict[str, Any] = {}
        for key, value in part.items():
            # A property may be called title; only the title of a schema is a text.
            is_title = key == "title" and isinstance(value, str)
            if key == "patternProperties" or is_title:
                continue
            if key in _AS_WRITTEN:
                result[key] = value
            else:
                result[key] = copy(value, _join_path(path, key), depth + 1, following)
        return result

    whole: dict[str, Any] = copy(schema, "", 0, ())
    return {key: part for key, part in whole.items() if key not in _DEFINITIONS}


def _find_target(schema: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    target: Any = schema
    for step in name.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(step)
        else:
            target = None
    if not name.startswith("#/") or not isinstance(target, dict):
        raise ValueError(f"{path} {name!r} is not defined in this schema")
    return target
