"""`kapelle templates`: a person's own guidelines for work of one kind."""

from collections.abc import Callable
from typing import Annotated, Any

from kapelle.cli.command import LISTS, CommandOutput, argument, command_group, option
from kapelle.cli.format import cost, field, one_line, short
from kapelle.cli.ids import completing, template_path
from kapelle.cli.output import data, say
from kapelle.cli.pages import columns, whole_list
from kapelle.cli.spec_options import options_of, schemas, spec_of, spelled, with_parameters
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput

templates = command_group("Keep guidelines for work of one kind, and see what comes of it." + LISTS)
TemplateNameArgument = Annotated[
    str, argument("NAME", "Its name.", autocompletion=completing("templates"))
]


@templates.command("list")
def list_templates() -> CommandOutput:
    """List templates, with how many of their tasks succeeded."""

    def row(one: dict[str, Any]) -> list[str]:
        done, all_ = (sum(two[key] for two in one["records"]) for key in ("completed", "tasks"))
        named = [one["name"], one["agent"] or "", one["model"] or ""]
        return [*named, f"{done} of {all_}", one["guidelines"]]

    nothing = 'No templates yet. `kapelle templates create bugfix "Write a failing test first."`'
    shown = columns("NAME,AGENT,MODEL,SUCCEEDED,GUIDELINES", row)
    return whole_list(DaemonConnection().get("/templates"), shown, nothing)


@templates.command()
def show(name: TemplateNameArgument) -> CommandOutput:
    """Show a template, and what came of the tasks that used it, for each model."""
    yield (found := DaemonConnection().get(template_path(name)))
    named = ("name", "agent", "model", "directory")
    yield from (field(name, one_line(found[name])) for name in named if found[name])
    yield from ("", *map(one_line, found["guidelines"].split("\n")), "")
    yield from columns("AGENT,MODEL,SUCCEEDED,RATE,COST,TURNS,TIME", lambda one: [
        one["agent"], one["model"] or "", f"{one['completed']} of {one['tasks']}",
        f"{one['success_rate']:.0%}", cost(one["cost_usd"], 0), f"{one['turns'] or 0:.1f}",
        short(one["duration_s"] or 0),
    ])(found["records"])  # fmt: skip


def _put_command(summary: str, more: dict[str, Any]) -> Callable[..., CommandOutput]:
    """`create`, or with a new name to give it `edit`, which begins with what there is."""
    schema = {**schemas()["template"], "x-cli": {"summary": summary}}
    options = options_of(schema)

    def put(**params: Any) -> CommandOutput:
        if (name := params["name"]) is None:
            raise InvalidInput("NAME is missing.", hint="Write it first; `kapelle templates`.")
        client = DaemonConnection()
        if more:
            known = client.get(template_path(name))
        else:
            known = {}
        if more and params["guidelines_file"] is None:
            params["guidelines"] = params["guidelines"] or known["guidelines"]
        given = {**known, **spec_of(options, params, f"templates create {name}")}
        spec = {option.key: given.get(option.key) for option in options}
        spec["name"] = params.get("rename") or name
        with spelled(options):
            if more:
                kept = client.put(template_path(name), spec)
            else:
                kept = client.post("/templates", spec)
        yield kept
        data(kept["name"])

    return with_parameters(put, schema, options, more)


_RENAME = {"rename": Annotated[str | None, option("NAME", "Its new name.")]}
templates.command("create")(
    _put_command("Keep guidelines for work of one kind, and who does it where.", {})
)
templates.command("edit")(
    _put_command("Change what is given of a template, its name too.", _RENAME)
)


@templates.command()
def delete(name: TemplateNameArgument) -> CommandOutput:
    """Delete a template; its tasks keep what it told them."""
    yield (gone := DaemonConnection().delete(template_path(name)))
    say(f"{gone['name']} is deleted.")
