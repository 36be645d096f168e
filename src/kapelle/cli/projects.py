"""`kapelle project`: what work belongs to."""

from typing import Annotated

from kapelle.cli.command import LISTS, Json, LightCommand, argument, command_group, flag
from kapelle.cli.config import current
from kapelle.cli.format import one_line, table
from kapelle.cli.ids import completing, here
from kapelle.cli.output import document, say, write
from kapelle.client.http import Connection

project = command_group("Make projects, rename them, put them away, switch between them." + LISTS)
_PATH = "/projects"
Name = Annotated[str, argument("NAME", "Its name.", autocompletion=completing("project"))]


@project.command("list", cls=LightCommand)
def list_projects(
    archived: Annotated[bool, flag("Those that were put away.", "--archived")] = False,
    as_json: Json = False,
) -> None:
    """List projects with their work; * is the current one of this repository."""
    found = [one for one in Connection().get(_PATH) if bool(one["archived_at"]) == archived]
    place = here() or str(current())
    rows = [
        ["*" if place in one["directories"] else "", one_line(one["name"]), str(one["open"]),
         str(one["work"])]
        for one in found
    ]  # fmt: skip
    if as_json:
        document(found)
    elif rows:
        write(table(["", "NAME", "OPEN", "ALL"], rows))
    else:
        say("None." if archived else "No projects yet; `kapelle run --project NAME` makes one.")


@project.command("create", cls=LightCommand)
def create(name: Name, as_json: Json = False) -> None:
    """Make a project; work that names a new one makes it as well."""
    made = Connection().post(_PATH, {"name": name})
    document(made) if as_json else say(f"{made['name']} is there.")


@project.command("rename", cls=LightCommand)
def rename(
    name: Name, to: Annotated[str, argument("TO", "Its new name.")], as_json: Json = False
) -> None:
    """Rename a project in all that belongs to it: work, schedules, notes and learnings."""
    made = Connection().put(_PATH, {"name": name, "to": to})
    document(made) if as_json else say(f"It is called {made['name']} now.")


@project.command("switch", cls=LightCommand)
def switch(
    name: Annotated[
        str | None, argument("[NAME]", "None leaves it.", autocompletion=completing("project"))
    ] = None,
    as_json: Json = False,
) -> None:
    """Have work in this repository belong to a project unless it names one itself."""
    found = Connection().put(f"{_PATH}/current", {"directory": str(current()), "name": name})
    about = f"belongs to {name} now" if name else "belongs to what the settings say"
    document(found) if as_json else say(f"What is started in this repository {about}.")


@project.command("archive", cls=LightCommand)
def archive(
    name: Name,
    undo: Annotated[bool, flag("Take it out again; its work stays away.", "--undo")] = False,
    as_json: Json = False,
) -> None:
    """Put a project away with all its ended work, which is kept; new work takes it out again."""
    made = Connection().put(_PATH, {"name": name, "archived": not undo})
    document(made) if as_json else say(f"{name} is {'back' if undo else 'put away'}.")
