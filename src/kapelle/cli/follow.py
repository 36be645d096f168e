"""Following a task or a run to its end: what happens as it comes, then the outcome."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO

import typer

from kapelle.cli.events import Event, line
from kapelle.cli.format import (
    between,
    clean,
    command_lines,
    one_line,
    paint,
    short,
    status_words,
    wrapped,
)
from kapelle.cli.ids import run_path, task_path
from kapelle.cli.outcome import (
    FINAL,
    Run,
    Task,
    exit_code,
    next_commands,
    settled,
    waiting_words,
)
from kapelle.cli.output import data, document, json_line, say
from kapelle.cli.transcript import Whole, passage, show_json
from kapelle.cli.transcript import show_lines as show_passage
from kapelle.client.http import Connection, ServerEvent
from kapelle.domain.errors import Unavailable

INTERRUPTED = 130
RATE_LIMIT_PAUSE_S = 5.0
# Behind whatever an attempt has written, as a position in a transcript.
_END = 10**12
_ALL = 10**9 - 1
# Events at which a run may have come to rest.
_RESTS = frozenset(f"run.{status}" for status in (*FINAL, "waiting", "paused")) | {"task.waiting"}

Show = Callable[[Event], None]


def show_new(
    client: Connection, item: Task | Run, to_end: bool, as_json: bool, after: int | None = None
) -> None:
    """The id of what was begun or goes on; to its end if asked for, behind an attempt if given."""
    if to_end:
        if as_json:
            json_line(item)
        else:
            data(item["id"])
            sys.stdout.flush()
        raise typer.Exit(exit_code(follow(client, item, as_json, after=after, whole=True)))
    if as_json:
        document(item)
        return
    data(item["id"])
    if sys.stdout.isatty():
        again = "runs tail" if "spent" in item else "logs -f"
        say(f"Follow it with `kapelle {again} {item['id']}`.")


def follow(
    client: Connection,
    item: Task | Run,
    as_json: bool,
    *,
    tail: int | None = None,
    after: int | None = None,
    whole: bool = False,
) -> Task | Run:
    """Show a task or a run until it rests, say what became of it, and return it.

    after is the number of an attempt that has been seen, with those before it. In JSON the end
    is told with the whole of it, if asked for.
    """
    if "spent" in item:
        display = run_display(client, item, as_json=as_json)
        ended, _ = follow_run(client, item, display, tail=tail, raw=as_json)
    else:
        again = _interruptible("task", item["id"], "logs -f", "cancel")
        with again, _task_display(client, item, as_json) as show:
            ended = _until_settled(client, item["id"], show, tail, after)
    if as_json:
        more = {"run" if "spent" in item else "task": ended} if whole else {}
        json_line({"event": "end", "status": ended["status"], **more})
    else:
        conclude(ended)
    return ended


def _until_settled(
    client: Connection,
    task_id: str,
    show: Callable[[ServerEvent], None],
    tail: int | None,
    after: int | None,
) -> Task:
    path = task_path(task_id, "transcript")
    query = {"follow": "true", "tail": tail}
    last_id = f"{after}:{_END}:{_END}:0:{_ALL}" if after else None
    while True:
        for event in client.stream(path, query, endless=True, last_id=last_id):
            last_id = event.id or last_id
            # The end is shown to nobody, but it ends a text that came in pieces.
            show(event)
        task: Task = client.get(task_path(task_id))
        if task["status"] == "waiting" and not settled(task):
            say(f"Waiting: {one_line(waiting_words(task))}")
        while task["status"] == "waiting" and not settled(task):
            time.sleep(RATE_LIMIT_PAUSE_S)
            task = client.get(task_path(task["id"]))
        if settled(task):
            return task


@contextmanager
def _task_display(
    client: Connection, task: Task, as_json: bool
) -> Iterator[Callable[[ServerEvent], None]]:
    if as_json:
        # Whoever follows says itself what the end is.
        yield lambda event: None if event.kind == "end" else show_json(event)
    elif not sys.stdout.isatty():
        yield Whole(show_passage)
    else:
        from kapelle.cli.live import live, refreshed

        with refreshed(client, task) as known, live(known) as show:
            yield Whole(lambda event: show(passage(event)))


def follow_run(
    client: Connection,
    run: Run,
    display: AbstractContextManager[Show],
    *,
    after: int = 0,
    tail: int | None = None,
    raw: bool = False,
) -> tuple[Run, int]:
    """Show what happens until the run rests: it has ended, waits for an answer, or is paused.

    Of the past, tail is how many events are shown; only those that make a line count, unless raw.
    Returns the run and the number of the last event. An interrupt ends only the watching.
    """
    with _interruptible("run", run["id"], "runs tail", "runs cancel"), display as show:
        if tail is not None:
            after = show_last(client, run["id"], show, tail, raw=raw)
        while True:
            # Asked before its events are read, so that all that led to this state is shown.
            run = client.get(run_path(run["id"]))
            rests = settled(run)
            for event in history(client, run["id"], after, follow=not rests):
                after = event["seq"]
                show(event)
                if not rests and event["kind"] in _RESTS and event["run_id"] == run["id"]:
                    break
            if rests:
                return run, after


@contextmanager
def run_display(client: Connection, run: Run, *, as_json: bool) -> Iterator[Show]:
    """How a run is shown to whoever reads stdout."""
    if as_json:
        yield json_line
    elif not sys.stdout.isatty():
        yield show_lines(sys.stdout)
    else:
        from kapelle.cli.live import live, refreshed

        with refreshed(client, run) as known, live(known) as show:

            def show_event(event: Event) -> None:
                # What it ended with is said again, with what to type next, when the view is gone.
                if event["kind"].removeprefix("run.") not in FINAL:
                    show(line(event))

            yield show_event


def show_lines(stream: TextIO) -> Show:
    """Shows events as lines on a stream."""

    def show(event: Event) -> None:
        shown = line(event)
        if shown is not None:
            stream.write(paint(shown.text, shown.style) + "\n")
            stream.flush()

    return show


def history(
    client: Connection, run_id: str, after: int = 0, *, follow: bool = False
) -> Iterator[Event]:
    """The events of a run and of its tasks behind a number; with follow without an end."""
    query = {"run_id": run_id, "after": after, "follow": "true" if follow else "false"}
    for event in client.stream("/events", query, endless=follow):
        if "seq" in event.data:
            yield event.data


def show_last(client: Connection, run_id: str, show: Show, count: int | None, *, raw: bool) -> int:
    """Show the last so many events of the past, or all; returns the number of the last."""
    seen = 0
    kept: deque[Event] = deque(maxlen=count)
    for event in history(client, run_id):
        seen = event["seq"]
        if raw or line(event) is not None:
            kept.append(event)
    for event in kept:
        show(event)
    return seen


@contextmanager
def _interruptible(noun: str, some_id: str, again: str, stop: str) -> Iterator[None]:
    """Let an interrupt or a lost daemon end the watching, and say how to take it up again."""
    try:
        yield
    except Unavailable as error:
        error.hint = f"`kapelle {again} {some_id}` starts it again and goes on."
        raise
    except KeyboardInterrupt:
        say(
            f"The {noun} goes on in the background. `kapelle {again} {some_id}` follows it again, "
            f"`kapelle {stop} {some_id}` stops it."
        )
        raise typer.Exit(INTERRUPTED) from None


def conclude(item: Task | Run) -> None:
    """Say what became of a task or a run, what was answered, and what to type next."""
    said = item["result"].get("final_output") if isinstance(item["result"], dict) else None
    if said:
        say(f"\n{clean(said)}\n")
    say(wrapped(verdict(item), 2))
    for text in command_lines(next_commands(item)) if sys.stderr.isatty() else ():
        say(text)


def verdict(item: Task | Run) -> str:
    """What became of a task or a run, in a sentence."""
    took = between(item["started_at"], item["ended_at"])
    if "spent" in item:
        # The time that a run was paused does not count.
        seconds = item["spent"]["seconds"]
        took = short(seconds) if seconds and item["status"] in FINAL else ""
    reason = f": {one_line(item['reason'])}" if item["reason"] else ""
    return f"{item['id']} {status_words(item)}{f' after {took}' if took else ''}{reason}"


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


def ask(question: dict[str, Any]) -> str | None:
    """A person's answer to a run's question; an empty line is the default, if there is one."""
    default = question["default"]
    say(f"? {clean(question['text'])}")
    known = f" [{one_line(default, 60)}]" if default is not None else ""
    while True:
        typed = read_line(f"Your answer{known}: ")
        if typed is None:
            return None
        if typed.strip():
            return typed
        if default is not None:
            return str(default)
