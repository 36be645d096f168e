"""Errors tell the fields that they are about apart from their sentences."""

from typing import Any

import pytest
from pydantic import ValidationError

from kapelle.domain.errors import FieldProblem, InvalidInput, invalid_field, invalid_spec
from kapelle.domain.schedule import ScheduleSpec
from kapelle.domain.specs import TaskSpec
from kapelle.patterns.debate import DebateSpec
from kapelle.patterns.loop import LoopSpec
from kapelle.patterns.workflow import WorkflowSpec

HERE = {"directory": "/r"}


def refused(model: Any, values: dict[str, Any]) -> InvalidInput:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    return invalid_spec(caught.value, "spec: ")


def test_a_wrong_value_is_a_path_and_a_message() -> None:
    limits = [{"phase": "assess", "turns": 0}]
    error = refused(WorkflowSpec, {**HERE, "task": "x", "limits": limits})
    assert error.fields == (FieldProblem(("limits", 0, "turns"), "must be at least 1"),)
    assert error.message == "spec: limits.0.turns must be at least 1"


def test_every_wrong_value_has_its_own_path() -> None:
    error = refused(TaskSpec, {"budget_usd": 0, "env": {"a b": "secret"}})
    assert [one.path for one in error.fields] == [
        ("directory",),
        ("env", "a b"),
        ("budget_usd",),
        ("prompt",),
    ]
    assert {one.kind for one in error.fields} == {"value"}
    assert "secret" not in error.message


@pytest.mark.parametrize(
    ("model", "values", "names"),
    [
        (TaskSpec, {**HERE, "prompt": "x", "fork_session": True}, "fork_session continue_from"),
        (ScheduleSpec, {"kind": "task", "spec": {}}, "cron at every_s after"),
        (ScheduleSpec, {"kind": "task", "spec": {}, "at": "soon"}, "at"),
        (DebateSpec, {**HERE, "prompt": "x", "verify": True}, "verify checks action"),
        (LoopSpec, {**HERE, "prompt": "x"}, "until eval direction judge"),
    ],
)
def test_a_rule_names_its_fields(model: Any, values: dict[str, Any], names: str) -> None:
    (problem,) = refused(model, values).fields
    assert (problem.kind, problem.path) == ("rule", ())
    assert problem.names == tuple(names.split())
    # Exactly what is in backticks: whoever spells a field anew finds it there.
    assert all(f"`{name}`" in problem.message for name in problem.names)
    assert problem.message.count("`") == 2 * len(problem.names)


def test_a_rule_about_one_part_has_its_path() -> None:
    error = refused(TaskSpec, {**HERE, "prompt": "x", "checks": [{"kind": "command"}]})
    assert [(one.path, one.kind) for one in error.fields] == [(("checks", 0), "rule")]


def test_a_problem_is_said_behind_any_spelling_of_its_place() -> None:
    assert FieldProblem(("budget_usd",), "is missing").at("--budget") == "--budget is missing"
    assert invalid_field("at", "it has passed").fields[0].at("--at") == "--at: it has passed"
