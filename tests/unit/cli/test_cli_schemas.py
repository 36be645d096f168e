"""The command line is made of the specs; tests/e2e/test_one_schema.py adds a field to them."""

from docs import generate
from docs.services import idle_services

from kapelle.api.app import openapi
from kapelle.cli.schema import schemas
from kapelle.domain.schedule import ScheduleSpec
from kapelle.domain.specs import Spec, TaskSpec
from kapelle.patterns import registry
from kapelle.patterns.spec import PatternSpec

SPECS: dict[str, type[Spec]] = {
    "task": TaskSpec, "schedule": ScheduleSpec, "pattern": PatternSpec,
    **{pattern.name: pattern.spec for pattern in registry.load_built_in()},
}  # fmt: skip


def test_the_schemas_of_the_command_line_are_those_of_the_specs() -> None:
    known = schemas()
    assert generate.SCHEMAS.read_text(encoding="utf-8") == generate.schemas(), "run `make docs`"
    for name, made in generate.specs().items():
        fields = made["properties"].items()
        assert [*known[name]["properties"].items()] == [*fields]
        assert made["$defs"].items() <= known[name]["$defs"].items()
    for name, spec in SPECS.items():
        made = spec.model_json_schema()["properties"]
        unseen = made.keys() - known[name]["properties"].keys()
        assert unseen <= {"shell"}, "only what nobody types is left out"


def test_the_metadata_is_in_the_schema_of_the_api() -> None:
    properties = openapi(idle_services())["components"]["schemas"]["TaskSpec"]["properties"]
    assert properties["agent"]["x-cli"] == {
        "metavar": "NAME", "names": ["-a"], "kind": "agent", "complete": "agents"
    }  # fmt: skip
