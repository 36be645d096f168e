"""The command line is made of the specs: a field that one gets is an option at once."""

import json
from pathlib import Path

import pytest
from pydantic import Field, create_model

from kapelle.api.app import routes
from kapelle.cli import commands, spec_options
from kapelle.cli.start import pattern_spec, task_spec
from kapelle.client.work import schedule_body, spec_body
from kapelle.domain.options import option
from kapelle.domain.schedule import ScheduleSpec
from kapelle.domain.specs import Spec, TaskSpec
from kapelle.patterns.best_of import BestOfSpec
from kapelle.patterns.loop import LoopSpec
from kapelle.patterns.pipeline import PipelineSpec
from kapelle.patterns.spec import PatternSpec
from kapelle.patterns.team import TeamSpec

SPECS: dict[str, type[Spec]] = {
    "task": TaskSpec, "schedule": ScheduleSpec, "pattern": PatternSpec, "pipeline": PipelineSpec,
    "loop": LoopSpec, "team": TeamSpec, "best-of": BestOfSpec,
}  # fmt: skip


def test_the_schemas_of_the_command_line_are_those_of_the_specs() -> None:
    made = {name: json.loads(json.dumps(spec.model_json_schema())) for name, spec in SPECS.items()}
    assert spec_options.schemas() == made, "run `make docs`"


@pytest.mark.parametrize("name", ["task", "loop"])
def test_a_field_that_a_spec_gets_is_found_everywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = Field(
        default=None, description="how loud", json_schema_extra=option("-l", metavar="DECIBEL")
    )
    model = create_model("Louder", __base__=SPECS[name], volume=(str | None, added))
    known = {**spec_options.schemas(), name: model.model_json_schema()}
    monkeypatch.setattr(spec_options, "schemas", lambda: known)
    monkeypatch.setattr("kapelle.cli.start.schemas", lambda: known)
    monkeypatch.chdir(tmp_path)
    command = commands.load("run" if name == "task" else name)
    line = ["quietly", "-l", "90"] + ([] if name == "task" else ["--until", "true"])
    context = command.make_context(name, line)
    assert "-l, --volume DECIBEL" in command.get_help(context)
    assert "How loud." in command.get_help(context)
    spec = task_spec(context.params) if name == "task" else pattern_spec(name, context.params)
    assert spec["volume"] == "90"
    assert model.model_validate(spec).model_dump()["volume"] == "90"
    sent = spec_body("prompt", "quietly", {"volume": "90"})
    assert sent["volume"] == "90"
    assert schedule_body(name, sent, {"every_s": 60})["spec"]["volume"] == "90"


def test_the_metadata_is_in_the_schema_of_the_api() -> None:
    properties = routes().openapi()["components"]["schemas"]["TaskSpec"]["properties"]
    assert properties["agent"]["x-cli"] == {"metavar": "NAME", "names": ["-a"]}
