"""What `kapelle run` and `kapelle continue` show of a task that they started."""

import sys
from typing import Any

import typer

from kapelle.cli.output import data, document, json_line, say
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput


def repeat(spec: dict[str, Any], every: str, follow: bool, as_json: bool) -> None:
    """Create a schedule that does it again and again, and print the schedule's id."""
    from kapelle.cli.schedules.create import every_s, send

    if follow:
        raise InvalidInput(
            "--every and --follow exclude each other: it may go on for ever.",
            hint="`kapelle schedule status ID` shows how it gets on.",
        )
    send({"kind": "task", "spec": spec, "every_s": every_s(every)}, as_json)


def show_new(
    client: Client, task: dict[str, Any], to_end: bool, as_json: bool, after: int | None = None
) -> None:
    """The id of a task that was just begun; to its end if asked for, behind an attempt if given."""
    if to_end:
        _follow(client, task, as_json, after)
    elif as_json:
        document(task)
    else:
        _tell(task["id"])


def _tell(task_id: str) -> None:
    data(task_id)
    if sys.stdout.isatty():
        say(f"Follow it with `kapelle logs -f {task_id}`.")


def _follow(client: Client, task: dict[str, Any], as_json: bool, after: int | None) -> None:
    from kapelle.cli.follow import conclude, follow_task
    from kapelle.cli.outcome import exit_code

    if as_json:
        json_line(task)
    else:
        data(task["id"])
        sys.stdout.flush()
    ended = follow_task(client, task, as_json=as_json, after=after)
    if as_json:
        json_line({"event": "end", "status": ended["status"], "task": ended})
    else:
        conclude(ended)
    raise typer.Exit(exit_code(ended))
