"""Robust reading of JSON from what a language model wrote, and the words that ask for it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ValidationError

from kapelle.domain.model_json.candidates import findings
from kapelle.domain.model_json.lenient import Broken
from kapelle.domain.model_json.schema import matches_schema, printable, shown
from kapelle.domain.model_json.schema_text import check_schema, compact, written_out

__all__ = [
    "Unreadable", "check_schema", "find_json", "instructions", "matches_schema", "read_answer",
]  # fmt: skip

M = TypeVar("M", bound=BaseModel)
_WRAPPERS = ("result", "answer", "response", "output", "data", "json", "value")
_DEEPEST_WRAPPING = 3
# Validating costs more than finding; a text with more candidates is no answer.
_MOST_TRIED = 2_000
_MOST_PROBLEMS = 8
_NOTHING = "There is no JSON object in the answer. Write exactly one, with nothing around it."
# A shape's own validators may trip over a kind of value they did not expect.
_ILL_FITTING = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class Unreadable(ValueError):
    """An answer that cannot be read, said so that the model that wrote it can do better."""


def find_json(text: str) -> list[Any]:
    """Every value that the text may mean, best first; nested ones are not listed apart."""
    return [found.value for found in findings(text).best_first()]


def read_answer(text: str, shape: type[M]) -> M:
    """The answer as a model of this shape; of several that fit the last in the text.

    Raises Unreadable, whose message says what was wrong.
    """
    found = findings(text)
    trouble, misfit = found.trouble, _Misfit(shape)
    tried = [each for each in found.best_first() if not each.loose][:_MOST_TRIED]
    for candidate in tried:
        for value in _readings(candidate.value, shape):
            try:
                answer = shape.model_validate(value)
            except _ILL_FITTING as error:
                misfit.note(value, candidate.start, error)
                continue
            if answer.model_fields_set or not value or not shape.model_fields:
                if trouble and trouble.at == len(text) and trouble.start > candidate.start:
                    # What came before the end that is missing was an example or a draft.
                    raise Unreadable(_broken_words(trouble, text))
                return answer
    if trouble and (trouble.cut_off or trouble.start > misfit.start):
        raise Unreadable(_broken_words(trouble, text))
    raise Unreadable(misfit.words if tried else _NOTHING)


def instructions(shape: type[BaseModel] | dict[str, Any]) -> str:
    """The paragraph of a prompt that asks for one JSON value of this schema and nothing else."""
    schema = shape if isinstance(shape, dict) else shape.model_json_schema()
    # One that refers to itself cannot be written out; its definitions stay.
    with suppress(ValueError):
        schema = written_out(schema)
    kind = {"object": "object", "array": "array"}.get(str(schema.get("type")), "value")
    text = json.dumps(compact(schema), ensure_ascii=False, separators=(",", ":"))
    return (
        f"Answer with exactly one JSON {kind} and nothing else: no words before or after it, no "
        f"comments in it. Escape line breaks and quotation marks inside texts. It must fit this "
        f"JSON schema:\n{text}"
    )


def _readings(value: Any, shape: type[BaseModel], depth: int = 0) -> Iterator[Any]:
    """What a value may mean: itself, what it wraps, or the one list of the shape."""
    yield value
    if depth == _DEEPEST_WRAPPING:
        return
    if isinstance(value, list):
        if name := _list_field(shape):
            yield {name: value}
        if len(value) == 1 and isinstance(value[0], dict):
            yield from _readings(value[0], shape, depth + 1)
    elif isinstance(value, dict) and not value.keys() & set(_names(shape)):
        names = list(value) if len(value) == 1 else [name for name in _WRAPPERS if name in value]
        for name in names:
            if isinstance(value[name], dict | list | str):
                yield from _readings(value[name], shape, depth + 1)
    elif isinstance(value, str):
        # JSON within a text of JSON, as programs wrap the answers of models.
        for inner in find_json(value)[:_DEEPEST_WRAPPING]:
            yield from _readings(inner, shape, _DEEPEST_WRAPPING)


def _list_field(shape: type[BaseModel]) -> str | None:
    fields = shape.model_fields.items()
    lists = [field.alias or name for name, field in fields if _is_list(field.annotation)]
    return lists[0] if len(lists) == 1 else None


def _is_list(annotation: Any) -> bool:
    origin = get_origin(annotation) or annotation
    if origin is Annotated:
        return _is_list(get_args(annotation)[0])
    if origin is Union or origin is UnionType:
        return any(_is_list(part) for part in get_args(annotation))
    return any(origin is kind for kind in (list, tuple, set, frozenset, Sequence))


def _names(shape: type[BaseModel]) -> list[str]:
    names = []
    for name, field in shape.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
        names.append(next((choice for choice in choices if isinstance(choice, str)), name))
    return names


class _Misfit:
    """Of all that did not fit the value that came closest, and what was wrong with it."""

    def __init__(self, shape: type[BaseModel]) -> None:
        self._names = _names(shape)
        self._closest = -1
        self._error: Exception | None = None
        self.start = -1

    def note(self, value: Any, start: int, error: Exception) -> None:
        close = len(value.keys() & set(self._names)) if isinstance(value, dict) else 0
        if close > self._closest:
            self._closest, self._error = close, error
            self.start = start if close else -1

    @property
    def words(self) -> str:
        if self._error is None:
            return f"The JSON has none of the keys asked for: {', '.join(self._names)}."
        if isinstance(self._error, ValidationError):
            problems = "; ".join(_problems(self._error))
        else:
            problems = shown(str(self._error))
        return f"The JSON does not fit what was asked for: {problems}."


def _problems(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_context=False)[:_MOST_PROBLEMS]:
        path = printable(".".join(str(part) for part in problem["loc"]))
        words = printable(problem["msg"].removeprefix("Value error, "))
        given = "" if problem["type"] == "missing" else f" (it is {shown(problem['input'])})"
        yield f"{path}: {words}{given}" if path else f"{words}{given}"
    if error.error_count() > _MOST_PROBLEMS:
        yield f"and {error.error_count() - _MOST_PROBLEMS} more"


def _broken_words(broken: Broken, text: str) -> str:
    place = f" in {shown(broken.path)}" if broken.path else ""
    if broken.cut_off:
        return (
            f"The JSON was cut off{place}: {broken.problem}. "
            "Write the whole of it again, shorter if there was no room."
        )
    line = text.count("\n", 0, broken.at) + 1
    column = broken.at - text.rfind("\n", 0, broken.at)
    return (
        f"The JSON cannot be read at line {line}, column {column}{place}: {broken.problem}, "
        f"found {shown(text[broken.at : broken.at + 20])}. Write the whole of it again."
    )
