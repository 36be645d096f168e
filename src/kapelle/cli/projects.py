"""`kapelle project`."""

from typing import TYPE_CHECKING, Any

from kapelle.cli import parser
from kapelle.cli.config import current
from kapelle.cli.ids import complete, here
from kapelle.cli.pages import columns, whole_list
from kapelle.cli.parser import CliGroup, argument, flag, reports
from kapelle.cli.result import Result
from kapelle.client.http import DaemonConnection

if TYPE_CHECKING:
    from kapelle.client.records import ProjectJson

project = CliGroup(
    "project",
    help="Create, rename, archive, delete and switch projects." + parser.LISTS_BY_DEFAULT,
    default_command="list",
    examples=["kapelle project create billing", "kapelle project switch billing"],
)
_PATH = "/projects"
name_argument = argument(
    "name", metavar="NAME", help="Name of the project.", shell_complete=complete("project")
)


@project.command("list")
@flag("--archived", help="Archived projects instead.")
@reports
def list_projects(archived: bool) -> Result:
    """List projects with their work; * marks the current one of this repository."""
    answer = DaemonConnection().get(_PATH)
    projects = [one for one in answer if bool(one["archived_at"]) == archived]
    nothing = "No projects yet; `kapelle run --project NAME` creates one."
    if archived:
        nothing = "No archived projects."
    place = here() or str(current())

    def row(project: "ProjectJson") -> list[Any]:
        mark = "*" if place in project["directories"] else ""
        return [mark, project["name"], project["open"], project["work"]]

    return whole_list(projects, columns(",NAME,OPEN,ALL", row), nothing)


@project.command("create")
@name_argument
@reports
def create(name: str) -> Result:
    """Create a project; work that names a new one creates it as well."""
    answer = DaemonConnection().post(_PATH, {"name": name})
    return Result(answer, remarks=[f"Project {answer['name']} created."])


@project.command("rename")
@name_argument
@argument("to", metavar="TO", help="New name.")
@reports
def rename(name: str, to: str) -> Result:
    """Rename a project in all that belongs to it: work, schedules, notes and learnings."""
    answer = DaemonConnection().put(_PATH, {"name": name, "to": to})
    return Result(answer, remarks=[f"Project {name} is now called {answer['name']}."])


@project.command("switch")
@argument(
    "name",
    metavar="NAME",
    required=False,
    help="Name of the project; without one, the current project is left.",
    shell_complete=complete("project"),
)
@reports
def switch(name: str | None) -> Result:
    """Set the project of new work in this repository that names none itself."""
    body = {"directory": str(current()), "name": name}
    answer = DaemonConnection().put(f"{_PATH}/current", body)
    target = f"project {name}" if name else "the project that the settings name"
    return Result(answer, remarks=[f"New work in this repository goes to {target}."])


@project.command("archive")
@name_argument
@flag("--undo", help="Restore the project; its work stays archived.")
@reports
def archive(name: str, undo: bool) -> Result:
    """Archive a project with all its ended work; new work restores the project."""
    answer = DaemonConnection().put(_PATH, {"name": name, "archived": not undo})
    state = "restored" if undo else "archived"
    return Result(answer, remarks=[f"Project {name} is {state}."])


@project.command("delete")
@name_argument
@reports
def delete(name: str) -> Result:
    """Delete a project to which nothing belongs."""
    answer = DaemonConnection().delete(_PATH, {"name": name})
    return Result(answer, remarks=[f"Project {name} is deleted."])
