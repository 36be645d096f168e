"""Every field of a spec is a keyword of the method that takes it, and of the same type."""

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from pydantic import ConfigDict, TypeAdapter
from pydantic_core import PydanticUndefined

from kapelle.client.synchronous.runs import Runs
from kapelle.client.synchronous.schedules import Schedules
from kapelle.client.synchronous.tasks import Tasks
from kapelle.domain.schedule import ScheduleSpec
from kapelle.domain.specs import Spec, TaskSpec
from kapelle.patterns.best_of import BestOfSpec
from kapelle.patterns.loop import LoopSpec
from kapelle.patterns.pipeline import PipelineSpec
from kapelle.patterns.team import TeamSpec

METHODS: list[tuple[Callable[..., Any], type[Spec]]] = [
    (Tasks.run, TaskSpec),
    (Runs.pipeline, PipelineSpec),
    (Runs.loop, LoopSpec),
    (Runs.team, TeamSpec),
    (Runs.best_of, BestOfSpec),
    (Schedules.create, ScheduleSpec),
]
NAMES = [spec.__name__ for _, spec in METHODS]


def keywords(method: Callable[..., Any]) -> dict[str, Any]:
    """The names that may be given, with their types; those in **options one by one."""
    found: dict[str, Any] = {}
    hints = get_type_hints(method)
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (options,) = get_args(hints[name])
            found |= get_type_hints(options)
        elif name != "self":
            found[name] = hints[name]
    return found


@pytest.mark.parametrize(("method", "spec"), METHODS, ids=NAMES)
def test_every_field_is_a_keyword_and_no_other(
    method: Callable[..., Any], spec: type[Spec]
) -> None:
    assert set(keywords(method)) == set(spec.model_fields) | {"idempotency_key"}


@pytest.mark.parametrize(("method", "spec"), METHODS, ids=NAMES)
def test_a_keyword_takes_the_default_of_its_field(
    method: Callable[..., Any], spec: type[Spec]
) -> None:
    given = keywords(method)
    checked = 0
    for name, field in spec.model_fields.items():
        if field.default is PydanticUndefined or name in {"kind", "prompt"}:
            continue
        _adapter(given[name]).validate_python(field.default, strict=True)
        checked += 1
    assert checked > 5


def _adapter(kind: Any) -> TypeAdapter[Any]:
    is_model = get_origin(kind) is None and hasattr(kind, "model_fields")
    return TypeAdapter(kind, config=None if is_model else ConfigDict(arbitrary_types_allowed=True))


def test_nothing_that_a_spec_refuses_is_a_choice() -> None:
    """Each word that a type names is one that the spec accepts."""
    for method, spec in METHODS:
        for name, kind in keywords(method).items():
            for word in _words(kind):
                wanted: Any = spec.model_fields[name].annotation
                TypeAdapter(wanted).validate_python(word)


def _words(kind: Any) -> list[str]:
    if get_args(kind) and all(isinstance(item, str) for item in get_args(kind)):
        return [*get_args(kind)]
    return [word for part in get_args(kind) for word in _words(part)]
