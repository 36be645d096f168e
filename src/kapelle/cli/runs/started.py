"""What a command that started a run shows: its id, or the run to its end."""

import sys
from typing import Any

import typer

from kapelle.cli.output import data, document, json_line, say
from kapelle.cli.starting import begin
from kapelle.client.http import Connection as Client


def start_run(pattern: str, spec: dict[str, Any], *, follow: bool, as_json: bool) -> None:
    """Start a run and show it as the options of its command ask for."""
    client = Client()
    run = begin(client, "/runs", {"pattern": pattern, "spec": spec})
    if follow:
        _follow(client, run, as_json)
    elif as_json:
        document(run)
    else:
        data(run["id"])
        if sys.stdout.isatty():
            say(f"Follow it with `kapelle runs tail {run['id']}`.")


def _follow(client: Client, run: dict[str, Any], as_json: bool) -> None:
    from kapelle.cli.outcome import exit_code
    from kapelle.cli.runs.follow import conclude, display_of, follow_run

    if as_json:
        json_line(run)
    else:
        data(run["id"])
        sys.stdout.flush()
    ended = follow_run(client, run, display_of(run, as_json=as_json)).run
    if as_json:
        json_line({"event": "end", "status": ended["status"], "run": ended})
    else:
        conclude(ended)
    raise typer.Exit(exit_code(ended))
