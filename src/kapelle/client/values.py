"""Conversion of arguments to JSON and of answers to types, for both clients."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from kapelle.domain.errors import InvalidInput, KapelleError, format_problems
from kapelle.domain.specs import Spec

T = TypeVar("T")

DirectoryPath: TypeAlias = str | os.PathLike[str]

# Made once for each type, because making one is slow.
_adapters: dict[Any, TypeAdapter[Any]] = {}

# Size of one request for output.
OUTPUT_PAGE_BYTES = 8_000_000


@dataclass(frozen=True)
class TranscriptLine:
    """One thing that an agent said or did; data has all of its fields."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


def item_path(collection: str, item: str, action: str = "") -> str:
    """Return the path of an item, or of an action on it; raises InvalidInput for an empty id."""
    text = str(item).strip()
    if not text:
        raise InvalidInput(f"The id for {collection} is empty.")
    path = f"{collection}/{quote(text, safe='')}"
    if action:
        return f"{path}/{action}"
    return path


def absolute(directory: DirectoryPath) -> str:
    """Return a directory of this process as an absolute path."""
    try:
        return os.path.abspath(directory)
    except FileNotFoundError:
        raise InvalidInput(
            f"The current directory is gone, so {os.fspath(directory)!r} is nowhere.",
            hint="Name an absolute directory.",
        ) from None


def absolute_or_none(directory: DirectoryPath | None) -> str | None:
    if directory is None:
        return None
    return absolute(directory)


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON: specs, enums and times become what the daemon reads."""
    try:
        content: dict[str, Any] = to_jsonable_python(dict(values))
    except (PydanticSerializationError, TypeError) as error:
        raise InvalidInput(f"This cannot be sent: {error}.") from None
    return content


def read(kind: type[T], answer: object, place: str) -> T:
    """Return an answer as the type that it has; the place names the request in the error.

    A daemon of another version may answer what this client does not understand.
    """
    try:
        value: T = _make_adapter(kind).validate_python(answer)
    except ValidationError as error:
        raise KapelleError(
            f"{place} was answered with what cannot be read: {format_problems(error, 1)}.",
            hint="Is the daemon of the same version as this program, and is it Kapelle at all?",
        ) from None
    return value


def _make_adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def spec_body(name: str, subject: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec from its main field and others, or a whole one in which fields are replaced.

    A relative directory is one of this process; by default it is its current one.
    """
    spec = _merge_fields(name, subject, fields)
    spec["directory"] = absolute(spec.get("directory") or ".")
    return as_json(spec)


def schedule_body(kind: object, spec: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schedule from what it starts and its fields, or a whole one, likewise."""
    schedule = _merge_fields("kind", kind, fields)
    work = spec
    if work is None:
        work = schedule.pop("spec", None)
    if not isinstance(work, Spec | Mapping):
        raise InvalidInput(
            "The spec of what the schedule starts is missing.",
            hint="Give a spec, or its fields as a mapping.",
        )
    schedule["spec"] = spec_body("", work, {})
    return as_json(schedule)


def learning_body(title: str, content: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a learning; one that is not global belongs to the project of the directory."""
    body = {"title": title, "content": content, **fields}
    if body.get("scope") != "global" and not body.get("project"):
        body["directory"] = absolute(body.get("directory") or ".")
    return as_json(body)


def _merge_fields(name: str, subject: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(subject, Spec):
        values = subject.model_dump(exclude_unset=True)
    elif isinstance(subject, Mapping):
        values = dict(subject)
    elif subject is None:
        values = {}
    else:
        values = {name: subject}
    return {**values, **fields}
