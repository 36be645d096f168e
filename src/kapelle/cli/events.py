"""The history: `kapelle events`, and the events of one run."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias, cast

from kapelle.cli.ids import complete
from kapelle.cli.output import json_line
from kapelle.cli.parser import command, follow_flag, json_lines_flag, option
from kapelle.cli.passages import event_line, event_passage, print_passage, timed_event_passage
from kapelle.cli.types import Number
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import ServerEvent

if TYPE_CHECKING:
    from kapelle.client.records import EventJson

ShowEvent: TypeAlias = "Callable[[EventJson], None]"


@command("events", "kapelle events --follow", "kapelle events --task 4f2xq --json")
@follow_flag
@option("--after", type=Number(0), metavar="NUMBER", help="Number of the event to begin behind.")
@option("--task", metavar="ID", help="Task of the events.", shell_complete=complete("tasks"))
@option(
    "--run",
    metavar="ID",
    help="Run of the events and of its tasks.",
    shell_complete=complete("runs"),
)
@json_lines_flag
def events(
    follow: bool, after: int | None, task: str | None, run: str | None, as_json: bool
) -> None:
    """Show the history of all events.

    With --follow and without --after, it begins now.
    """
    query = {"after": after, "task_id": task, "run_id": run, "follow": follow}
    for event in DaemonConnection().stream("/events", query, endless=follow):
        data = read_event(event)
        if data is None:
            continue
        if as_json:
            json_line(data)
        else:
            sys.stdout.write(event_line(data) + "\n")
            sys.stdout.flush()


def read_event(event: ServerEvent) -> "EventJson | None":
    """Return the event of the history in a server-sent event; None if that is another message."""
    if "seq" not in event.data:
        return None
    return cast("EventJson", event.data)


def read_run_events(
    client: DaemonConnection, run_id: str, after: int = 0, *, follow: bool = False
) -> "Iterator[EventJson]":
    """Yield the events of a run and of its tasks after a number; with follow, without an end."""
    query = {"run_id": run_id, "after": after, "follow": "true" if follow else "false"}
    for event in client.stream("/events", query, endless=follow):
        data = read_event(event)
        if data is not None:
            yield data


def show_last_events(
    client: DaemonConnection, run_id: str, show_event: ShowEvent, count: int | None, *, raw: bool
) -> int:
    """Show the last events of a run, or all without a count; return the number of the last one.

    Unless raw, only events that tell people something count.
    """
    seq = 0
    last_events: deque[EventJson] = deque(maxlen=count)
    for event in read_run_events(client, run_id):
        seq = event["seq"]
        if raw or event_passage(event) is not None:
            last_events.append(event)
    for event in last_events:
        show_event(event)
    return seq


def print_event(event: "EventJson") -> None:
    """Print an event of a run for people, if it tells them something."""
    print_passage(timed_event_passage(event))


def print_event_json(event: "EventJson") -> None:
    """Print an event of the history as one line of JSON."""
    json_line(event)
