"""`kapelle project`: what work belongs to."""

from typing import Annotated

from kapelle.cli.command import LISTS, CommandOutput, argument, command_group, flag
from kapelle.cli.config import current
from kapelle.cli.ids import completing, here
from kapelle.cli.output import say
from kapelle.cli.pages import columns, whole_list
from kapelle.client.http import DaemonConnection

project = command_group("Make, rename, archive, delete projects, switch between them." + LISTS)
_PATH = "/projects"
ProjectNameArgument = Annotated[
    str, argument("NAME", "Its name.", autocompletion=completing("project"))
]


@project.command("list")
def list_projects(
    archived: bool = flag("Those that were put away."),
) -> CommandOutput:
    """List projects with their work; * is the current one of this repository."""
    found = [one for one in DaemonConnection().get(_PATH) if bool(one["archived_at"]) == archived]
    if archived:
        nothing = "None."
    else:
        nothing = "No projects yet; `kapelle run --project NAME` makes one."
    place = here() or str(current())
    shown = columns(",NAME,OPEN,ALL", lambda one: [
        "*" if place in one["directories"] else "", one["name"], one["open"], one["work"]
    ])  # fmt: skip
    return whole_list(found, shown, nothing)


@project.command()
def create(name: ProjectNameArgument) -> CommandOutput:
    """Make a project; work that names a new one makes it as well."""
    yield (made := DaemonConnection().post(_PATH, {"name": name}))
    say(f"Project {made['name']} created.")


@project.command()
def rename(name: ProjectNameArgument, to: str = argument("TO", "Its new name.")) -> CommandOutput:
    """Rename a project in all that belongs to it: work, schedules, notes and learnings."""
    yield (made := DaemonConnection().put(_PATH, {"name": name, "to": to}))
    say(f"It is called {made['name']} now.")


@project.command()
def switch(
    name: str | None = argument("[NAME]", "None leaves it.", autocompletion=completing("project")),
) -> CommandOutput:
    """Have work in this repository belong to a project unless it names one itself."""
    yield DaemonConnection().put(f"{_PATH}/current", {"directory": str(current()), "name": name})
    if name:
        target = f"project {name}"
    else:
        target = "the project that the settings name"
    say(f"New work in this repository goes to {target}.")


@project.command()
def archive(
    name: ProjectNameArgument,
    undo: bool = flag("Take it out again; its work stays away."),
) -> CommandOutput:
    """Put a project away with all its ended work, which is kept; new work takes it out again."""
    yield DaemonConnection().put(_PATH, {"name": name, "archived": not undo})
    say(f"{name} is {'back' if undo else 'put away'}.")


@project.command()
def delete(name: ProjectNameArgument) -> CommandOutput:
    """Delete a project to which nothing belongs."""
    yield DaemonConnection().delete(_PATH, {"name": name})
    say(f"{name} is gone.")
