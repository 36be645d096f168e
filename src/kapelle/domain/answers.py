"""JSON in an agent's answer: how it is asked for, found, and held against a model."""

import json
import re
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from kapelle.domain.errors import problem
from kapelle.domain.json_schema import matches_schema, without_titles, written_out
from kapelle.domain.text import printable, shown

M = TypeVar("M", bound=BaseModel)
_MOST_PROBLEMS = 8
# Each costs a look back over the text; one with more of them is no answer.
_MOST_STRAYS = 2_000
_NOTHING = "There is no JSON object in the answer. Write exactly one, with nothing around it."
# A shape's own validators may trip over a kind of value they did not expect.
_ILL_FITTING = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class Unreadable(ValueError):
    """An answer that cannot be read, said so that the model that wrote it can do better."""


def instructions(shape: type[BaseModel] | dict[str, Any]) -> str:
    """The paragraph of a prompt that asks for one JSON value of this schema and nothing else."""
    schema = shape if isinstance(shape, dict) else shape.model_json_schema()
    # One that refers to itself cannot be written out; its definitions stay.
    with suppress(ValueError):
        schema = written_out(schema)
    kind = {"object": "object", "array": "array"}.get(str(schema.get("type")), "value")
    text = json.dumps(without_titles(schema), ensure_ascii=False, separators=(",", ":"))
    return (
        f"Answer with exactly one JSON {kind} and nothing else: no words before or after it, no "
        f"comments in it. Escape line breaks and quotation marks inside texts. It must fit this "
        f"JSON schema:\n{text}"
    )


def find_json(text: str) -> list[Any]:
    """Every JSON value of the text, the last first; none of one that is broken or cut off."""
    return [found.value for found in _candidates(text)]


def read_answer(text: str, shape: type[M]) -> M:
    """The answer as a model of this shape; of several that fit the last in the text.

    Raises Unreadable, whose message says what was wrong: also where something broken or cut off
    comes after the last that fits.
    """
    refusal, broken = _NOTHING, list[_Found]()
    for found in _candidates(text, broken):
        if broken and broken[-1].start > found.start:
            break
        try:
            answer = shape.model_validate(found.value)
        except _ILL_FITTING as error:
            refusal = _misfit(error) if refusal is _NOTHING else refusal
            continue
        if answer.model_fields_set or not found.value or not shape.model_fields:
            return answer
        refusal = f"The JSON has none of the keys asked for: {', '.join(shape.model_fields)}."
    raise Unreadable(broken[-1].value if broken else refusal)


def read_object(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The last JSON object of a text that fits a schema; raises Unreadable."""
    found = [value for value in find_json(text) if isinstance(value, dict)]
    for value in found:
        if not matches_schema(value, schema):
            return value
    problems = matches_schema(found[0], schema) if found else ["there is no JSON object"]
    raise Unreadable(f"The answer does not fit its schema: {'; '.join(problems)}.")


def _misfit(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"The JSON does not fit what was asked for: {shown(str(error))}."
    found = error.errors(include_url=False)
    problems = [printable(problem(item)) for item in found[:_MOST_PROBLEMS]]
    if len(found) > _MOST_PROBLEMS:
        problems.append(f"and {len(found) - _MOST_PROBLEMS} more")
    return f"The JSON does not fit what was asked for: {'; '.join(problems)}."


class _Found(NamedTuple):
    """A value, or what is wrong with it, and where it begins."""

    start: int
    value: Any


def _constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


# Line breaks inside texts mean only one thing, so they are taken as they are.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_constant)
_START = re.compile(r"\{(?=\s*[\"'}]|\s*\w+\s*:)|\[(?=\s*[\"'{\[\]\dtfn-])")
_MEANT = re.compile(r"\{\s*[\"']|\[\s*[\"'{\[]")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[{}\[\]]', re.DOTALL)
_FENCE = re.compile(
    r"^[ \t>]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<label>[\w.+-]+)[^\n]*\n.*?^[ \t>]*(?P=mark)",
    re.DOTALL | re.MULTILINE,
)


def _candidates(text: str, broken: list[_Found] | None = None) -> list[_Found]:
    """The values of a text, the last first; what is broken is added to the list that is given."""
    with suppress(ValueError, RecursionError):
        return [_Found(0, _DECODER.decode(text.strip().strip("\ufeff").strip()))]
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


def _scan(text: str) -> tuple[list[_Found], list[_Found]]:
    """What can be read and what cannot, each in the order of the text, in linear time."""
    found, wrong, at, strays = list[_Found](), list[_Found](), 0, 0
    while strays < _MOST_STRAYS and (start := _START.search(text, at)):
        at = start.start()
        try:
            value, end = _DECODER.raw_decode(text, at)
            found.append(_Found(at, value))
            at = end
        except (ValueError, RecursionError) as error:
            if _MEANT.match(text, at):
                # Nothing inside it is an answer, and nothing behind it if it does not end.
                close = _end(text, at)
                wrong.append(_Found(at, _trouble(text, error, cut_off=close is None)))
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
            f"The JSON was cut off or never ends: its last words are {shown(text[-40:])}. "
            "Write the whole of it again, shorter if there was no room."
        )
    if not isinstance(error, json.JSONDecodeError):
        return f"The JSON cannot be read: {shown(str(error))}. Write the whole of it again."
    return (
        f"The JSON cannot be read at line {error.lineno}, column {error.colno}: {error.msg}, found "
        f"{shown(text[error.pos : error.pos + 20])}. Write the whole of it again, as strict JSON."
    )
