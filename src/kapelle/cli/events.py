"""`kapelle events`."""

import sys
from typing import Annotated, Any

import typer

from kapelle.cli.ids import complete_run, complete_task
from kapelle.cli.options import Follow, JsonLines
from kapelle.cli.output import json_line
from kapelle.cli.text import one_line
from kapelle.cli.times import moment
from kapelle.client.http import Connection as Client


def events(
    follow: Follow = False,
    after: Annotated[
        int | None, typer.Option(min=0, metavar="SEQ", help="Only what came after it.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only this task's.", autocompletion=complete_task),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Only this run's and its tasks'.", autocompletion=complete_run
        ),
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """Show the history of everything that happened.

    With --follow and without --after, it begins now.
    """
    query = {
        "after": after, "task_id": task, "run_id": run, "follow": "true" if follow else "false",
    }  # fmt: skip
    for event in Client().stream("/events", query, endless=follow):
        if "seq" not in event.data:
            continue
        if as_json:
            json_line(event.data)
        else:
            sys.stdout.write(event_line(event.data) + "\n")
            sys.stdout.flush()


def event_line(event: dict[str, Any]) -> str:
    """One event for people: number, local time, what happened, to which task or run."""
    facts = _facts(event["kind"], event["data"])
    subject = event["task_id"] or event.get("run_id") or ""
    words = f"{event['seq']} {_clock(event['at'])} {event['kind']} {subject} {facts}"
    return one_line(words, 400)


def _clock(text: str) -> str:
    at = moment(text)
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else ""


def _facts(kind: str, data: dict[str, Any]) -> str:
    match kind, data:
        case "account.paused", {"reason": reason, "until": until}:
            at = moment(until)
            return (
                f"{reason}; it pauses until {at.astimezone():%Y-%m-%d %H:%M:%S}" if at else reason
            )
        case "attempt.warning", {"text": text}:
            return str(text)
        case "attempt.diagnosed", {"agent": agent, "text": text}:
            return f"by {agent}: {text}"
    return " ".join(f"{key}={value}" for key, value in data.items() if value is not None)
