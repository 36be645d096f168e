"""`kapelle locks`: who holds which files, taking them for oneself, and freeing them."""

import os
import sys
from typing import Annotated, Any

import typer

from kapelle.cli.command import LISTS, Json, LightCommand, argument, command_group, flag, option
from kapelle.cli.format import short, table
from kapelle.cli.output import document, say
from kapelle.cli.tasks import LONG_POLL_S
from kapelle.cli.values import duration_s
from kapelle.client.http import Connection

locks = command_group("Hold files of a checkout, so that no agent changes them." + LISTS)

_PATHS = "Files, folders or globs; . is all of the checkout."


@locks.command("list", cls=LightCommand)
def list_locks(
    everywhere: Annotated[bool, flag("Of all checkouts.", "--all")] = False, as_json: Json = False
) -> None:
    """List who holds and who waits for files of this checkout."""
    query = {"directory": None if everywhere else os.getcwd()}
    _show(Connection().get("/locks", query), as_json, "Nothing is held here.")


@locks.command("take", cls=LightCommand)
def take(
    paths: Annotated[list[str], argument("PATH...", _PATHS)],
    reason: Annotated[str | None, option("TEXT", "Told to whoever wants them.")] = None,
    ttl: Annotated[str, option("DURATION", "Until then, unless you take them again.")] = "10m",
    wait: Annotated[bool, flag("Wait for your turn.", "--wait/--no-wait")] = True,
    as_json: Json = False,
) -> None:
    """Hold files, or wait for that; exit 1 if somebody else holds them."""
    body = {"paths": paths, "directory": os.getcwd(), "reason": reason,
            "ttl_s": duration_s(ttl, "--ttl"), "timeout_s": LONG_POLL_S if wait else 0}  # fmt: skip
    client, told = Connection(), False
    while not (found := client.post("/locks", body))["held"] and wait:
        if not told:
            told = True
            say(f"kapelle: waits for {', '.join(map(_words, found['waiting_for']))}.")
    if not found["held"]:
        say(f"kapelle: held by others: {', '.join(map(_words, found['waiting_for']))}.")
    _show(found["locks"], as_json)
    raise typer.Exit(0 if found["held"] else 1)


@locks.command("release", cls=LightCommand)
def release(
    paths: Annotated[list[str] | None, argument("PATH...", "By default all of yours.")] = None,
    as_json: Json = False,
) -> None:
    """Release files that you hold here, or those that you name, whoever holds them."""
    body = {"paths": paths or [], "directory": os.getcwd()}
    gone = Connection().post("/locks/release", body)
    if as_json:
        document(gone)
    else:
        say(f"Released: {', '.join(map(_words, gone))}." if gone else "Nothing was held.")


def _words(lock: dict[str, Any]) -> str:
    why = f": {lock['reason']}" if lock["reason"] else ""
    return f"{lock['path']} ({lock['task_id'] or 'a person'}{why})"


def _show(found: list[dict[str, Any]], as_json: bool, nothing: str = "") -> None:
    if as_json:
        document(found)
    elif found:
        rows = [[one["path"], one["status"], one["task_id"] or one["owner"], short(one["left_s"]),
                 one["reason"] or ""] for one in found]  # fmt: skip
        lines = table(["PATH", "STATUS", "BY", "LEFT", "REASON"], rows)
        sys.stdout.writelines(f"{line}\n" for line in lines)
    elif nothing:
        say(nothing)
