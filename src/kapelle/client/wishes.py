"""What is asked for, as the body of a request."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from kapelle.client.options import Directory
from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import Spec
from kapelle.patterns.pipeline import PipelineSpec, StepSpec


def wish(name: str, subject: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """A spec from its main field and options, or a whole one in which options replace fields.

    A relative directory is one of this process; left out, it is where this process stands.
    """
    given = _given(name, subject, options)
    given["directory"] = absolute(given.get("directory") or ".")
    return as_json(given)


def pipeline_steps(steps: Sequence[str | StepSpec | PipelineSpec]) -> object:
    """Steps one by one, or a whole pipeline, which then stands alone."""
    whole = [step for step in steps if isinstance(step, PipelineSpec)]
    if not whole:
        return [*steps]
    if len(steps) > 1:
        raise InvalidInput("A pipeline is either one PipelineSpec or its steps.")
    return whole[0]


def schedule_wish(kind: object, spec: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule from what it starts and options, or a whole one, likewise."""
    given = _given("kind", kind, options)
    work = given.pop("spec", None) if spec is None else spec
    if not isinstance(work, Spec | Mapping):
        raise InvalidInput(
            "What the schedule is to start is missing.",
            hint="Give a spec, or its fields as a mapping.",
        )
    given["spec"] = wish("", work, {})
    return as_json(given)


def _given(name: str, subject: object, options: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(subject, Spec):
        given = subject.model_dump(exclude_unset=True)
    elif isinstance(subject, Mapping):
        given = dict(subject)
    else:
        given = {} if subject is None else {name: subject}
    given.update(options)
    given.pop("idempotency_key", None)
    return given


def absolute(directory: Directory) -> str:
    try:
        return os.path.abspath(directory)
    except FileNotFoundError:
        raise InvalidInput(
            f"The current directory is gone, so {os.fspath(directory)!r} is nowhere.",
            hint="Name an absolute directory.",
        ) from None


def as_json(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = to_jsonable_python(dict(given))
    except (PydanticSerializationError, TypeError) as error:
        raise InvalidInput(f"This cannot be sent: {error}.") from None
    return found
