"""`kapelle logs`, and what an agent said and did, one readable line or block per event."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from kapelle.cli.format import clean, exit_code, one_line, paint, short, telling_lines
from kapelle.cli.ids import is_run, newest_work_argument, path_of, task_path, work_id
from kapelle.cli.output import json_line, say
from kapelle.cli.parser import command, flag, follow_flag, json_lines_flag, option
from kapelle.cli.types import Number
from kapelle.cli.values import choice, refuse
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import ServerEvent

LINE_WIDTH = 160
CHECK_LINES = 12
# What stands apart from the rest of the talk, with a word before it.
_NAMED = {
    "result": ("Result: ", "bold"),
    "plan": ("Plan:\n", "cyan"),
    "question": ("Question: ", "yellow"),
    "error": ("Error: ", "red"),
    "notice": ("Notice: ", "yellow"),
}


@dataclass(frozen=True)
class Passage:
    """Text to show, already cleaned, and how."""

    text: str
    style: str | None = None


_UNHEARD = {"waiting": " (not read yet)", "refused": " (not read: the task has ended)"}


def _person_passage(data: dict[str, Any], text: str) -> Passage:
    """How a hint, an answer or a message of a person is shown."""
    label = {"answer": "You answered"}.get(str(data.get("message")), "You")
    return Passage(f"{label}: {text}{_UNHEARD.get(str(data.get('state')), '')}", "bold")


def _attempt_passage(data: dict[str, Any]) -> Passage:
    """Return the line that separates a later attempt from the one before."""
    after = data.get("after")
    reason = f", after: {one_line(after, 300)}" if after else ""
    agent = data.get("agent") or "its agent"
    return Passage(f"── attempt {data.get('number')} by {agent}{reason} ──", "dim")


def passage(event: ServerEvent) -> Passage | None:
    """How an event is shown to a person; None for those that say nothing to one."""
    text = clean(str(event.data.get("text") or "")).rstrip("\n")
    match event.kind:
        case "text":
            return Passage(text)
        case "attempt" if event.data.get("number", 1) != 1:
            return _attempt_passage(event.data)
        case "person":
            return _person_passage(event.data, text)
        case "tool_call":
            given = event.data.get("data")
            if given:
                about = json.dumps(given, ensure_ascii=False)
            else:
                about = text
            called = f"→ {event.data.get('name') or 'tool'} {about}"
            return Passage(one_line(called, LINE_WIDTH), "cyan")
        case "tool_result":
            return Passage(one_line(f"← {text or 'done'}", LINE_WIDTH), "dim")
        case "stderr":
            return Passage("\n".join(f"! {line}" for line in text.split("\n")), "dim")
        case "checking":
            return Passage(one_line(f"▸ checking: {event.data.get('name')}", LINE_WIDTH), "cyan")
        case "check":
            return check_passage(event.data)
        case "error" | "notice" if not text:
            text = one_line(str(event.data.get("name") or "unknown"))
    label, style = _NAMED.get(event.kind, ("", None))
    if text and label:
        return Passage(f"{label}{text}", style)
    return None


def check_passage(check: dict[str, Any]) -> Passage:
    """What came of a check; of one that failed, also the last lines of its output."""
    if check.get("duration_s") is not None:
        took = f" ({short(check['duration_s'])})"
    else:
        took = ""
    name = one_line(f"{check.get('name')}", LINE_WIDTH) + took
    if check.get("passed"):
        if not check.get("proof") or check.get("proved"):
            return Passage(f"✓ check passed: {name}", "green")
        blind = one_line(check["proof"], LINE_WIDTH)
        return Passage(f"✓ check passed: {name}\n    {blind}", "yellow")
    said = clean(str(check.get("output") or "")).strip()
    if said:
        below = [f"    {line}" for line in telling_lines(said, CHECK_LINES)]
    else:
        below = []
    return Passage("\n".join([f"✗ check failed: {name}", *below]), "red")


def show_json(event: ServerEvent) -> None:
    """The event as a line for programs."""
    json_line({"event": event.kind, **event.data})


def show(shown: Passage | None, stream: TextIO | None = None) -> None:
    """A passage as lines on stdout or elsewhere, coloured only in a terminal, and seen at once."""
    if shown is not None:
        stream = stream or sys.stdout
        stream.write(paint(shown.text, shown.style) + "\n")
        stream.flush()


class Whole:
    """Shows a text that came in pieces when it is whole, and a result only if it says more."""

    def __init__(self, show: Callable[[ServerEvent], None]) -> None:
        self._show = show
        self._pieces: list[str] = []
        self._said = ""

    def __call__(self, event: ServerEvent) -> None:
        is_piece = event.kind == "text" and (event.data.get("data") or {}).get("delta") is True
        if is_piece:
            self._pieces.append(str(event.data.get("text") or ""))
            return
        if self._pieces:
            self._show_new(ServerEvent("text", {"text": "".join(self._pieces)}, None))
            self._pieces = []
        self._show_new(event)

    def _show_new(self, event: ServerEvent) -> None:
        text = str(event.data.get("text") or "").strip()
        if event.kind == "result" and text == self._said:
            return
        if event.kind in {"text", "error"}:
            self._said = text
        self._show(event)


CHUNK = 1_000_000
POLL_S = 0.25


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
        _write_raw(_chunks(client, whole, attempt, stream or "out", follow), tail)
    elif follow and attempt is None:
        from kapelle.cli.follow import follow as follow_to_end

        ended = follow_to_end(client, client.get(path_of(whole)), as_json, tail=tail)
        if is_run(whole):
            return exit_code(ended)
    elif is_run(whole):
        _history(client, whole, tail, as_json)
    else:
        _transcript(client, whole, attempt, tail, follow, as_json)
    return 0


def _history(client: DaemonConnection, run_id: str, tail: int | None, as_json: bool) -> None:
    from kapelle.cli.events import line
    from kapelle.cli.follow import show_last

    show_event = json_line if as_json else lambda event: show(line(event))
    whole = client.get(path_of(run_id))["id"]
    if not show_last(client, whole, show_event, tail, raw=as_json) and not as_json:
        say("It has not done anything yet.")


def _transcript(
    client: DaemonConnection,
    task_id: str,
    attempt: int | None,
    tail: int | None,
    follow: bool,
    as_json: bool,
) -> None:

    query = {"attempt": attempt, "tail": tail, "follow": "true" if follow else "false"}
    if as_json:
        show_event = show_json
    else:
        show_event = Whole(lambda event: show(passage(event)))
    kinds = set()
    for event in client.stream(task_path(task_id, "transcript"), query, endless=follow):
        show_event(event)
        kinds.add(event.kind)
    if tail != 0 and not kinds - {"attempt", "person", "end"} and not as_json:
        say("There is no output." if kinds > {"end"} else "It has not started yet.")


def _chunks(
    client: DaemonConnection, task_id: str, attempt: int | None, stream: str, follow: bool
) -> Iterator[bytes]:
    """The stored bytes from the beginning, and with follow those still to come."""
    offset = 0
    complete = False
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
    # Bytes as they are go to files and programs; they must not steer the terminal of a person.
    is_terminal = sys.stdout.isatty()
    for chunk in chunks:
        if is_terminal:
            chunk = clean(chunk.decode("utf-8", "replace")).encode("utf-8", "replace")
        output.write(chunk)
        output.flush()


def _last_lines(chunks: Iterator[bytes], count: int) -> bytes:
    """The last lines of all the chunks, holding no more than those in memory."""
    kept = b""
    for chunk in chunks:
        lines = (kept + chunk).split(b"\n")
        # Behind the last newline there is a line only if something stands there.
        if count:
            kept = b"\n".join(lines[-count - (not lines[-1]) :])
        else:
            kept = b""
    return kept
