"""`kapelle diff`."""

import sys
from typing import Annotated

import typer

from kapelle.cli.ids import AnyId, is_run, path_of
from kapelle.cli.options import Json
from kapelle.cli.output import document, say
from kapelle.cli.style import colourful, paint
from kapelle.cli.text import clean
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput

_STYLES = {"+++": "bold", "---": "bold", "diff": "bold", "@@": "cyan", "+": "green", "-": "red"}


def diff(
    task_id: AnyId,
    stat: Annotated[
        bool, typer.Option("--stat", help="Only how much changed in which file.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The patch byte for byte, so that `git apply` takes it.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Instead, how it differs from that task's work."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a task or a run changed."""
    if against is not None and is_run(task_id):
        raise InvalidInput(
            "--against compares the work of two tasks.", hint="`kapelle runs status` lists them."
        )
    if raw and not stat and not as_json:
        sys.stdout.buffer.write(Client().get_bytes(path_of(task_id, "patch"), {})[0])
        return
    changes = Client().get(path_of(task_id, "diff"), {"against": against})
    if as_json:
        document(changes)
        return
    shown = changes["stat"] if stat else changes["patch"]
    if not shown.strip():
        say("It changed nothing.")
        return
    text = clean(shown)
    if colourful() and not stat:
        text = "\n".join(paint(line, _style(line)) for line in text.split("\n"))
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def _style(line: str) -> str | None:
    return next((style for start, style in _STYLES.items() if line.startswith(start)), None)
