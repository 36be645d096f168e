"""Following a task to its end: its output as it comes, then what became of it."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from kapelle.cli.ids import task_path
from kapelle.cli.outcome import Task, next_commands, settled
from kapelle.cli.output import say
from kapelle.cli.text import one_line
from kapelle.cli.times import between
from kapelle.cli.transcript import Whole, show_at_once, show_json
from kapelle.cli.waiting import what_it_waits_for
from kapelle.client.http import Connection as Client
from kapelle.client.http import ServerEvent
from kapelle.domain.errors import Unavailable

INTERRUPTED = 130
RATE_LIMIT_PAUSE_S = 5.0
# Behind whatever an attempt has written, as a position in a transcript.
_END = 10**12

Show = Callable[[ServerEvent], None]


def follow(
    client: Client, task: Task, *, as_json: bool, tail: int | None = None, after: int | None = None
) -> Task:
    """Show the output until the task is settled and return it as it then is.

    after is the number of an attempt that has been seen, with those before it.
    An interrupt ends only the watching, says so, and exits with 130.
    """
    try:
        with _display(client, task, as_json) as show:
            return _until_settled(client, task["id"], show, tail, after)
    except Unavailable as error:
        error.hint = f"`kapelle logs -f {task['id']}` starts it again and goes on."
        raise
    except KeyboardInterrupt:
        task_id = task["id"]
        say(
            f"The task goes on in the background. `kapelle logs -f {task_id}` follows it again, "
            f"`kapelle cancel {task_id}` stops it."
        )
        raise typer.Exit(INTERRUPTED) from None


def _until_settled(
    client: Client, task_id: str, show: Show, tail: int | None, after: int | None
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
        if task["status"] == "waiting":
            task = _after_rate_limit(client, task)
        if settled(task):
            return task


def _after_rate_limit(client: Client, task: Task) -> Task:
    if not settled(task):
        say(f"Waiting: {one_line(what_it_waits_for(task))}")
    while task["status"] == "waiting" and not settled(task):
        time.sleep(RATE_LIMIT_PAUSE_S)
        task = client.get(task_path(task["id"]))
    return task


@contextmanager
def _display(client: Client, task: Task, as_json: bool) -> Iterator[Show]:
    if as_json or not sys.stdout.isatty():
        yield _json_without_end if as_json else Whole(show_at_once)
        return
    from kapelle.cli.live import LiveTasks, Refresher

    with LiveTasks([task]) as view, Refresher(client, task["id"], view):
        yield Whole(view.show)


def _json_without_end(event: ServerEvent) -> None:
    # Whoever follows says itself what the end is.
    if event.kind != "end":
        show_json(event)


def conclude(task: Task) -> None:
    """Say what became of a task and what to type next."""
    took = between(task["started_at"], task["ended_at"])
    reason = f": {one_line(task['reason'])}" if task["reason"] else ""
    say(f"{task['id']} {task['status']}{f' after {took}' if took else ''}{reason}")
    for command, purpose in next_commands(task) if sys.stderr.isatty() else []:
        say(f"  {command}  ({purpose})")
