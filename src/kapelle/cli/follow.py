"""Following a task or a run to its end: events as they come, questions, the outcome."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from kapelle.cli.events import (
    ShowEvent,
    print_event,
    print_event_json,
    read_run_events,
    show_last_events,
)
from kapelle.cli.ids import path_of, run_path, task_path
from kapelle.cli.interaction import answer_questions, can_ask
from kapelle.cli.layout import command_lines, wrap_line
from kapelle.cli.live_view import watch_live
from kapelle.cli.output import complain, data, document, json_line, say
from kapelle.cli.passages import (
    PieceJoiner,
    print_passage,
    timed_event_passage,
    transcript_passage,
)
from kapelle.cli.passages import print_event_json as print_transcript_json
from kapelle.cli.questions import question_lines
from kapelle.cli.queue_view import WaitingLines, waiting_lines
from kapelle.cli.states import (
    INTERRUPTED,
    describe_delivery,
    describe_end,
    exit_code,
    is_finished,
    is_settled,
)
from kapelle.cli.text import clean
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import ServerEvent
from kapelle.domain.errors import Unavailable
from kapelle.domain.report import FINAL, next_commands

if TYPE_CHECKING:
    from kapelle.client.records import EventJson, RunJson, TaskJson, WorkJson

_RATE_LIMIT_PAUSE_S = 5.0
_DELIVERY_PAUSE_S = 0.5
# As a position in a transcript: after everything that an attempt has written.
_END = 10**12
_ALL = 10**9 - 1
# Events after which a run may be settled.
_SETTLING_EVENTS = frozenset(
    {*(f"run.{status}" for status in FINAL), "run.waiting", "run.paused", "task.waiting"}
)
# The phases that a run reports at the end of an iteration.
_END_PHASES = frozenset({"done", "not done", "failed"})


@dataclass
class _Position:
    """How far a task or a run has been position."""

    # Number of events or lines of the past to show; None shows all.
    tail: int | None
    seq: int = 0
    # Position in the transcript of a task.
    last_id: str | None = None


def show_start(
    client: DaemonConnection,
    item: "WorkJson",
    to_end: bool,
    as_json: bool,
    *,
    tail: int | None = None,
    after: int | None = None,
    asks: bool = True,
    iterations: bool = False,
) -> int:
    """Print the id of a task or a run that starts or continues; return the exit code.

    With to_end, the work is followed.

    The other parameters are those of `follow`.
    """
    if item["workspace"].get("in_place_by_default"):
        say(
            f"{item['directory']} is not in a git repository: the agent works right there, and "
            "its changes cannot be taken back."
        )
    if not as_json:
        data(item["id"])
        sys.stdout.flush()
    elif to_end:
        json_line(item)
    else:
        document(item)
    if to_end:
        ended = follow(
            client, item, as_json, tail=tail, after=after, asks=asks, iterations=iterations
        )
        return exit_code(ended)
    if sys.stdout.isatty() and not as_json:
        say(f"Follow it with `kapelle {_follow_command(item)} {item['id']}`.")
    return 0


def _follow_command(item: "WorkJson") -> str:
    if "pattern" in item:
        return "runs tail"
    return "logs -f"


def _cancel_command(item: "WorkJson") -> str:
    if "pattern" in item:
        return "runs cancel"
    return "cancel"


def follow(
    client: DaemonConnection,
    item: "WorkJson",
    as_json: bool,
    *,
    tail: int | None = None,
    after: int | None = None,
    asks: bool = True,
    iterations: bool = False,
) -> "WorkJson":
    """Show what a task or a run does until it is settled; return it as it is then.

    Where a person can type, its questions are asked, and it is followed further. At last its
    outcome is printed; in JSON, that is an event with the whole item.

    tail limits how much of the past is position. after is the number of an attempt: it and those
    before it are not position. iterations prints a line of JSON on stderr for each iteration of a
    run, and nothing else on stdout unless as_json.
    """
    asks = asks and not as_json and not iterations and can_ask()
    position = _Position(tail)
    if after:
        position.last_id = f"{after}:{_END}:{_END}:0:{_ALL}"
    while True:
        ended = _show_until_settled(client, item, position, as_json, iterations)
        if not ended["questions"] or not asks:
            break
        if not _ask_person(client, ended):
            ended = client.get(path_of(item["id"]))  # some questions may be answered
            break
    with _interruptible(ended):
        ended = _wait_for_delivery(client, ended)
    if as_json:
        kind = "run" if "pattern" in ended else "task"
        json_line({"event": "end", "status": ended["status"], kind: ended})
    if iterations:
        _print_end(ended)
    elif not as_json:
        print_outcome(ended)
    return ended


def _show_until_settled(
    client: DaemonConnection,
    item: "WorkJson",
    position: _Position,
    as_json: bool,
    iterations: bool,
) -> "WorkJson":
    """Show what a task or a run does from a position on; return it when it is settled."""
    with _interruptible(item):
        if "pattern" in item:
            return _show_run(client, item, position, as_json, iterations)
        return _show_task(client, item, position, as_json)


def _wait_for_delivery(client: DaemonConnection, item: "WorkJson") -> "WorkJson":
    """Wait for the delivery of settled work; return the task or the run as it is then."""
    while is_settled(item) and not is_finished(item):
        time.sleep(_DELIVERY_PAUSE_S)
        item = client.get(path_of(item["id"]))
    return item


def _show_task(
    client: DaemonConnection, task: "TaskJson", position: _Position, as_json: bool
) -> "TaskJson":
    """Show the transcript of a task until it is settled; return the task as it is then."""
    with (
        _report_waiting(client, task) as waiting,
        _task_display(client, task, as_json) as show_event,
    ):
        path = task_path(task["id"], "transcript")
        query = {"follow": "true", "tail": position.tail}
        while True:
            for event in client.stream(path, query, endless=True, last_id=position.last_id):
                position.last_id = event.id or position.last_id
                # The event "end" is shown to nobody, but it completes a text of several pieces.
                show_event(event)
            task = client.get(task_path(task["id"]))
            if _waits_for_rate_limit(task):
                waiting.report(task, task)
            while _waits_for_rate_limit(task):
                time.sleep(_RATE_LIMIT_PAUSE_S)
                task = client.get(task_path(task["id"]))
            if is_settled(task):
                return task


def _waits_for_rate_limit(task: "TaskJson") -> bool:
    return task["status"] == "waiting" and not is_settled(task)


def _show_run(
    client: DaemonConnection, run: "RunJson", position: _Position, as_json: bool, iterations: bool
) -> "RunJson":
    """Show the events of a run until it is settled; return the run as it is then."""
    waiting: AbstractContextManager[object] = nullcontext()
    if not iterations:
        waiting = _report_waiting(client, run)
    with waiting, _run_display(client, run, as_json, iterations) as show_event:
        if position.tail is not None:
            position.seq = show_last_events(
                client, run["id"], show_event, position.tail, raw=as_json
            )
            position.tail = None
        while True:
            # Requested before the events, so that all events that led to this state are position.
            run = client.get(run_path(run["id"]))
            is_at_rest = is_settled(run)
            for event in read_run_events(client, run["id"], position.seq, follow=not is_at_rest):
                position.seq = event["seq"]
                show_event(event)
                may_be_settled = event["kind"] in _SETTLING_EVENTS and event["run_id"] == run["id"]
                if may_be_settled and not is_at_rest:
                    break
            if is_at_rest:
                return run


@contextmanager
def _report_waiting(client: DaemonConnection, item: "WorkJson") -> Iterator[WaitingLines]:
    """Print why the item waits, unless the live view of a terminal shows it."""
    if sys.stdout.isatty():
        yield WaitingLines()
    else:
        with waiting_lines(client, [item]) as lines:
            yield lines


@contextmanager
def _task_display(
    client: DaemonConnection, task: "TaskJson", as_json: bool
) -> Iterator[Callable[[ServerEvent], None]]:
    """Provide a function that shows an event of a transcript: as JSON or as lines."""
    if as_json:
        # Whoever follows prints an "end" with the whole task.
        yield lambda event: None if event.kind == "end" else print_transcript_json(event)
    elif not sys.stdout.isatty():
        yield PieceJoiner(lambda event: print_passage(transcript_passage(event)))
    else:
        with watch_live(client, [task]) as show_above:
            yield PieceJoiner(lambda event: show_above(transcript_passage(event)))


@contextmanager
def _run_display(
    client: DaemonConnection, run: "RunJson", as_json: bool, iterations: bool
) -> Iterator[ShowEvent]:
    """Provide a function that shows an event of a run: as JSON, as lines, or its iterations."""
    if as_json and iterations:
        yield _print_json_and_iteration
    elif as_json:
        yield print_event_json
    elif iterations:
        yield _print_iteration
    elif not sys.stdout.isatty():
        yield print_event
    else:
        with watch_live(client, [run]) as show_above:

            def show_event(event: "EventJson") -> None:
                # The end is told below the live view, with the commands to type next.
                if event["kind"].removeprefix("run.") not in FINAL:
                    show_above(timed_event_passage(event))

            yield show_event


@contextmanager
def _interruptible(item: "WorkJson") -> Iterator[None]:
    """After an interrupt or the loss of the daemon, tell how to follow the item again."""
    item_id = item["id"]
    again = f"`kapelle {_follow_command(item)} {item_id}`"
    try:
        yield
    except Unavailable as error:
        error.hint = f"{again} starts the daemon again and goes on."
        raise
    except KeyboardInterrupt:
        noun = "run" if "pattern" in item else "task"
        cancel = f"`kapelle {_cancel_command(item)} {item_id}`"
        say(f"The {noun} goes on in the background. {again} follows it again, {cancel} stops it.")
        raise click.exceptions.Exit(INTERRUPTED) from None


def print_outcome(item: "WorkJson") -> None:
    """Print the outcome of a task or a run, its open questions, and what to type next."""
    if isinstance(item["result"], dict) and item["result"].get("final_output"):
        say(f"\n{clean(item['result']['final_output'])}\n")
    say(wrap_line(describe_end(item), 2))
    for question in item["questions"]:
        say("\n".join(question_lines(question)))
    delivery = item.get("delivery")
    if delivery and (item["status"] == "completed" or delivery["status"] != "pending"):
        say(wrap_line(describe_delivery(delivery, item["status"]), 2))
    if sys.stderr.isatty():
        for line in command_lines(next_commands(item)):
            say(line)


def _print_iteration(event: "EventJson") -> None:
    """Print the end of an iteration as a line of JSON on stderr."""
    facts = event["data"]
    if event["kind"] == "run.progress" and facts.get("phase") in _END_PHASES:
        complain(json.dumps({"run_id": event["run_id"], "at": event["at"], **facts}))


def _print_end(item: "WorkJson") -> None:
    """Print the end of a run as a line of JSON on stderr, behind its iterations."""
    facts = {name: item[name] for name in ("status", "reason", "ended_at")}
    complain(json.dumps({"run_id": item["id"], **facts}))


def _print_json_and_iteration(event: "EventJson") -> None:
    print_event_json(event)
    _print_iteration(event)


def _ask_person(client: DaemonConnection, item: "WorkJson") -> bool:
    """Ask a person every open question; return False if the input ended before the last."""
    try:
        return answer_questions(client, item)
    except KeyboardInterrupt:
        say("")
        print_outcome(client.get(path_of(item["id"])))
        raise click.exceptions.Exit(INTERRUPTED) from None
