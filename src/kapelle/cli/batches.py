"""`kapelle batches`: lists of work that are kept, changed, and worked off again and again."""

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from kapelle.cli.command import LISTS, CommandOutput, argument, command_group, flag
from kapelle.cli.format import local, one_line
from kapelle.cli.output import data, say
from kapelle.cli.pages import columns, whole_list
from kapelle.cli.values import read_prompt
from kapelle.client.http import DaemonConnection
from kapelle.domain.batch import NAME, detect_format, list_unknown_fields
from kapelle.domain.errors import InvalidInput
from kapelle.domain.text import format_count

batches = command_group(
    "Keep lists of work, and work them off with `kapelle batch --list`." + LISTS
)

BatchNameArgument = Annotated[str, argument("NAME", "What the list is called.")]


@batches.command("list")
def list_batches() -> CommandOutput:
    """List what is saved."""
    shown = columns(
        "NAME,ITEMS,SAVED", lambda one: [one["name"], len(one["items"]), local(one["updated_at"])]
    )
    nothing = "No lists. `kapelle batches save NAME FILE` keeps one."
    return whole_list(DaemonConnection().get("/batches"), shown, nothing)


@batches.command("show")
def show_batch(
    name: BatchNameArgument, as_csv: bool = flag("As CSV instead of Markdown.", "--csv")
) -> CommandOutput:
    """Print a list as Markdown or CSV, as `save` takes it."""
    yield (found := DaemonConnection().get(_path(name)))
    yield from found["csv" if as_csv else "markdown"].splitlines()


@batches.command()
def save(
    name: BatchNameArgument,
    file: Path = argument("FILE", "A list in .md or .csv; - reads Markdown from stdin."),
) -> CommandOutput:
    """Keep a list under a name; what was there is replaced."""
    body = {"text": read_prompt(None, file, noun="list"), "format": detect_format(file.name)}
    return _saved(DaemonConnection(), name, body)


@batches.command()
def edit(name: BatchNameArgument) -> CommandOutput:
    """Change a list in your editor ($VISUAL or $EDITOR)."""
    client = DaemonConnection()
    found = client.get(_path(name))
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / f"{name}.md"
        file.write_text(found["markdown"], encoding="utf-8")
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        if code := subprocess.run([*shlex.split(editor), str(file)], check=False).returncode:
            raise InvalidInput(f"{editor} ended with code {code}: nothing was changed.")
        text = file.read_text(encoding="utf-8")
    return _saved(client, name, {"text": text, "expected_version": found["version"]})


def _saved(client: DaemonConnection, name: str, body: dict[str, Any]) -> CommandOutput:
    yield (found := client.put(_path(name), body))
    data(format_count(len(found["items"]), "item"))
    for word in list_unknown_fields(body["text"]) if body.get("format") != "csv" else ():
        say(f"`- {word}:` is no field, so it is part of the prompt.")


@batches.command()
def delete(name: BatchNameArgument) -> CommandOutput:
    """Delete a list; `kapelle batches show` printed it before that."""
    yield DaemonConnection().delete(_path(name))
    data(one_line(name))


def _path(name: str) -> str:
    if not re.match(NAME, name):
        hint = "Use up to 100 letters, digits, spaces, dots, dashes and underscores."
        raise InvalidInput(f"{name!r} cannot be the name of a list.", hint=hint)
    return f"/batches/{quote(name, safe='')}"
