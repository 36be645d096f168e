"""`kapelle batches`: saved lists of tasks for `kapelle batch --list`."""

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kapelle.cli import help_page, parser
from kapelle.cli.figures import local_time
from kapelle.cli.output import plain_line
from kapelle.cli.pages import columns, whole_list
from kapelle.cli.parser import CliGroup, argument, flag, reports
from kapelle.cli.result import Result
from kapelle.cli.text import one_line
from kapelle.cli.types import FILE
from kapelle.cli.values import read_prompt
from kapelle.client.http import DaemonConnection
from kapelle.domain.batch import NAME, detect_format, list_unknown_fields
from kapelle.domain.errors import InvalidInput
from kapelle.domain.text import format_count

if TYPE_CHECKING:
    from kapelle.client.records import BatchJson

batches = CliGroup(
    "batches",
    help="Save and edit lists of tasks for `kapelle batch --list`." + parser.LISTS_BY_DEFAULT,
    default_command="list",
    examples=["kapelle batches save chores chores.md", "kapelle batch --list chores"],
)

name_argument = argument("name", metavar="NAME", help="Name of the list.")


@batches.command("list")
@reports
def list_batches() -> Result:
    """List the saved lists."""

    def row(batch: "BatchJson") -> list[Any]:
        return [batch["name"], len(batch["items"]), local_time(batch["updated_at"])]

    lines = columns("NAME,ITEMS,SAVED", row)
    nothing = "No lists. `kapelle batches save NAME FILE` saves one."
    return whole_list(DaemonConnection().get("/batches"), lines, nothing)


@batches.command("show")
@name_argument
@flag("--csv", "as_csv", help="CSV instead of Markdown.", group=help_page.OUTPUT)
@reports
def show_batch(name: str, as_csv: bool) -> Result:
    """Print a list as Markdown or CSV, as `save` takes it."""
    batch = DaemonConnection().get(_path(name))
    text = batch["csv"] if as_csv else batch["markdown"]
    return Result(batch, text.splitlines())


@batches.command("save", examples=["kapelle batches save chores chores.md"])
@name_argument
@argument(
    "file", metavar="FILE", type=FILE, help="List in .md or .csv; - reads Markdown from stdin."
)
@reports
def save(name: str, file: Path) -> Result:
    """Save a list under a name, in place of an earlier one."""
    body = {"text": read_prompt(None, file, noun="list"), "format": detect_format(file.name)}
    return _save(DaemonConnection(), name, body)


@batches.command("edit")
@name_argument
@reports
def edit(name: str) -> Result:
    """Edit a list in your editor ($VISUAL or $EDITOR)."""
    client = DaemonConnection()
    batch = client.get(_path(name))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / f"{name}.md"
        file.write_text(batch["markdown"], encoding="utf-8")
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        process = subprocess.run([*shlex.split(editor), str(file)], check=False)
        if process.returncode != 0:
            raise InvalidInput(
                f"{editor} ended with code {process.returncode}: nothing was changed."
            )
        text = file.read_text(encoding="utf-8")
    return _save(client, name, {"text": text, "expected_version": batch["version"]})


def _save(client: DaemonConnection, name: str, body: dict[str, Any]) -> Result:
    batch = client.put(_path(name), body)
    remarks = []
    if body.get("format") != "csv":
        for word in list_unknown_fields(body["text"]):
            remarks.append(f"`- {word}:` is no field, so it is part of the prompt.")
    return Result(batch, [plain_line(format_count(len(batch["items"]), "item"))], remarks)


@batches.command("delete")
@name_argument
@reports
def delete(name: str) -> Result:
    """Delete a list."""
    batch = DaemonConnection().delete(_path(name))
    return Result(batch, [one_line(name)])


def _path(name: str) -> str:
    """Return the path of a list in the API; raises InvalidInput for a name that cannot be."""
    if not re.match(NAME, name):
        hint = "Use up to 100 letters, digits, spaces, dots, dashes and underscores."
        raise InvalidInput(f"{name!r} cannot be the name of a list.", hint=hint)
    return f"/batches/{quote(name, safe='')}"
