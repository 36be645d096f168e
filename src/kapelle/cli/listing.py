"""`kapelle list`."""

import sys
from typing import Annotated, Any

import typer

from kapelle.cli.client import Client
from kapelle.cli.options import Json
from kapelle.cli.output import document, say
from kapelle.cli.text import one_line
from kapelle.cli.values import listed, not_empty
from kapelle.cli.waiting import what_it_waits_for
from kapelle.domain.errors import InvalidInput
from kapelle.domain.states import TaskStatus

PAGE = 200


def _complete_status(incomplete: str) -> list[str]:
    return [status for status in TaskStatus if status.startswith(incomplete)]


def list_tasks(
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help="Only tasks in this state; repeatable.",
            autocompletion=_complete_status,
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only tasks with this tag.")] = None,
    project: Annotated[str | None, typer.Option(help="Only tasks of this project.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="Archived tasks too.")] = False,
    as_json: Json = False,
) -> None:
    """List tasks, the newest first."""
    query = {
        "status": known_statuses(status or []) or None,
        "tag": tag if tag is None else not_empty(tag, "--tag"),
        "project": project if project is None else not_empty(project, "--project"),
        "archived": "true" if everything else None,
    }
    tasks, more = _fetch(Client(), query, limit)
    if as_json:
        document(tasks)
        return
    if not tasks:
        filtered = any((status, tag, project))
        say("No tasks match." if filtered else 'No tasks. `kapelle run "…"` gives an agent one.')
        return
    sys.stdout.writelines(f"{line}\n" for line in _lines(tasks))
    if more:
        say(f"There are more; `--limit {limit * 5}` shows further ones.")


def known_statuses(typed: list[str]) -> list[str]:
    """The states asked for, each of which must exist."""
    wanted = [status.lower() for status in listed(typed, "--status")]
    for status in wanted:
        if status not in list(TaskStatus):
            raise InvalidInput(
                f"{status!r} is not a state of a task.", hint=f"Use one of {', '.join(TaskStatus)}."
            )
    return wanted


def _fetch(client: Client, query: dict[str, Any], limit: int) -> tuple[list[dict[str, Any]], bool]:
    tasks: list[dict[str, Any]] = []
    cursor = None
    while len(tasks) < limit:
        page_size = min(PAGE, limit - len(tasks))
        page = client.get("/tasks", {**query, "limit": page_size, "cursor": cursor})
        tasks += page["tasks"]
        cursor = page["next_cursor"]
        if not cursor:
            break
    return tasks, bool(cursor)


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
