"""`kapelle logs`."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator

from kapelle.cli.ids import is_run, newest_work_argument, path_of, task_path, work_id
from kapelle.cli.output import say
from kapelle.cli.parser import command, flag, follow_flag, json_lines_flag, option
from kapelle.cli.passages import (
    PieceJoiner,
    print_event_json,
    print_passage,
    transcript_passage,
)
from kapelle.cli.states import exit_code
from kapelle.cli.text import clean
from kapelle.cli.types import Number
from kapelle.cli.values import choice, refuse
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import ServerEvent

_PAGE_BYTES = 1_000_000
_POLL_S = 0.25


@command("logs", "kapelle logs -f", "kapelle logs 4f2xq --attempt 2 --raw")
@newest_work_argument
@follow_flag
@option("--tail", type=Number(0), metavar="NUMBER", help="Number of last lines or events.")
@option(
    "--attempt",
    type=Number(1),
    metavar="NUMBER",
    help="Number of the attempt; by default all, with --raw the last.",
)
@flag("--raw", help="Bytes as the agent wrote them; a terminal gets no control codes.")
@option("--stream", metavar="out|err", help="Stream of --raw; by default out.")
@json_lines_flag
def logs(
    task_id: str | None,
    follow: bool,
    tail: int | None,
    attempt: int | None,
    raw: bool,
    stream: str | None,
    as_json: bool,
) -> int:
    """Show what a task's agent wrote and did, or the events of a run."""
    named = choice("--stream", stream, ("out", "err"))
    refuse(
        (named and not raw, "--stream goes only with --raw.", f"Write --raw --stream {stream}."),
        (raw and as_json, "--raw and --json exclude each other.", "Leave one of them out."),
    )
    client = DaemonConnection()
    whole = work_id(client, task_id)
    mistake = "A run has neither attempts nor raw output of its own."
    hint = f"`kapelle runs steps {whole}` lists its tasks, which have."
    refuse((is_run(whole) and (raw or attempt is not None), mistake, hint))
    if raw:
        _print_raw(_read_pages(client, whole, attempt, stream or "out", follow), tail)
    elif follow and attempt is None:
        from kapelle.cli.follow import follow as follow_to_end

        ended = follow_to_end(client, client.get(path_of(whole)), as_json, tail=tail)
        if is_run(whole):
            return exit_code(ended)
    elif is_run(whole):
        _print_history(client, whole, tail, as_json)
    else:
        _print_transcript(client, whole, attempt, tail, follow, as_json)
    return 0


def _print_history(client: DaemonConnection, run_id: str, tail: int | None, as_json: bool) -> None:
    from kapelle.cli.events import print_event, print_event_json, show_last_events

    show_event = print_event
    if as_json:
        show_event = print_event_json
    whole_id = client.get(path_of(run_id))["id"]
    last_seq = show_last_events(client, whole_id, show_event, tail, raw=as_json)
    if not last_seq and not as_json:
        say("The run has not done anything yet.")


def _print_transcript(
    client: DaemonConnection,
    task_id: str,
    attempt: int | None,
    tail: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    query = {"attempt": attempt, "tail": tail, "follow": "true" if follow else "false"}
    show_event: Callable[[ServerEvent], None]
    if as_json:
        show_event = print_event_json
    else:
        show_event = PieceJoiner(lambda event: print_passage(transcript_passage(event)))
    kinds = set()
    for event in client.stream(task_path(task_id, "transcript"), query, endless=follow):
        show_event(event)
        kinds.add(event.kind)
    has_output = bool(kinds - {"attempt", "person", "end"})
    if tail == 0 or has_output or as_json:
        return
    if kinds - {"end"}:
        say("There is no output.")
    else:
        say("The task has not started yet.")


def _read_pages(
    client: DaemonConnection, task_id: str, attempt: int | None, stream: str, follow: bool
) -> Iterator[bytes]:
    """Yield the stored output from its beginning, and with follow all later output."""
    offset = 0
    is_complete = False
    while not is_complete:
        query = {"attempt": attempt, "stream": stream, "offset": offset, "limit": _PAGE_BYTES}
        page, headers = client.get_bytes(task_path(task_id, "output"), query)
        offset = int(headers.get("x-next-offset", offset + len(page)))
        is_complete = headers.get("x-complete") == "true"
        if page:
            yield page
        elif not follow:
            return
        elif not is_complete:
            time.sleep(_POLL_S)


def _print_raw(pages: Iterable[bytes], tail: int | None) -> None:
    """Print output byte for byte; on a terminal without what could control it."""
    if tail is not None:
        pages = [last_raw_lines(pages, tail)]
    is_terminal = sys.stdout.isatty()
    output = sys.stdout.buffer
    for page in pages:
        if is_terminal:
            page = clean(page.decode("utf-8", "replace")).encode("utf-8", "replace")
        output.write(page)
        output.flush()


def last_raw_lines(pages: Iterable[bytes], count: int) -> bytes:
    """Return the last lines of some output; no more than those and a page are in memory."""
    tail = b""
    for page in pages:
        if not count:
            continue  # the rest is read all the same, so that following waits for its end
        lines = (tail + page).split(b"\n")
        # Behind the last line break there is a line only if there is text.
        lines_of_tail = count
        if not lines[-1]:
            lines_of_tail += 1
        tail = b"\n".join(lines[-lines_of_tail:])
    return tail
