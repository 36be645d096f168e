"""`kapelle logs`."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from kapelle.cli.command import Follow, JsonLines, flag, option
from kapelle.cli.ids import NewestId, is_run, path_of, task_path, work_id
from kapelle.cli.outcome import exit_code
from kapelle.cli.output import json_line, say
from kapelle.cli.values import choice, refuse
from kapelle.client.http import Connection

CHUNK = 1_000_000
POLL_S = 0.25


def logs(
    task_id: NewestId = None,
    follow: Follow = False,
    tail: Annotated[
        int | None, option(None, "Only the last so many lines or events.", min=0)
    ] = None,
    attempt: Annotated[
        int | None, option(None, "Which attempt; by default all, with --raw the last.", min=1)
    ] = None,
    raw: Annotated[bool, flag("The bytes as the agent wrote them.", "--raw")] = False,
    stream: Annotated[
        str | None, option("out|err", "Which stream, with --raw; by default out.")
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """Show what a task's agent said and did, or what a run did."""
    named = choice("--stream", stream, ("out", "err"))
    refuse(
        (named and not raw, "--stream goes only with --raw.", f"Write --raw --stream {stream}."),
        (raw and as_json, "--raw and --json exclude each other.", "Leave one of them out."),
    )
    client = Connection()
    whole = work_id(client, task_id)
    mistake = "A run has neither attempts nor raw output of its own."
    hint = f"`kapelle runs steps {whole}` lists its tasks, which have."
    refuse((is_run(whole) and (raw or attempt is not None), mistake, hint))
    if raw:
        _write_raw(_chunks(client, whole, attempt, stream or "out", follow), tail)
    elif follow and attempt is None:
        from kapelle.cli.follow import follow as follow_to_end

        ended = follow_to_end(client, client.get(path_of(whole)), as_json, tail=tail)
        if is_run(whole):
            raise typer.Exit(exit_code(ended))
    elif is_run(whole):
        _history(client, whole, tail, as_json)
    else:
        _transcript(client, whole, attempt, tail, follow, as_json)


def _history(client: Connection, run_id: str, tail: int | None, as_json: bool) -> None:
    from kapelle.cli.events import line
    from kapelle.cli.follow import show_last
    from kapelle.cli.transcript import show

    show_event = json_line if as_json else lambda event: show(line(event))
    whole = client.get(path_of(run_id))["id"]
    if not show_last(client, whole, show_event, tail, raw=as_json) and not as_json:
        say("It has not done anything yet.")


def _transcript(
    client: Connection,
    task_id: str,
    attempt: int | None,
    tail: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    from kapelle.cli.transcript import Whole, passage, show, show_json

    query = {"attempt": attempt, "tail": tail, "follow": "true" if follow else "false"}
    show_event = show_json if as_json else Whole(lambda event: show(passage(event)))
    kinds = set()
    for event in client.stream(task_path(task_id, "transcript"), query, endless=follow):
        show_event(event)
        kinds.add(event.kind)
    if tail != 0 and not kinds - {"attempt", "end"} and not as_json:
        say("There is no output." if kinds > {"end"} else "It has not started yet.")


def _chunks(
    client: Connection, task_id: str, attempt: int | None, stream: str, follow: bool
) -> Iterator[bytes]:
    """The stored bytes from the beginning, and with follow those still to come."""
    offset, complete = 0, False
    while not complete:
        query = {"attempt": attempt, "stream": stream, "offset": offset, "limit": CHUNK}
        body, headers = client.get_bytes(task_path(task_id, "output"), query)
        offset = int(headers.get("x-next-offset", offset + len(body)))
        complete = headers.get("x-complete") == "true"
        if body:
            yield body
        elif not follow:
            return
        elif not complete:
            time.sleep(POLL_S)


def _write_raw(chunks: Iterator[bytes], tail: int | None) -> None:
    output = sys.stdout.buffer
    if tail is not None:
        chunks = iter([_last_lines(chunks, tail)])
    for chunk in chunks:
        output.write(chunk)
        output.flush()


def _last_lines(chunks: Iterator[bytes], count: int) -> bytes:
    """The last lines of all the chunks, holding no more than those in memory."""
    kept = b""
    for chunk in chunks:
        lines = (kept + chunk).split(b"\n")
        # Behind the last newline there is a line only if something stands there.
        kept = b"\n".join(lines[-count - (not lines[-1]) :]) if count else b""
    return kept
