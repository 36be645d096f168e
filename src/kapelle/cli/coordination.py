"""`kapelle notes`, which agents and people leave for each other, and `kapelle locks`, which keep
agents from changing files."""

import os
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kapelle.cli import parser
from kapelle.cli.figures import format_seconds, local_time
from kapelle.cli.output import plain_line, say
from kapelle.cli.pages import columns, limit_option, listing, whole_list
from kapelle.cli.parser import CliGroup, argument, flag, option, reports
from kapelle.cli.result import Result
from kapelle.cli.states import ERROR
from kapelle.cli.tasks import timeout_option
from kapelle.cli.types import Number
from kapelle.cli.values import duration_s, optional, read_prompt
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import LONG_POLL_S

if TYPE_CHECKING:
    from kapelle.client.records import LockJson, NoteJson

notes = CliGroup(
    "notes",
    help="Read and write notes that agents and people share." + parser.LISTS_BY_DEFAULT,
    default_command="list",
    examples=['kapelle notes set results/step1 "passed"', "kapelle notes get results/step1"],
)

key_argument = argument("key", metavar="KEY", help="Key of the note, such as results/step1.")
scope_option = option(
    "--scope",
    metavar="SCOPE",
    help="Scope of the note: global, project:NAME, or the id of a task or run.",
)
expected_version_option = option(
    "--version",
    type=Number(0),
    metavar="NUMBER",
    help="Version that the note must have; 0: it must not exist.",
)


def _note_cells(note: "NoteJson") -> list[Any]:
    author = note["task_id"] or note["author"]
    return [note["key"], note["version"], note["size"], author, local_time(note["updated_at"])]


@notes.command("list")
@argument(
    "prefix", metavar="PREFIX", required=False, default="", help="Beginning of the keys to list."
)
@scope_option
@limit_option(100)
@reports
def list_notes(prefix: str, scope: str | None, limit: int) -> Result:
    """List the notes whose keys begin with a prefix."""
    nothing = "No notes. `kapelle notes set KEY TEXT` writes one; --scope names another scope."
    lines = columns("KEY,VERSION,SIZE,BY,WRITTEN", _note_cells)
    return listing("/notes", {"scope": scope, "prefix": prefix}, limit, lines, nothing)


@notes.command("get")
@key_argument
@scope_option
@reports
def get(key: str, scope: str | None) -> Result:
    """Print a note."""
    note = DaemonConnection().get("/notes/entry", {"scope": scope, "key": key})
    return Result(note, [plain_line(note["value"])])


@notes.command("set")
@key_argument
@argument("text", metavar="TEXT", required=False, help="Text of the note; - reads stdin.")
@scope_option
@expected_version_option
@reports
def set_note(key: str, text: str | None, scope: str | None, version: int | None) -> Result:
    """Write a note and print its version."""
    value = read_prompt(text, None, "Write `kapelle notes set KEY TEXT`.", "text")
    body = {"key": key, "value": value, "scope": scope, "expected_version": version}
    note = DaemonConnection().post("/notes", body)
    return Result(note, [str(note["version"])])


@notes.command("delete")
@key_argument
@scope_option
@expected_version_option
@reports
def delete(key: str, scope: str | None, version: int | None) -> Result:
    """Delete a note."""
    query = {"scope": scope, "key": key, "expected_version": version}
    note = DaemonConnection().delete("/notes", query)
    return Result(note, [str(note["version"])])


@notes.command("watch", examples=["kapelle notes watch results/step1 --timeout 10m"])
@argument("keys", metavar="KEY", nargs=-1, required=True, help="Keys of the notes to wait for.")
@scope_option
@option("--equals", metavar="TEXT", help="Text that the notes must have.")
@option("--after", type=Number(0), metavar="VERSION", help="Version after which they must change.")
@timeout_option
@reports
def watch(
    keys: Sequence[str],
    scope: str | None,
    equals: str | None,
    after: int | None,
    timeout: str | None,
) -> Result:
    """Wait until notes exist, change or equal a text, and print them.

    Exits with 2 when the time is up.
    """
    limit_s = optional(duration_s, timeout, "--timeout")
    query = {"keys": list(keys), "scope": scope, "equals": equals, "after": after}
    answer = DaemonConnection().wait("/notes/watch", query, itemgetter("met"), limit_s)
    exit_code = 0
    if not answer["met"]:
        say("error: The time is up.")
        exit_code = ERROR
    lines = [
        plain_line(f"{note['key']}  {note['version']}  {note['value'] or 'deleted'}")
        for note in answer["notes"]
    ]
    return Result(answer, lines, exit_code=exit_code)


locks = CliGroup(
    "locks",
    help="Lock files of a checkout, so that no agent changes them." + parser.LISTS_BY_DEFAULT,
    default_command="list",
    examples=["kapelle locks take src/api --reason 'refactoring by hand'"],
)

_PATHS_HELP = "Files, folders or globs; . is all of the checkout."


def _lock_cells(lock: "LockJson") -> list[Any]:
    owner = lock["task_id"] or lock["owner"]
    return [
        lock["path"],
        lock["status"],
        owner,
        format_seconds(lock["left_s"]),
        lock["reason"] or "",
    ]


_lock_lines = columns("PATH,STATUS,BY,LEFT,REASON", _lock_cells)


@locks.command("list")
@flag("--all", "everywhere", help="Locks of all checkouts.")
@reports
def list_locks(everywhere: bool) -> Result:
    """List who holds and who waits for files of this checkout."""
    query = {"directory": None if everywhere else os.getcwd()}
    items = DaemonConnection().get("/locks", query)
    return whole_list(items, _lock_lines, "No locks are held here.")


@locks.command("take", examples=["kapelle locks take src/api --ttl 1h"])
@argument("paths", metavar="PATH", nargs=-1, required=True, help=_PATHS_HELP)
@option("--reason", metavar="TEXT", help="Reason, which is told to others who want the files.")
@option("--ttl", metavar="DURATION", default="10m", help="Time to hold them, unless taken again.")
@option("--wait/--no-wait", default=True, help="Wait until nobody else holds them.")
@reports
def take(paths: Sequence[str], reason: str | None, ttl: str, wait: bool) -> Result:
    """Lock files, or wait until that is possible.

    With --no-wait it exits with 1 if somebody else holds them.
    """
    body = {
        "paths": list(paths),
        "directory": os.getcwd(),
        "reason": reason,
        "ttl_s": duration_s(ttl, "--ttl"),
        "timeout_s": LONG_POLL_S if wait else 0,
    }
    client = DaemonConnection()
    answer = client.post("/locks", body)
    if wait and not answer["held"]:
        say(f"Waiting for {_describe_locks(answer['waiting_for'])}.")
    while wait and not answer["held"]:
        answer = client.post("/locks", body)
    exit_code = 0
    if not answer["held"]:
        say(f"error: Others hold {_describe_locks(answer['waiting_for'])}.")
        exit_code = 1
    lines = _lock_lines(answer["locks"]) if answer["locks"] else []
    return Result(answer["locks"], lines, exit_code=exit_code)


@locks.command("release")
@argument(
    "paths",
    metavar="PATH",
    nargs=-1,
    required=False,
    help="Files to release, whoever holds them; by default all of yours here.",
)
@reports
def release(paths: Sequence[str]) -> Result:
    """Release locks on files of this checkout."""
    body = {"paths": list(paths), "directory": os.getcwd()}
    released = DaemonConnection().post("/locks/release", body)
    remark = "Nothing was held."
    if released:
        remark = f"Released: {_describe_locks(released)}."
    return Result(released, remarks=[remark])


def _describe_locks(locks: "Sequence[LockJson]") -> str:
    return ", ".join(_describe_lock(lock) for lock in locks)


def _describe_lock(lock: "LockJson") -> str:
    facts = lock["task_id"] or "a person"
    if lock["reason"]:
        facts += f": {lock['reason']}"
    return f"{lock['path']} ({facts})"
