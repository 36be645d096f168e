"""`kapelle logs`."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from kapelle.cli.ids import AnyId, is_run, task_path
from kapelle.cli.options import Follow, JsonLines
from kapelle.cli.output import say
from kapelle.client.http import Connection
from kapelle.domain.errors import InvalidInput

CHUNK = 1_000_000
POLL_S = 0.25


def logs(
    task_id: AnyId,
    follow: Follow = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only the last so many lines or events.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which attempt; by default all, with --raw the last.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as the agent wrote them.")] = False,
    stream: Annotated[
        str | None,
        typer.Option(metavar="out|err", help="Which stream, with --raw; by default out."),
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """Show what a task's agent said and did, or what a run did."""
    _refuse_contradictions(stream, raw, as_json)
    client = Connection()
    if is_run(task_id):
        _of_run(client, task_id, tail, follow, as_json, only_of_tasks=raw or attempt is not None)
    elif raw:
        _write_raw(_chunks(client, task_id, attempt, stream or "out", follow), tail)
    elif follow and attempt is None:
        _follow(client, task_id, tail, as_json)
    else:
        _transcript(client, task_id, attempt, tail, follow, as_json)


def _refuse_contradictions(stream: str | None, raw: bool, as_json: bool) -> None:
    if stream not in {None, "out", "err"}:
        raise InvalidInput(f"--stream {stream!r} does not exist.", hint="Use out or err.")
    if stream and not raw:
        raise InvalidInput("--stream goes only with --raw.", hint=f"Write --raw --stream {stream}.")
    if raw and as_json:
        raise InvalidInput("--raw and --json exclude each other.", hint="Leave one of them out.")


def _of_run(
    client: Connection,
    run_id: str,
    tail: int | None,
    follow: bool,
    as_json: bool,
    *,
    only_of_tasks: bool,
) -> None:
    if only_of_tasks:
        raise InvalidInput(
            "A run has neither attempts nor raw output of its own.",
            hint=f"`kapelle runs steps {run_id.strip()}` lists its tasks, which have.",
        )
    from kapelle.cli.runs import follow_to_end, show_past

    (follow_to_end if follow else show_past)(client, run_id, tail, as_json)


def _follow(client: Connection, task_id: str, tail: int | None, as_json: bool) -> None:
    from kapelle.cli.follow import conclude, follow_task
    from kapelle.cli.output import json_line

    ended = follow_task(client, client.get(task_path(task_id)), as_json=as_json, tail=tail)
    if as_json:
        json_line({"event": "end", "status": ended["status"]})
    else:
        conclude(ended)


def _transcript(
    client: Connection,
    task_id: str,
    attempt: int | None,
    tail: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    from kapelle.cli.transcript import Whole, show_at_once, show_json, show_plain

    query = {"attempt": attempt, "tail": tail, "follow": "true" if follow else "false"}
    show = show_json if as_json else Whole(show_at_once if follow else show_plain)
    kinds = set()
    for event in client.stream(task_path(task_id, "transcript"), query, endless=follow):
        show(event)
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
        kept = _tail(kept + chunk, count)
    return kept


def _tail(content: bytes, count: int) -> bytes:
    if not count:
        return b""
    position = len(content) - content.endswith(b"\n")
    for _ in range(count):
        position = content.rfind(b"\n", 0, position)
        if position < 0:
            return content
    return content[position + 1 :]
