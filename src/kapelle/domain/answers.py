"""JSON in an agent's answer: how it is asked for, found, and held against a model."""

import json
import math
import re
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from kapelle.domain.errors import format_problem
from kapelle.domain.json_schema import list_violations, resolve_references
from kapelle.domain.text import format_value, make_printable

_MOST_PROBLEMS = 8
# Each costs a look back over the text; one with more of them is no answer.
_MOST_STRAYS = 2_000
_NOTHING = "There is no JSON object in the answer. Write exactly one, with nothing around it."
# A shape's own validators may trip over a kind of value they did not expect.
_ILL_FITTING = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class UnreadableAnswer(ValueError):
    """An answer that cannot be read, said so that the model that wrote it can do better."""


def format_answer_instructions(shape: type[BaseModel] | dict[str, Any]) -> str:
    """The paragraph of a prompt that asks for one JSON value of this schema and nothing else."""
    if isinstance(shape, dict):
        schema = shape
    else:
        schema = shape.model_json_schema()
    # One that refers to itself cannot be written out; its definitions stay.
    with suppress(ValueError):
        schema = resolve_references(schema)
    kind = {"object": "object", "array": "array"}.get(str(schema.get("type")), "value")
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return (
        f"Answer with exactly one JSON {kind} and nothing else: no words before or after it, no "
        f"comments in it. Escape line breaks and quotation marks inside texts. It must fit this "
        f"JSON schema:\n{text}"
    )


def find_json(text: str) -> list[Any]:
    """Every JSON value of the text, the last first; none of one that is broken or cut off."""
    return [found.value for found in _candidates(text)]


def require_json(text: str) -> None:
    """Raise UnreadableAnswer unless the text ends with a JSON object or array that can be read."""
    broken = list[_ParsedValue]()
    values = _candidates(text, broken)
    nested = [found for found in values if isinstance(found.value, (dict, list))]
    if broken and (not nested or broken[-1].start > nested[0].start):
        raise UnreadableAnswer(broken[-1].value)
    if not nested:
        raise UnreadableAnswer(_NOTHING)


def read_answer(text: str, shape: type[BaseModel] | dict[str, Any]) -> Any:
    """The answer as a model of this shape, or as an object of this JSON schema; of several that fit
    the last in the text.

    Raises UnreadableAnswer, whose message says what was wrong: also where something broken or cut
    off comes after the last that fits.
    """
    refusal = _NOTHING
    broken = list[_ParsedValue]()
    for found in _candidates(text, broken):
        if broken and broken[-1].start > found.start:
            break
        try:
            return _fit(found.value, shape)
        except _ILL_FITTING as error:
            if refusal is _NOTHING:
                refusal = _misfit(error)
            else:
                refusal = refusal
    raise UnreadableAnswer(broken[-1].value if broken else refusal)


def _fit(value: Any, shape: type[BaseModel] | dict[str, Any]) -> Any:
    if isinstance(shape, dict):
        if isinstance(value, dict):
            problems = list_violations(value, shape)
        else:
            problems = ["it is no object"]
        if problems:
            raise ValueError("; ".join(problems))
        return value
    answer = shape.model_validate(value)
    if value and shape.model_fields and not answer.model_fields_set:
        raise ValueError(f"it has none of the keys asked for: {', '.join(shape.model_fields)}")
    return answer


def _misfit(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)
    else:
        found = []
    problems = [*map(format_problem, found[:_MOST_PROBLEMS])] or [str(error)]
    if len(found) > _MOST_PROBLEMS:
        problems.append(f"and {len(found) - _MOST_PROBLEMS} more")
    return f"The JSON does not fit what was asked for: {'; '.join(map(make_printable, problems))}."


class _ParsedValue(NamedTuple):
    """A value, or what is wrong with it, and where it begins."""

    start: int
    value: Any


def _number(text: str) -> float:
    """NaN and Infinity are no JSON, and 1e999 is no number that could be compared or stored."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no finite number")
    return value


# Line breaks inside texts mean only one thing, so they are taken as they are.
_DECODER = json.JSONDecoder(strict=False, parse_float=_number, parse_constant=_number)
_START = re.compile(r"\{(?=\s*[\"'}]|\s*\w+\s*:)|\[(?=\s*[\"'{\[\]\dtfn-])")
_MEANT = re.compile(r"\{\s*[\"']|\[\s*[\"'{\[]")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[{}\[\]]', re.DOTALL)
_FENCE = re.compile(
    r"^[ \t>]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<label>[\w.+-]+)[^\n]*\n.*?^[ \t>]*(?P=mark)",
    re.DOTALL | re.MULTILINE,
)


def _candidates(text: str, broken: list[_ParsedValue] | None = None) -> list[_ParsedValue]:
    """The values of a text, the last first; what is broken is added to the list that is given."""
    with suppress(ValueError, RecursionError):
        return [_ParsedValue(0, _DECODER.decode(text.strip().strip("\ufeff").strip()))]
    # Blocks of another language are looked at only where there is nothing else.
    own = _FENCE.sub(_without_code, text)
    found, wrong = _scan(own)
    if not found and not wrong and own != text:
        found, wrong = _scan(text)
    if broken is not None:
        broken += wrong
    return found[::-1]


def _without_code(fence: re.Match[str]) -> str:
    if fence["label"].lower().startswith(("json", "ndjson", "markdown", "md")):
        return fence[0]
    return " " * len(fence[0])


def _scan(text: str) -> tuple[list[_ParsedValue], list[_ParsedValue]]:
    """What can be read and what cannot, each in the order of the text, in linear time."""
    found = list[_ParsedValue]()
    wrong = list[_ParsedValue]()
    at = 0
    strays = 0
    while strays < _MOST_STRAYS and (start := _START.search(text, at)):
        at = start.start()
        try:
            value, end = _DECODER.raw_decode(text, at)
            found.append(_ParsedValue(at, value))
            at = end
        except (ValueError, RecursionError) as error:
            if _MEANT.match(text, at):
                # Nothing inside it is an answer, and nothing behind it if it does not end.
                close = _end(text, at)
                wrong.append(_ParsedValue(at, _trouble(text, error, cut_off=close is None)))
                at = len(text) if close is None else close
            else:
                at = max(at + 1, getattr(error, "pos", 0))
                strays += 1
    return found, wrong


def _end(text: str, at: int) -> int | None:
    """Where the brackets that open here are all closed."""
    depth = 0
    for bracket in _BRACKET.finditer(text, at):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(bracket[0], 0)
        if not depth:
            return bracket.end()
    return None


def _trouble(text: str, error: Exception, *, cut_off: bool) -> str:
    if cut_off:
        return (
            f"The JSON was cut off or never ends: its last words are {format_value(text[-40:])}. "
            "Write the whole of it again, shorter if there was no room."
        )
    if not isinstance(error, json.JSONDecodeError):
        return f"The JSON cannot be read: {format_value(str(error))}. Write the whole of it again."
    excerpt = format_value(text[error.pos : error.pos + 20])
    return (
        f"The JSON cannot be read at line {error.lineno}, column {error.colno}: {error.msg}, found "
        f"{excerpt}. Write the whole of it again, as strict JSON."
    )
