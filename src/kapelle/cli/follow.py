"""Following a task or a run to its end: what happens as it comes, then the outcome."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import typer

from kapelle.cli.events import Event, line
from kapelle.cli.format import between, clean, one_line, paint, short
from kapelle.cli.ids import run_path, task_path
from kapelle.cli.outcome import FINAL, Run, Task, next_commands, settled, waiting_words
from kapelle.cli.output import json_line, say
from kapelle.cli.transcript import Whole, show_at_once, show_json
from kapelle.client.http import Connection, ServerEvent
from kapelle.domain.errors import Unavailable

INTERRUPTED = 130
RATE_LIMIT_PAUSE_S = 5.0
# Behind whatever an attempt has written, as a position in a transcript.
_END = 10**12
# Events at which a run may have come to rest.
_RESTS = frozenset(f"run.{status}" for status in (*FINAL, "waiting", "paused")) | {"task.waiting"}

Show = Callable[[Event], None]


def follow_task(
    client: Connection,
    task: Task,
    *,
    as_json: bool,
    tail: int | None = None,
    after: int | None = None,
) -> Task:
    """Show the output until the task is settled and return it as it then is.

    after is the number of an attempt that has been seen, with those before it.
    An interrupt ends only the watching, says so, and exits with 130.
    """
    watching = _interruptible("task", task["id"], "logs -f", "cancel")
    with watching, _task_display(client, task, as_json) as show:
        return _until_settled(client, task["id"], show, tail, after)


def _until_settled(
    client: Connection,
    task_id: str,
    show: Callable[[ServerEvent], None],
    tail: int | None,
    after: int | None,
) -> Task:
    path = task_path(task_id, "transcript")
    query = {"follow": "true", "tail": tail}
    last_id = f"{after}:{_END}:{_END}:0" if after else None
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
        yield Whole(show_at_once)
    else:
        from kapelle.cli.live import LiveTasks, Refresher

        with LiveTasks([task]) as view, Refresher(client, task["id"], view):
            yield Whole(view.show)


@dataclass(frozen=True)
class Followed:
    """A run that rests, and the number of the last of its events that was shown."""

    run: Run
    seen: int


def follow_run(
    client: Connection,
    run: Run,
    display: AbstractContextManager[Show],
    *,
    after: int = 0,
    tail: int | None = None,
    raw: bool = False,
) -> Followed:
    """Show what happens until the run rests: it has ended, waits for an answer, or is paused.

    Of the past, tail is how many events are shown; only those that make a line count, unless raw.
    An interrupt ends only the watching, says so, and exits with 130.
    """
    with _interruptible("run", run["id"], "runs tail", "runs cancel"), display as show:
        if tail is not None:
            after = show_last(client, run["id"], show, tail, raw=raw)
        return _until_rest(client, run["id"], show, after)


def _until_rest(client: Connection, run_id: str, show: Show, seen: int) -> Followed:
    while True:
        # Asked before its events are read, so that all that led to this state is shown.
        run: Run = client.get(run_path(run_id))
        rests = settled(run)
        for event in history(client, run_id, seen, follow=not rests):
            seen = event["seq"]
            show(event)
            if not rests and event["kind"] in _RESTS and event["run_id"] == run["id"]:
                break
        if rests:
            return Followed(run, seen)


@contextmanager
def run_display(run: Run, *, as_json: bool) -> Iterator[Show]:
    """How a run is shown to whoever reads stdout."""
    if as_json:
        yield json_line
    elif not sys.stdout.isatty():
        yield show_lines(sys.stdout)
    else:
        from kapelle.cli.live import LiveRun

        with LiveRun(run) as view:
            yield view.show


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
    """Say what became of a task or a run, and what to type next."""
    say(verdict(item))
    for command, purpose in next_commands(item) if sys.stderr.isatty() else []:
        say(f"  {command}  ({purpose})")


def verdict(item: Task | Run) -> str:
    """What became of a task or a run, in a sentence."""
    took = between(item["started_at"], item["ended_at"])
    if "spent" in item:
        # The time that a run was paused does not count.
        seconds = item["spent"]["seconds"]
        took = short(seconds) if seconds and item["status"] in FINAL else ""
    reason = f": {one_line(item['reason'])}" if item["reason"] else ""
    return f"{item['id']} {item['status']}{f' after {took}' if took else ''}{reason}"


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
