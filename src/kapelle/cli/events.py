"""`kapelle events`."""

import sys
from typing import Annotated, Any

import typer

from kapelle.cli.client import Client
from kapelle.cli.options import Follow, JsonLines, complete_task
from kapelle.cli.output import json_line
from kapelle.cli.text import one_line
from kapelle.cli.times import moment


def events(
    follow: Follow = False,
    after: Annotated[
        int | None, typer.Option(min=0, metavar="SEQ", help="Only what came after it.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only this task's.", autocompletion=complete_task),
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """Show the history of everything that happened.

    With --follow and without --after, it begins now.
    """
    query = {"after": after, "task_id": task, "follow": "true" if follow else "false"}
    for event in Client().stream("/events", query, endless=follow):
        if "seq" not in event.data:
            continue
        if as_json:
            json_line(event.data)
        else:
            sys.stdout.write(event_line(event.data) + "\n")
            sys.stdout.flush()


def event_line(event: dict[str, Any]) -> str:
    """One event for people: number, local time, what happened, to which task."""
    at = moment(event["at"])
    when = at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else ""
    facts = " ".join(f"{key}={value}" for key, value in event["data"].items() if value is not None)
    return one_line(f"{event['seq']} {when} {event['kind']} {event['task_id'] or ''} {facts}", 400)
