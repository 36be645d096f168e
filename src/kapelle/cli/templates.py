"""`kapelle templates`: a person's own guidelines for work of one kind."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from kapelle.cli.command import LISTS, Json, LightCommand, argument, command_group, option
from kapelle.cli.format import cost, field, one_line, short, table
from kapelle.cli.ids import completing, template_path
from kapelle.cli.output import data, document, say, write
from kapelle.cli.spec_options import options_of, schemas, spec_of, spelled, with_parameters
from kapelle.client.http import Connection
from kapelle.domain.errors import InvalidInput

templates = command_group("Keep guidelines for work of one kind, and see what comes of it." + LISTS)
_PATH = "/templates"
Name = Annotated[str, argument("NAME", "What it is called.", autocompletion=completing(_PATH[1:]))]


@templates.command("list", cls=LightCommand)
def list_templates(as_json: Json = False) -> None:
    """List templates, with how many of their tasks succeeded."""
    found = Connection().get(_PATH)
    if as_json:
        document(found)
    elif not found:
        say('No templates yet. `kapelle templates create bugfix "Write a failing test first."`')
    else:
        rows = [
            [one["name"], one["agent"] or "", one["model"] or "", _succeeded(one["records"]),
             one_line(one["guidelines"])]
            for one in found
        ]  # fmt: skip
        write(table(["NAME", "AGENT", "MODEL", "SUCCEEDED", "GUIDELINES"], rows))


@templates.command("show", cls=LightCommand)
def show(name: Name, as_json: Json = False) -> None:
    """Show a template, and what came of the tasks that used it, for each model."""
    found = Connection().get(template_path(name))
    document(found) if as_json else write(_described(found))


def _put_command(verb: str) -> Callable[..., None]:
    """`create` and `edit`, which differ in what they begin with."""
    schema = dict(schemas()["template"])
    options = options_of(schema)
    more: dict[str, Any] = {}
    if verb == "edit":
        schema["x-cli"] = {"summary": "Change what is given of a template, its name too."}
        more["rename"] = Annotated[str | None, option("NAME", "Its new name.")]

    def put(**params: Any) -> None:
        if params["name"] is None:
            raise InvalidInput("NAME is missing.", hint=f"Write `kapelle templates {verb} NAME …`.")
        client = Connection()
        if verb == "edit":
            known = client.get(template_path(params["name"]))
            before = {one.key: known[one.key] for one in options}
            if params["guidelines"] is None and params["guidelines_file"] is None:
                params["guidelines"] = before["guidelines"]
        spec = spec_of(options, params, f"templates {verb}")
        with spelled(options):
            if verb == "create":
                made = client.post(_PATH, spec)
            else:
                name = {"name": params["rename"]} if params["rename"] else {}
                made = client.put(template_path(params["name"]), {**before, **spec, **name})
        document(made) if params["as_json"] else data(made["name"])

    return with_parameters(put, schema, options, {**more, "as_json": Json})


for _verb in ("create", "edit"):
    templates.command(_verb, cls=LightCommand)(_put_command(_verb))


@templates.command("delete", cls=LightCommand)
def delete(name: Name, as_json: Json = False) -> None:
    """Delete a template; its tasks keep what it told them."""
    gone = Connection().delete(template_path(name))
    document(gone) if as_json else say(f"{gone['name']} is deleted.")


def _succeeded(records: list[dict[str, Any]]) -> str:
    tasks = sum(one["tasks"] for one in records)
    return f"{sum(one['completed'] for one in records)} of {tasks}" if tasks else ""


def _described(found: dict[str, Any]) -> Iterator[str]:
    for name in ("name", "agent", "model", "directory"):
        if found[name]:
            yield field(name, one_line(found[name]))
    yield from ("", *(one_line(line) for line in found["guidelines"].split("\n")))
    rows = [
        [one["agent"], one["model"] or "", f"{one['completed']} of {one['tasks']}",
         f"{one['success_rate']:.0%}", cost(one["cost_usd"], 0), f"{one['turns'] or 0:.1f}",
         short(one["duration_s"] or 0)]
        for one in found["records"]
    ]  # fmt: skip
    if rows:
        heads = ["AGENT", "MODEL", "SUCCEEDED", "RATE", "COST", "TURNS", "TIME"]
        yield from ("", *table(heads, rows))
