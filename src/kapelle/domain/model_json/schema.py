"""The part of JSON Schema that answers of a model are held against."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from kapelle.domain.model_json.schema_text import written_out

MAX_PROBLEMS = 20

_KINDS: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and value == int(value),
}
_WORDS = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "boolean": "true or false",
    "null": "null",
    "number": "a number",
    "integer": "a whole number",
}


def matches_schema(value: Any, schema: dict[str, Any]) -> list[str]:
    """What is wrong with a value, each with its path, at most 20 of them; none if it fits.

    The schema is one that passed `check_schema`. Keywords that are not known are ignored.
    """
    problems = _problems(value, written_out(schema), "")
    return [problem for problem, _ in zip(problems, range(MAX_PROBLEMS), strict=False)]


def _problems(value: Any, schema: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        if schema is False:
            yield _said(path, "nothing is allowed here")
        return
    if "type" in schema and (problem := _of_type(value, schema["type"])):
        yield _said(path, problem)
        return
    for keyword, bound in schema.items():
        if keyword in _LIMITS and (problem := _LIMITS[keyword](value, bound)):
            yield _said(path, problem)
    if isinstance(value, dict):
        yield from _of_object(value, schema, path)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _problems(item, schema["items"], f"{path}[{index}]")
    yield from _of_alternatives(value, schema, path)


def _of_type(value: Any, wanted: str | list[str]) -> str:
    names = [wanted] if isinstance(wanted, str) else wanted
    if any(_KINDS[name](value) for name in names):
        return ""
    return f"must be {' or '.join(_WORDS[name] for name in names)}, not {shown(value)}"


def _of_object(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    for name in schema.get("required", []):
        if name not in value:
            yield _said(_below(path, name), "is missing")
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for name, held in value.items():
        if name in known:
            yield from _problems(held, known[name], _below(path, name))
        elif others is False:
            allowed = f"; allowed are {', '.join(known)}" if known else ""
            yield _said(_below(path, name), f"is not allowed{allowed}")
        else:
            yield from _problems(held, others, _below(path, name))


def _of_alternatives(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    for part in schema.get("allOf", []):
        yield from _problems(value, part, path)
    for keyword in ("anyOf", "oneOf"):
        if keyword not in schema:
            continue
        first = [next(_problems(value, part, path), "") for part in schema[keyword]]
        fitting = first.count("")
        if not fitting:
            yield _said(path, f"fits none of the alternatives ({'; or '.join(first)})")
        elif keyword == "oneOf" and fitting > 1:
            yield _said(path, f"must fit exactly one of the alternatives, not {fitting}")


def _one_of(value: Any, allowed: list[Any]) -> str:
    if any(_same(value, one) for one in allowed):
        return ""
    return f"must be {' or '.join(map(shown, allowed))}, not {shown(value)}"


def _number_limit(holds: Callable[[Any, Any], bool], words: str) -> Callable[[Any, Any], str]:
    def check(value: Any, bound: Any) -> str:
        if not _is_number(value) or holds(value, bound):
            return ""
        return f"must be {words} {bound}, not {shown(value)}"

    return check


def _size_limit(
    kind: type[str] | type[list[Any]], least: bool, noun: str
) -> Callable[[Any, Any], str]:
    def check(value: Any, bound: Any) -> str:
        if not isinstance(value, kind) or (size := len(value)) == bound or (size > bound) is least:
            return ""
        return f"must have at {'least' if least else 'most'} {bound} {noun}, not {size}"

    return check


_LIMITS: dict[str, Callable[[Any, Any], str]] = {
    "enum": _one_of,
    "const": lambda value, only: _one_of(value, [only]),
    "minimum": _number_limit(lambda value, bound: value >= bound, "at least"),
    "maximum": _number_limit(lambda value, bound: value <= bound, "at most"),
    "exclusiveMinimum": _number_limit(lambda value, bound: value > bound, "more than"),
    "exclusiveMaximum": _number_limit(lambda value, bound: value < bound, "less than"),
    "minLength": _size_limit(str, True, "characters"),
    "maxLength": _size_limit(str, False, "characters"),
    "minItems": _size_limit(list, True, "items"),
    "maxItems": _size_limit(list, False, "items"),
}


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _same(one: Any, other: Any) -> bool:
    """Equality as JSON has it: 1 is 1.0, and true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def shown(value: Any) -> str:
    """A value in a sentence: short, on one line, with nothing that cannot be printed."""
    if isinstance(value, dict):
        return f"an object with {len(value)} keys" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        cut = value if len(value) <= 60 else value[:59] + "…"
        return repr(cut) if cut.isprintable() else ascii(cut)
    return printable(str(value))


def printable(text: str) -> str:
    """A text as it is, or what stands for what in it cannot be printed; never very long."""
    cut = text if len(text) <= 300 else text[:299] + "…"
    return cut if cut.isprintable() else ascii(cut)[1:-1]


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _said(path: str, problem: str) -> str:
    return f"{printable(path)}: {problem}" if path else f"the value {problem}"
