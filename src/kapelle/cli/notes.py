"""`kapelle notes`: what agents and people leave for each other."""

import time
from typing import Annotated, Any

import typer

from kapelle.cli.command import LISTS, Json, LightCommand, argument, command_group, option
from kapelle.cli.format import local, table
from kapelle.cli.output import data, document, say
from kapelle.cli.pages import show_list
from kapelle.cli.prompt import read_prompt
from kapelle.cli.tasks import LONG_POLL_S, Timeout
from kapelle.cli.values import optional_duration_s
from kapelle.client.http import Connection

notes = command_group("Read and write notes that agents and people share." + LISTS)

Key = Annotated[str, argument("KEY", "Such as results/step1.")]
Scope = Annotated[str | None, option("SCOPE", "global, project:NAME, or the id of a task or run.")]
Expected = Annotated[
    int | None, option(None, "Only if it has this version; 0: if there is none.", min=0)
]


@notes.command("list", cls=LightCommand)
def list_notes(
    prefix: Annotated[str, argument("[PREFIX]", "How their keys begin.")] = "",
    scope: Scope = None,
    limit: Annotated[int, option(None, "How many at most.", min=1)] = 100,
    as_json: Json = False,
) -> None:
    """List the notes whose keys begin with a prefix."""
    query = {"scope": scope, "prefix": prefix}
    nothing = "No notes. `kapelle notes set KEY TEXT` writes one; --scope names another scope."
    show_list(Connection(), "/notes", query, limit, as_json=as_json, lines=_table, nothing=nothing)


@notes.command("get", cls=LightCommand)
def get(key: Key, scope: Scope = None, as_json: Json = False) -> None:
    """Print a note."""
    found = Connection().get("/notes/entry", {"scope": scope, "key": key})
    document(found) if as_json else data(found["value"])


@notes.command("set", cls=LightCommand)
def set_note(
    key: Key,
    text: Annotated[str | None, argument("TEXT", "What it says; - reads stdin.")] = None,
    scope: Scope = None,
    version: Expected = None,
    as_json: Json = False,
) -> None:
    """Write a note and print its version."""
    value = read_prompt(text, None, "`kapelle notes set KEY TEXT`", "text")
    body = {"key": key, "value": value, "scope": scope, "expected_version": version}
    _show(Connection().post("/notes", body), as_json)


@notes.command("delete", cls=LightCommand)
def delete(key: Key, scope: Scope = None, version: Expected = None, as_json: Json = False) -> None:
    """Delete a note."""
    query = {"scope": scope, "key": key, "expected_version": version}
    _show(Connection().delete("/notes", query), as_json)


@notes.command("watch", cls=LightCommand)
def watch(
    keys: Annotated[list[str], argument("KEY...", "All of them.")],
    scope: Scope = None,
    equals: Annotated[str | None, option("TEXT", "Until it is this.")] = None,
    after: Annotated[int | None, option("VERSION", "Until it changes after this.", min=0)] = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Wait until notes are there, change or equal a text, and print them; exit 2 in vain."""
    limit_s, began = optional_duration_s(timeout, "--timeout"), time.monotonic()
    query = {"keys": keys, "scope": scope, "equals": equals, "after": after}
    client, found = Connection(), dict[str, Any](met=False)
    while not found["met"]:
        left = LONG_POLL_S if limit_s is None else limit_s - (time.monotonic() - began)
        poll_s = round(max(0, min(left, LONG_POLL_S)), 3)
        found = client.get("/notes/watch", {**query, "timeout_s": poll_s}, timeout=poll_s + 30)
        if left <= 0:
            break
    if as_json:
        document(found)
    else:
        for note in found["notes"]:
            data(f"{note['key']}  {note['version']}  {note['value'] or 'deleted'}")
    if not found["met"]:
        say("kapelle: the time is up.")
        raise typer.Exit(2)


def _show(note: dict[str, Any], as_json: bool) -> None:
    document(note) if as_json else data(f"{note['version']}")


def _table(found: list[dict[str, Any]]) -> list[str]:
    rows = [
        [note["key"], str(note["version"]), str(note["size"]), note["task_id"] or note["author"],
         local(note["updated_at"])]
        for note in found
    ]  # fmt: skip
    return list(table(["KEY", "VERSION", "SIZE", "BY", "WRITTEN"], rows))
