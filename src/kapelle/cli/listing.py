"""`kapelle list`."""

from typing import Annotated, Any

import typer

from kapelle.cli.options import Json
from kapelle.cli.paging import show_list, status_option, statuses
from kapelle.cli.text import one_line
from kapelle.cli.values import optional_text
from kapelle.cli.waiting import what_it_waits_for
from kapelle.client.http import Connection as Client
from kapelle.domain.states import TaskStatus

_STATUSES = tuple(TaskStatus)


def list_tasks(
    status: Annotated[list[str] | None, status_option("tasks", _STATUSES)] = None,
    tag: Annotated[str | None, typer.Option(help="Only tasks with this tag.")] = None,
    project: Annotated[str | None, typer.Option(help="Only tasks of this project.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="Archived tasks too.")] = False,
    as_json: Json = False,
) -> None:
    """List tasks, the newest first."""
    query = {
        "status": statuses(status, "task", _STATUSES),
        "tag": optional_text(tag, "--tag"),
        "project": optional_text(project, "--project"),
        "archived": "true" if everything else None,
    }
    filtered = any((status, tag, project))
    nothing = "No tasks match." if filtered else 'No tasks. `kapelle run "…"` gives an agent one.'
    show_list(Client(), "/tasks", query, limit, as_json=as_json, lines=_lines, nothing=nothing)


def _lines(tasks: list[dict[str, Any]]) -> list[str]:
    from kapelle.cli.style import STATUS_STYLE, table
    from kapelle.cli.times import between

    rows = [
        [
            task["id"],
            task["status"],
            one_line(_agent(task), 16),
            between(task["created_at"], None),
            _title(task),
        ]
        for task in tasks
    ]
    styles = [STATUS_STYLE.get(task["status"]) for task in tasks]
    return table(["ID", "STATUS", "AGENT", "AGE", "TITLE"], rows, styles)


def _agent(task: dict[str, Any]) -> str:
    """Who works on it or did last, which may be a fallback agent."""
    who: str = (task["attempts"][-1] if task["attempts"] else task)["agent"]
    return who


def _title(task: dict[str, Any]) -> str:
    """The title, and what a task that is not going on by itself waits for."""
    title = one_line(task["title"])
    if task.get("archived_at"):
        return f"(archived) {title}"
    if task["status"] == TaskStatus.WAITING:
        return f"{title} ({one_line(what_it_waits_for(task))})"
    waits = task["status"] in {TaskStatus.QUEUED, TaskStatus.BLOCKED}
    return f"{title} ({one_line(task['reason'])})" if waits and task["reason"] else title
