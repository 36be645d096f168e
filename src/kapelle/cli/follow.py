"""Following a task or a run to its end: what happens as it comes, its questions, the outcome."""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from kapelle.cli.events import EventData, line
from kapelle.cli.format import (
    STATUS_STYLE,
    clean,
    command_lines,
    delivery_words,
    doing_words,
    exit_code,
    finished,
    one_line,
    ran_s,
    reason_lines,
    settled,
    short,
    status_words,
    wrapped,
)
from kapelle.cli.ids import path_of, run_path, task_path
from kapelle.cli.logs import Passage, Whole, passage, show, show_json
from kapelle.cli.output import complain, data, document, json_line, say
from kapelle.cli.questions import question_lines
from kapelle.cli.queue_view import WaitingLines, waiting_lines
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import ServerEvent
from kapelle.domain.errors import Conflict, KapelleError, Unavailable
from kapelle.domain.report import FINAL, RunFields, TaskFields, next_commands

if TYPE_CHECKING:
    from rich.table import Table

INTERRUPTED = 130
RATE_LIMIT_PAUSE_S = 5.0
_DELIVERY_PAUSE_S = 0.5
_REFRESH_S = 1.0
_MOST_ROWS = 15
# Behind whatever an attempt has written, as a position in a transcript.
_END = 10**12
_ALL = 10**9 - 1
# Events at which a run may have come to rest.
_RESTS = frozenset(f"run.{status}" for status in (*FINAL, "waiting", "paused")) | {"task.waiting"}
# The last that a run tells of an iteration.
_ENDS = frozenset({"done", "not done", "failed"})

Show = Callable[[EventData], None]


def show_new(
    client: DaemonConnection, item: TaskFields | RunFields, to_end: bool, as_json: bool, **how: Any
) -> int:
    """Print the id of work that was started or goes on; return the exit code.

    If asked for, the work is followed to its end, as `follow` takes it.
    """
    if item["workspace"].get("in_place_by_default"):
        say(
            f"{item['directory']} is not in a git repository: the agent works right there, and "
            "its changes cannot be taken back."
        )
    if as_json:
        json_line(item) if to_end else document(item)
    else:
        data(item["id"])
        sys.stdout.flush()
    if to_end:
        return exit_code(follow(client, item, as_json, **how))
    if sys.stdout.isatty() and not as_json:
        say(f"Follow it with `kapelle {_commands(item)[0]} {item['id']}`.")
    return 0


def _commands(item: TaskFields | RunFields) -> tuple[str, str]:
    """What follows it again, and what ends it."""
    if "spent" in item:
        return ("runs tail", "runs cancel")
    return ("logs -f", "cancel")


def follow(
    client: DaemonConnection,
    item: TaskFields | RunFields,
    as_json: bool,
    *,
    tail: int | None = None,
    after: int | None = None,
    asks: bool = True,
    iterations: bool = False,
) -> TaskFields | RunFields:
    """Show a task or a run until it rests, ask what it asks, say what became of it, and return it.

    after is the number of an attempt that has been seen, with those before it. In JSON the end is
    told with the whole of it. iterations prints a line of JSON on stderr for each of them, and
    nothing else on stdout unless as_json.
    """
    is_run = "spent" in item
    asks = asks and not as_json and not iterations and can_ask()
    seen = 0
    if after:
        last_id = f"{after}:{_END}:{_END}:0:{_ALL}"
    else:
        last_id = None
    while True:
        with _interruptible(item):
            with (
                _waiting(client, item, iterations) as lines,
                _display(client, item, as_json, iterations) as show_event,
            ):
                if is_run:
                    ended, seen = _until_rest(client, item, show_event, seen, tail, raw=as_json)
                    tail = None
                else:
                    ended, last_id = _until_settled(
                        client, item["id"], show_event, tail, last_id, lines
                    )
            if not ended["questions"] or not asks:
                break
        if not _ask_all(client, ended):
            ended = client.get(path_of(item["id"]))  # some of them may have been answered
            break
    with _interruptible(ended):
        ended = _delivered(client, ended)
    if as_json:
        kind = "run" if is_run else "task"
        json_line({"event": "end", "status": ended["status"], kind: ended})
    if iterations:
        _tell(ended["id"], **{name: ended[name] for name in ("status", "reason", "ended_at")})
    elif not as_json:
        conclude(ended)
    return ended


def _delivered(client: DaemonConnection, item: TaskFields | RunFields) -> TaskFields | RunFields:
    """Wait for the delivery of ended work; return the task or run as it is then.

    A delivery of an earlier commit is not the one that is waited for.
    """
    while settled(item) and not finished(item):
        time.sleep(_DELIVERY_PAUSE_S)
        item = client.get(path_of(item["id"]))
    return item


def _until_settled(
    client: DaemonConnection,
    task_id: str,
    show_event: Callable[[ServerEvent], None],
    tail: int | None,
    last_id: str | None,
    lines: WaitingLines | None,
) -> tuple[TaskFields, str | None]:
    """The task once it rests, and the id of the last event that was shown."""
    path = task_path(task_id, "transcript")
    query = {"follow": "true", "tail": tail}
    while True:
        for event in client.stream(path, query, endless=True, last_id=last_id):
            last_id = event.id or last_id
            # The end is shown to nobody, but it ends a text that came in pieces.
            show_event(event)
        task: TaskFields = client.get(task_path(task_id))
        if lines and task["status"] == "waiting" and not settled(task):
            lines.report(task, task)
        while task["status"] == "waiting" and not settled(task):
            time.sleep(RATE_LIMIT_PAUSE_S)
            task = client.get(task_path(task["id"]))
        if settled(task):
            return task, last_id


@contextmanager
def _waiting(
    client: DaemonConnection, item: TaskFields | RunFields, iterations: bool
) -> Iterator[WaitingLines | None]:
    """Print why the item waits where no live view shows it; of iterations only JSON is told."""
    if iterations:
        yield None
    elif sys.stdout.isatty():
        yield WaitingLines()
    else:
        with waiting_lines(client, [item]) as lines:
            yield lines


@contextmanager
def _display(
    client: DaemonConnection, item: TaskFields | RunFields, as_json: bool, iterations: bool
) -> Iterator[Callable[[Any], None]]:
    """Shows events: as JSON, or as lines on stdout, in a terminal above what the item is at now."""
    if as_json and "spent" not in item:
        # Whoever follows says itself what the end is.
        yield lambda event: None if event.kind == "end" else show_json(event)
        return
    if as_json and iterations:
        yield _show_json_and_iteration
        return
    if as_json or iterations or not sys.stdout.isatty():
        yield json_line if as_json else _show_iteration if iterations else _lines_of(item, show)
        return
    with watched(client, [item]) as show_above:
        yield _lines_of(item, show_above)


def _lines_of(
    item: TaskFields | RunFields, show: Callable[[Passage | None], None]
) -> Callable[[Any], None]:
    """Shows the events of a run's history, or those of a task's transcript, as lines."""
    if "spent" not in item:
        return Whole(lambda event: show(passage(event)))
    # What a run ended with is said again, with what to type next, when a live view is gone.
    hidden = FINAL if sys.stdout.isatty() else ()
    return lambda event: None if event["kind"].removeprefix("run.") in hidden else show(line(event))


@contextmanager
def watched(
    client: DaemonConnection, items: Iterable[TaskFields | RunFields]
) -> Iterator[Callable[[Passage | None], None]]:
    """Redraw what they are at, as it is asked for every second, until this is left."""
    known = {item["id"]: item for item in items}
    own = DaemonConnection(client.address, autostart=False)
    ended = threading.Event()

    def refresh() -> None:
        while not ended.wait(_REFRESH_S):
            for some_id in [id_ for id_, item in known.items() if item["status"] not in FINAL]:
                # Whoever waits for them reports a daemon that went away.
                with suppress(KapelleError):
                    known[some_id] = own.get(path_of(some_id), timeout=5)

    threading.Thread(target=refresh, daemon=True).start()
    try:
        with live(known.values()) as show_above:
            yield show_above
    finally:
        ended.set()


@contextmanager
def live(items: Iterable[TaskFields | RunFields]) -> Iterator[Callable[[Passage | None], None]]:
    """Redraw what tasks and runs are at, below whatever is shown with what this yields."""
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    spinner = Spinner("dots")

    def show_above(shown: Passage | None) -> None:
        if shown is not None:
            console.print(Text(shown.text, style=shown.style or ""), soft_wrap=True)

    with Live(
        console=console,
        get_renderable=lambda: _grid(items, spinner),
        refresh_per_second=8,
        transient=True,
    ):
        yield show_above


def _grid(items: Iterable[TaskFields | RunFields], spinner: Any) -> "Table":
    """The states of tasks and runs that have not ended."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    pending = [item for item in items if not settled(item)]
    for item in pending[:_MOST_ROWS]:
        doing = one_line(doing_words(item), 100)
        about = " · ".join(filter(None, [doing, one_line(item["title"], 40)]))
        grid.add_row(
            spinner,
            Text(item["status"], style=STATUS_STYLE.get(item["status"]) or ""),
            Text(_time_of(item)),
            Text(about, style="dim", no_wrap=True, overflow="ellipsis"),
        )
    if len(pending) > _MOST_ROWS:
        grid.add_row(spinner, Text(f"and {len(pending) - _MOST_ROWS} more", style="dim"))
    return grid


def _time_of(item: TaskFields | RunFields) -> str:
    """Return how long an item has been at work, without the time between its attempts."""
    if not item["started_at"]:
        return ""
    return short(item["spent"]["seconds"] if "spent" in item else ran_s(item))


def _until_rest(
    client: DaemonConnection,
    run: RunFields,
    show_event: Show,
    after: int,
    tail: int | None,
    *,
    raw: bool,
) -> tuple[RunFields, int]:
    """Show what happens until the run rests: it has ended, waits for an answer, or is paused.

    Of the past, tail is how many events are shown; only those that make a line count, unless raw.
    Returns the run and the number of the last event.
    """
    if tail is not None:
        after = show_last(client, run["id"], show_event, tail, raw=raw)
    while True:
        # Asked before its events are read, so that all that led to this state is shown.
        run = client.get(run_path(run["id"]))
        rests = settled(run)
        for event in history(client, run["id"], after, follow=not rests):
            after = event["seq"]
            show_event(event)
            if not rests and event["kind"] in _RESTS and event["run_id"] == run["id"]:
                break
        if rests:
            return run, after


def history(
    client: DaemonConnection, run_id: str, after: int = 0, *, follow: bool = False
) -> Iterator[EventData]:
    """The events of a run and of its tasks behind a number; with follow without an end."""
    query = {"run_id": run_id, "after": after, "follow": "true" if follow else "false"}
    for event in client.stream("/events", query, endless=follow):
        if "seq" in event.data:
            yield event.data


def show_last(
    client: DaemonConnection, run_id: str, show_event: Show, count: int | None, *, raw: bool
) -> int:
    """Show the last so many events of the past, or all; returns the number of the last."""
    seen = 0
    kept: deque[EventData] = deque(maxlen=count)
    for event in history(client, run_id):
        seen = event["seq"]
        if raw or line(event) is not None:
            kept.append(event)
    for event in kept:
        show_event(event)
    return seen


@contextmanager
def _interruptible(item: TaskFields | RunFields) -> Iterator[None]:
    """Let an interrupt or a lost daemon end the watching, and say how to take it up again."""
    some_id = item["id"]
    (again, stop) = _commands(item)
    try:
        yield
    except Unavailable as error:
        error.hint = f"`kapelle {again} {some_id}` starts it again and goes on."
        raise
    except KeyboardInterrupt:
        say(
            f"The {'run' if 'spent' in item else 'task'} goes on in the background."
            f" `kapelle {again} {some_id}` follows it again, `kapelle {stop} {some_id}` stops it."
        )
        raise click.exceptions.Exit(INTERRUPTED) from None


def conclude(item: TaskFields | RunFields) -> None:
    """Say what became of a task or a run, what was answered, and what to type next."""
    if isinstance(item["result"], dict):
        said = item["result"].get("final_output")
    else:
        said = None
    if said:
        say(f"\n{clean(said)}\n")
    say(wrapped(verdict(item), 2))
    for question in item["questions"]:
        say("\n".join(question_lines(question)))
    told = item.get("delivery")
    if told and (item["status"] == "completed" or told["status"] != "pending"):
        say(wrapped(delivery_words(told, item["status"]), 2))
    for text in command_lines(next_commands(item)) if sys.stderr.isatty() else ():
        say(text)


def verdict(item: TaskFields | RunFields) -> str:
    """What became of a task or a run, in a sentence."""
    if "spent" in item:
        # The time that a run was paused does not count.
        if item["status"] in FINAL:
            seconds = item["spent"]["seconds"]
        else:
            seconds = 0
    else:
        seconds = ran_s(item)
    took = short(seconds) if seconds else ""
    reason = ""
    if item["reason"]:
        reason = ": " + "\n    ".join(reason_lines(item["reason"]))
    return f"{item['id']} {status_words(item)}{f' after {took}' if took else ''}{reason}"


def _show_iteration(event: EventData) -> None:
    """One line of JSON on stderr for every iteration."""
    facts: dict[str, Any] = event["data"]
    if event["kind"] == "run.progress" and facts.get("phase") in _ENDS:
        _tell(event["run_id"], at=event["at"], **facts)


def _show_json_and_iteration(event: EventData) -> None:
    """Print every event on stdout, and a line for every iteration on stderr."""
    json_line(event)
    _show_iteration(event)


def _tell(run_id: str, **facts: Any) -> None:
    complain(json.dumps({"run_id": run_id, **facts}))


def _ask_all(client: DaemonConnection, item: TaskFields | RunFields) -> bool:
    """Ask the person every open question; False when the input ended before the last."""
    try:
        for question in item["questions"]:
            answer = _ask(question)
            if answer is None:
                return False
            try:
                client.post(f"/questions/{question['token']}/answer", {"answer": answer})
            except Conflict as error:
                say(error.message)  # somebody else was faster
    except KeyboardInterrupt:
        say("")
        conclude(client.get(path_of(item["id"])))
        raise click.exceptions.Exit(INTERRUPTED) from None
    return True


def _ask(question: dict[str, Any]) -> str | None:
    """A person's answer to a question; an empty line is the default, if there is one."""
    default = question["default"]
    say("\n".join(question_lines(question)[:-1]))
    while (typed := read_line("Your answer: ")) is not None:
        if typed.strip():
            return typed
        if default is not None:
            return str(default)
    return None


def can_ask() -> bool:
    """Whether somebody is there to read a question and to type an answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def read_line(words: str) -> str | None:
    """What is typed behind the words, or None at the end of input."""
    sys.stderr.write(clean(words))
    sys.stderr.flush()
    typed = sys.stdin.readline()
    if not typed:
        sys.stderr.write("\n")
        return None
    return typed.rstrip("\n")
