"""Following a run to its end: its history as it is made, then what became of it."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TextIO

import typer

from kapelle.cli.follow import INTERRUPTED
from kapelle.cli.ids import run_path
from kapelle.cli.outcome import FINAL, settled
from kapelle.cli.output import json_line, say
from kapelle.cli.runs.lines import Event, line
from kapelle.cli.runs.outcome import Run, next_commands
from kapelle.cli.style import paint
from kapelle.cli.text import one_line
from kapelle.cli.times import short
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import Unavailable

Show = Callable[[Event], None]
# Events at which a run may have come to rest.
_RESTS = frozenset(f"run.{status}" for status in (*FINAL, "waiting", "paused")) | {"task.waiting"}


@dataclass(frozen=True)
class Followed:
    """A run that rests, and the number of the last of its events that was shown."""

    run: Run
    seen: int


def follow_run(
    client: Client,
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
    run_id = run["id"]
    try:
        with display as show:
            if tail is not None:
                after = show_last(client, run_id, show, tail, raw=raw)
            return _until_rest(client, run_id, show, after)
    except Unavailable as error:
        error.hint = f"`kapelle runs tail {run_id}` starts it again and goes on."
        raise
    except KeyboardInterrupt:
        say(
            f"The run goes on in the background. `kapelle runs tail {run_id}` follows it again, "
            f"`kapelle runs cancel {run_id}` stops it."
        )
        raise typer.Exit(INTERRUPTED) from None


def display_of(run: Run, *, as_json: bool) -> AbstractContextManager[Show]:
    """How a run is shown to whoever reads stdout."""
    if as_json:
        return nullcontext(json_line)
    if not sys.stdout.isatty():
        return nullcontext(show_lines(sys.stdout))
    from kapelle.cli.runs.live import LiveRun

    return LiveRun(run)


def show_lines(stream: TextIO) -> Show:
    """Shows events as lines on a stream."""

    def show(event: Event) -> None:
        shown = line(event)
        if shown is not None:
            stream.write(paint(shown.text, shown.style) + "\n")
            stream.flush()

    return show


def history(
    client: Client, run_id: str, after: int = 0, *, follow: bool = False
) -> Iterator[Event]:
    """The events of a run and of its tasks behind a number; with follow without an end."""
    query = {"run_id": run_id, "after": after, "follow": "true" if follow else "false"}
    for event in client.stream("/events", query, endless=follow):
        if "seq" in event.data:
            yield event.data


def show_last(client: Client, run_id: str, show: Show, count: int | None, *, raw: bool) -> int:
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


def _until_rest(client: Client, run_id: str, show: Show, seen: int) -> Followed:
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


def conclude(run: Run, commands: list[tuple[str, str]] | None = None) -> None:
    """Say what became of a run and what to type next."""
    say(verdict(run))
    if sys.stderr.isatty():
        for command, purpose in commands or next_commands(run):
            say(f"  {command}  ({purpose})")


def verdict(run: dict[str, Any]) -> str:
    """What became of a run, in a sentence."""
    spent = run["spent"]["seconds"]
    took = f" after {short(spent)}" if spent and run["status"] in FINAL else ""
    reason = f": {one_line(run['reason'])}" if run["reason"] else ""
    return f"{run['id']} {run['status']}{took}{reason}"
