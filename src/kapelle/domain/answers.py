"""JSON in the answers of agents: the request, the search for it, and its validation."""

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
# Each stray bracket costs a scan of the text. A text with more of them is not an answer.
_MOST_STRAYS = 2_000
_NOTHING = "The answer contains no JSON object. Write exactly one, with nothing around it."
# A model's own validators may raise any of these for a value of an unexpected type.
_ILL_FITTING = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class UnreadableAnswer(ValueError):
    """An unreadable answer; the message tells the model that wrote it how to correct it."""


def format_answer_instructions(shape: type[BaseModel] | dict[str, Any]) -> str:
    """Return the paragraph of a prompt that asks for exactly one JSON value of a schema."""
    if isinstance(shape, dict):
        schema = shape
    else:
        schema = shape.model_json_schema()
    # The references of a recursive schema cannot be resolved; its definitions stay.
    with suppress(ValueError):
        schema = resolve_references(schema)
    kind = {"object": "object", "array": "array"}.get(str(schema.get("type")), "value")
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return (
        f"Answer with exactly one JSON {kind} and nothing else: no words before or after it, no "
        f"comments in it. Escape line breaks and quotation marks inside texts. The {kind} must "
        f"match this JSON schema:\n{text}"
    )


def find_json(text: str) -> list[Any]:
    """Return every JSON value of a text, the last one first; skip broken and truncated ones."""
    return [candidate.value for candidate in _find_candidates(text)]


def require_json(text: str) -> None:
    """Raise UnreadableAnswer unless the text ends with a readable JSON object or array."""
    problems = list[_ParsedValue]()
    values = _find_candidates(text, problems)
    containers = [one for one in values if isinstance(one.value, (dict, list))]
    if problems and (not containers or problems[-1].start > containers[0].start):
        raise UnreadableAnswer(problems[-1].value)
    if not containers:
        raise UnreadableAnswer(_NOTHING)


def read_answer(text: str, shape: type[BaseModel] | dict[str, Any]) -> Any:
    """Return the last value of the text that matches a model or a JSON schema.

    Raise UnreadableAnswer if no value matches, or if a broken or truncated value follows the last
    match: then the model meant to replace it.
    """
    refusal = _NOTHING
    problems = list[_ParsedValue]()
    for candidate in _find_candidates(text, problems):
        if problems and problems[-1].start > candidate.start:
            break
        try:
            return _validate(candidate.value, shape)
        except _ILL_FITTING as error:
            # The problem of the last value in the text, which is the first candidate, counts.
            if refusal is _NOTHING:
                refusal = _describe_mismatch(error)
    if problems:
        raise UnreadableAnswer(problems[-1].value)
    raise UnreadableAnswer(refusal)


def _validate(value: Any, shape: type[BaseModel] | dict[str, Any]) -> Any:
    if isinstance(shape, dict):
        if isinstance(value, dict):
            problems = list_violations(value, shape)
        else:
            problems = ["it is not an object"]
        if problems:
            raise ValueError("; ".join(problems))
        return value
    answer = shape.model_validate(value)
    if value and shape.model_fields and not answer.model_fields_set:
        raise ValueError(f"it has none of the expected keys: {', '.join(shape.model_fields)}")
    return answer


def _describe_mismatch(error: Exception) -> str:
    problems = [str(error)]
    if isinstance(error, ValidationError):
        details = error.errors(include_url=False)
        problems = [format_problem(one) for one in details[:_MOST_PROBLEMS]]
        if len(details) > _MOST_PROBLEMS:
            problems.append(f"and {len(details) - _MOST_PROBLEMS} more")
    return f"The JSON does not match the schema: {'; '.join(map(make_printable, problems))}."


class _ParsedValue(NamedTuple):
    """A value and its position in the text; for a broken value, its problem and position."""

    start: int
    value: Any


def _parse_number(text: str) -> float:
    """Parse a number and refuse NaN, Infinity and 1e999, which cannot be compared or stored."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


# Not strict: an unescaped line break inside a text can mean only a line break.
_DECODER = json.JSONDecoder(strict=False, parse_float=_parse_number, parse_constant=_parse_number)
_START = re.compile(r"\{(?=\s*[\"'}]|\s*\w+\s*:)|\[(?=\s*[\"'{\[\]\dtfn-])")
_CONTAINER_START = re.compile(r"\{\s*[\"']|\[\s*[\"'{\[]")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[{}\[\]]', re.DOTALL)
_FENCE = re.compile(
    r"^[ \t>]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<label>[\w.+-]+)[^\n]*\n.*?^[ \t>]*(?P=mark)",
    re.DOTALL | re.MULTILINE,
)


def _find_candidates(text: str, failures: list[_ParsedValue] | None = None) -> list[_ParsedValue]:
    """Return the values of a text, the last one first; append broken ones to the second list."""
    with suppress(ValueError, RecursionError):
        return [_ParsedValue(0, _DECODER.decode(text.strip().strip("\ufeff").strip()))]
    # Fenced blocks of other languages are searched only if the rest of the text has no JSON.
    prose = _FENCE.sub(_blank_out_code, text)
    values, problems = _scan(prose)
    if not values and not problems and prose != text:
        values, problems = _scan(text)
    if failures is not None:
        failures += problems
    return values[::-1]


def _blank_out_code(fence: re.Match[str]) -> str:
    if fence["label"].lower().startswith(("json", "ndjson", "markdown", "md")):
        return fence[0]
    return " " * len(fence[0])


def _scan(text: str) -> tuple[list[_ParsedValue], list[_ParsedValue]]:
    """Return the readable and the broken values, both in the order of the text, in linear time."""
    values = list[_ParsedValue]()
    problems = list[_ParsedValue]()
    at = 0
    strays = 0
    while strays < _MOST_STRAYS and (start := _START.search(text, at)):
        at = start.start()
        try:
            value, end = _DECODER.raw_decode(text, at)
            values.append(_ParsedValue(at, value))
            at = end
        except (ValueError, RecursionError) as error:
            if _CONTAINER_START.match(text, at):
                # Skip the broken value, so that no part of it counts as an answer. If its brackets
                # are never closed, it is truncated and reaches to the end of the text.
                close = _find_end(text, at)
                problems.append(
                    _ParsedValue(at, _describe_problem(text, error, cut_off=close is None))
                )
                at = len(text) if close is None else close
            else:
                at = max(at + 1, getattr(error, "pos", 0))
                strays += 1
    return values, problems


def _find_end(text: str, at: int) -> int | None:
    """Return the position after the bracket that closes the one at a position, if there is one."""
    depth = 0
    for bracket in _BRACKET.finditer(text, at):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(bracket[0], 0)
        if not depth:
            return bracket.end()
    return None


def _describe_problem(text: str, error: Exception, *, cut_off: bool) -> str:
    if cut_off:
        return (
            f"The JSON is truncated: it ends with {format_value(text[-40:])}. "
            "Write the complete JSON again, shorter if there was no room."
        )
    if not isinstance(error, json.JSONDecodeError):
        return (
            f"The JSON cannot be read: {format_value(str(error))}. Write the complete JSON again."
        )
    excerpt = format_value(text[error.pos : error.pos + 20])
    return (
        f"The JSON cannot be read at line {error.lineno}, column {error.colno}: {error.msg}, found "
        f"{excerpt}. Write the complete JSON again, as strict JSON."
    )
