"""`kapelle templates`: a person's own guidelines for one kind of work."""

from typing import TYPE_CHECKING, Any

from kapelle.cli import parser
from kapelle.cli.field_errors import name_options
from kapelle.cli.figures import format_cost, format_seconds
from kapelle.cli.ids import complete, template_path
from kapelle.cli.layout import field_line
from kapelle.cli.output import plain_line
from kapelle.cli.pages import columns, whole_list
from kapelle.cli.parser import CliCommand, CliGroup, CliOption, argument, reports
from kapelle.cli.result import Result
from kapelle.cli.schema import schemas
from kapelle.cli.spec_options import options_of, params_of
from kapelle.cli.spec_values import read_spec
from kapelle.cli.text import one_line
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput

if TYPE_CHECKING:
    from kapelle.client.records import TemplateJson, TemplateRecordJson

templates = CliGroup(
    "templates",
    help="Keep guidelines for one kind of work, and see its success rate."
    + parser.LISTS_BY_DEFAULT,
    default_command="list",
    examples=[
        'kapelle templates create bugfix "Write a failing test first."',
        'kapelle run "fix the login" --template bugfix',
    ],
)
name_argument = argument(
    "name", metavar="NAME", help="Name of the template.", shell_complete=complete("templates")
)


def _list_cells(template: "TemplateJson") -> list[str]:
    records = template["records"]
    completed = sum(record["completed"] for record in records)
    tasks = sum(record["tasks"] for record in records)
    names = [template["name"], template["agent"] or "", template["model"] or ""]
    return [*names, f"{completed} of {tasks}", template["guidelines"]]


@templates.command("list")
@reports
def list_templates() -> Result:
    """List templates with the number of their tasks that succeeded."""
    nothing = 'No templates yet. `kapelle templates create bugfix "Write a failing test first."`'
    lines = columns("NAME,AGENT,MODEL,SUCCEEDED,GUIDELINES", _list_cells)
    return whole_list(DaemonConnection().get("/templates"), lines, nothing)


def _record_cells(record: "TemplateRecordJson") -> list[str]:
    return [
        record["agent"],
        record["model"] or "",
        f"{record['completed']} of {record['tasks']}",
        f"{record['success_rate']:.0%}",
        format_cost(record["cost_usd"], 0),
        f"{record['turns'] or 0:.1f}",
        format_seconds(record["duration_s"] or 0),
    ]


@templates.command("show")
@name_argument
@reports
def show(name: str) -> Result:
    """Show a template with the outcomes of its tasks, for each model."""
    template = DaemonConnection().get(template_path(name))
    lines = [
        field_line(key, one_line(template[key]))
        for key in ("name", "agent", "model", "directory")
        if template[key]
    ]
    guidelines = template["guidelines"].split("\n")
    lines += ["", *(one_line(line) for line in guidelines), ""]
    table = columns("AGENT,MODEL,SUCCEEDED,RATE,COST,TURNS,TIME", _record_cells)
    return Result(template, [*lines, *table(template["records"])])


_OPTIONS = options_of(schemas()["template"])


def _spec(name: str, params: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return the template that was typed; fields that were not are those of the earlier one."""
    typed = read_spec(_OPTIONS, params, f"templates create {name}")
    merged = {**earlier, **typed}
    return {option.key: merged.get(option.key) for option in _OPTIONS}


def _require_name(params: dict[str, Any]) -> str:
    name: str | None = params["name"]
    if name is None:
        raise InvalidInput(
            "NAME is missing.", hint="Write it first; `kapelle templates` lists the names."
        )
    return name


@reports
def _create(**params: Any) -> Result:
    name = _require_name(params)
    spec = {**_spec(name, params, {}), "name": name}
    with name_options(_OPTIONS):
        template = DaemonConnection().post("/templates", spec)
    return Result(template, [plain_line(template["name"])])


@reports
def _edit(**params: Any) -> Result:
    name = _require_name(params)
    client = DaemonConnection()
    earlier = client.get(template_path(name))
    if params["guidelines_file"] is None:
        params["guidelines"] = params["guidelines"] or earlier["guidelines"]
    spec = {**_spec(name, params, earlier), "name": params["rename"] or name}
    with name_options(_OPTIONS):
        template = client.put(template_path(name), spec)
    return Result(template, [plain_line(template["name"])])


templates.add_command(
    CliCommand(
        "create",
        params=[*params_of(_OPTIONS), parser.json_option()],
        callback=_create,
        help="Create a template: guidelines for one kind of work, with its agent and directory.",
        examples=['kapelle templates create bugfix "Write a failing test first." -a claude'],
    )
)
templates.add_command(
    CliCommand(
        "edit",
        params=[
            *params_of(_OPTIONS),
            CliOption(["rename", "--rename"], metavar="NAME", help="New name of the template."),
            parser.json_option(),
        ],
        callback=_edit,
        help="Change the fields of a template that are typed, and its name.",
        examples=["kapelle templates edit bugfix --model large"],
    )
)


@templates.command("delete")
@name_argument
@reports
def delete(name: str) -> Result:
    """Delete a template; tasks that used it keep their guidelines."""
    template = DaemonConnection().delete(template_path(name))
    return Result(template, remarks=[f"{template['name']} is deleted."])
