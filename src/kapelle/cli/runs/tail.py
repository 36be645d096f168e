"""`kapelle runs tail`, which `kapelle logs` uses for runs as well."""

import sys
from typing import Annotated

import typer

from kapelle.cli.ids import RunId, run_path
from kapelle.cli.options import JsonLines
from kapelle.cli.outcome import exit_code
from kapelle.cli.output import json_line, say
from kapelle.cli.runs.follow import conclude, display_of, follow_run, show_last, show_lines
from kapelle.client.http import Connection as Client


def tail(
    run_id: RunId,
    last: Annotated[
        int | None,
        typer.Option("--tail", min=0, metavar="NUMBER", help="Of the past only so many lines."),
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """Show what a run does until it has ended, waits or is paused.

    Exits with 0 when it is completed, 1 when it failed or was cancelled, 3 when it needs input
    or is paused.
    """
    follow_to_end(Client(), run_id, last, as_json)


def follow_to_end(client: Client, run_id: str, last: int | None, as_json: bool) -> None:
    """Show a run until it rests, and exit with what became of it."""
    run = client.get(run_path(run_id))
    display = display_of(run, as_json=as_json)
    ended = follow_run(client, run, display, tail=last, raw=as_json).run
    if as_json:
        json_line({"event": "end", "status": ended["status"]})
    else:
        conclude(ended)
    raise typer.Exit(exit_code(ended))


def show_past(client: Client, run_id: str, last: int | None, as_json: bool) -> None:
    """Show what a run did so far."""
    whole_id = client.get(run_path(run_id))["id"]
    show = json_line if as_json else show_lines(sys.stdout)
    if not show_last(client, whole_id, show, last, raw=as_json) and not as_json:
        say("It has not done anything yet.")
