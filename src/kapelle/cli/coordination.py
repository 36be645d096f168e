"""`kapelle notes`, what agents and people leave for each other, and `kapelle locks`, who holds
which files."""

import os
from operator import itemgetter
from typing import Annotated, Any

from kapelle.cli.command import (
    LISTS,
    CommandExit,
    CommandOutput,
    argument,
    command_group,
    flag,
    option,
)
from kapelle.cli.format import ERROR, local, short
from kapelle.cli.output import data, say
from kapelle.cli.pages import LimitOption, columns, listing, whole_list
from kapelle.cli.tasks import Timeout
from kapelle.cli.values import duration_s, optional, read_prompt
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import LONG_POLL_S

notes = command_group("Read and write notes that agents and people share." + LISTS)

NoteKeyArgument = Annotated[str, argument("KEY", "Such as results/step1.")]
NoteScopeOption = Annotated[
    str | None, option("SCOPE", "global, project:NAME, or the id of a task or run.")
]
ExpectedVersionOption = Annotated[
    int | None, option(None, "Only if it has this version; 0: if there is none.", min=0)
]


@notes.command("list")
def list_notes(
    prefix: str = argument("[PREFIX]", "How their keys begin.", default=""),
    scope: NoteScopeOption = None,
    limit: LimitOption = 100,
) -> CommandOutput:
    """List the notes whose keys begin with a prefix."""
    nothing = "No notes. `kapelle notes set KEY TEXT` writes one; --scope names another scope."
    shown = columns("KEY,VERSION,SIZE,BY,WRITTEN", lambda one: [
        one["key"], one["version"], one["size"], one["task_id"] or one["author"],
        local(one["updated_at"]),
    ])  # fmt: skip
    return listing("/notes", {"scope": scope, "prefix": prefix}, limit, shown, nothing)


@notes.command()
def get(key: NoteKeyArgument, scope: NoteScopeOption = None) -> CommandOutput:
    """Print a note."""
    yield (found := DaemonConnection().get("/notes/entry", {"scope": scope, "key": key}))
    data(found["value"])


@notes.command("set")
def set_note(
    key: NoteKeyArgument,
    text: str | None = argument("TEXT", "What it says; - reads stdin."),
    scope: NoteScopeOption = None,
    version: ExpectedVersionOption = None,
) -> CommandOutput:
    """Write a note and print its version."""
    value = read_prompt(text, None, "`kapelle notes set KEY TEXT`", "text")
    body = {"key": key, "value": value, "scope": scope, "expected_version": version}
    yield (note := DaemonConnection().post("/notes", body))
    yield str(note["version"])


@notes.command()
def delete(
    key: NoteKeyArgument, scope: NoteScopeOption = None, version: ExpectedVersionOption = None
) -> CommandOutput:
    """Delete a note."""
    query = {"scope": scope, "key": key, "expected_version": version}
    yield (note := DaemonConnection().delete("/notes", query))
    yield str(note["version"])


@notes.command()
def watch(
    keys: list[str] = argument("KEY...", "All of them."),
    scope: NoteScopeOption = None,
    equals: str | None = option("TEXT", "Until it is this."),
    after: int | None = option("VERSION", "Until it changes after this.", min=0),
    timeout: Timeout = None,
) -> CommandOutput:
    """Wait until notes are there, change or equal a text, and print them; exit 2 in vain."""
    limit_s = optional(duration_s, timeout, "--timeout")
    query = {"keys": keys, "scope": scope, "equals": equals, "after": after}
    found = DaemonConnection().wait("/notes/watch", query, itemgetter("met"), limit_s)
    if not found["met"]:
        say("kapelle: the time is up.")
    yield CommandExit(found, 0 if found["met"] else ERROR)
    for note in found["notes"]:
        data(f"{note['key']}  {note['version']}  {note['value'] or 'deleted'}")


locks = command_group("Hold files of a checkout, so that no agent changes them." + LISTS)

_PATHS = "Files, folders or globs; . is all of the checkout."


@locks.command("list")
def list_locks(
    everywhere: bool = flag("Of all checkouts.", "--all"),
) -> CommandOutput:
    """List who holds and who waits for files of this checkout."""
    found = DaemonConnection().get("/locks", {"directory": None if everywhere else os.getcwd()})
    return whole_list(found, _locks, "Nothing is held here.")


@locks.command()
def take(
    paths: list[str] = argument("PATH...", _PATHS),
    reason: str | None = option("TEXT", "Told to whoever wants them."),
    ttl: str = option("DURATION", "Until then, unless you take them again.", default="10m"),
    wait: bool = flag("Wait for your turn.", "--wait/--no-wait", default=True),
) -> CommandOutput:
    """Hold files, or wait for that; exit 1 if somebody else holds them."""
    body = {"paths": paths, "directory": os.getcwd(), "reason": reason,
            "ttl_s": duration_s(ttl, "--ttl"), "timeout_s": LONG_POLL_S if wait else 0}  # fmt: skip
    client = DaemonConnection()
    told = False
    while not (found := client.post("/locks", body))["held"] and wait:
        if not told:
            told = True
            say(f"kapelle: waits for {', '.join(map(_words, found['waiting_for']))}.")
    if not found["held"]:
        say(f"kapelle: held by others: {', '.join(map(_words, found['waiting_for']))}.")
    yield CommandExit(found["locks"], 0 if found["held"] else 1)
    yield from _locks(found["locks"]) if found["locks"] else ()


@locks.command()
def release(
    paths: list[str] | None = argument("PATH...", "By default all of yours."),
) -> CommandOutput:
    """Release files that you hold here, or those that you name, whoever holds them."""
    gone = DaemonConnection().post(
        "/locks/release", {"paths": paths or [], "directory": os.getcwd()}
    )
    yield gone
    say(f"Released: {', '.join(map(_words, gone))}." if gone else "Nothing was held.")


def _words(lock: dict[str, Any]) -> str:
    if lock["reason"]:
        why = f": {lock['reason']}"
    else:
        why = ""
    return f"{lock['path']} ({lock['task_id'] or 'a person'}{why})"


_locks = columns("PATH,STATUS,BY,LEFT,REASON", lambda one: [
    one["path"], one["status"], one["task_id"] or one["owner"], short(one["left_s"]),
    one["reason"] or "",
])  # fmt: skip
