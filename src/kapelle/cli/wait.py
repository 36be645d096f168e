"""`kapelle wait`."""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from kapelle.cli.ids import AnyIds, path_of
from kapelle.cli.options import Json
from kapelle.cli.outcome import ERROR, Task, exit_code_of_all, settled
from kapelle.cli.output import data, document, say
from kapelle.cli.text import one_line
from kapelle.cli.values import listed, optional_duration_s
from kapelle.client.http import Connection as Client

LONG_POLL_S = 25.0
LIVE_POLL_S = 1.0

Report = Callable[[Task], None]


def wait(
    task_ids: AnyIds,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Give up after 90, 90s, 10m or 2h.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Wait until tasks or runs have ended.

    Exits with 0 when all are completed, 1 when one failed or was cancelled, 3 when one needs
    input or is paused, 2 when the time is up.
    """
    wait_for(task_ids, timeout, as_json)


def wait_for(
    ids: list[str], timeout: str | None, as_json: bool, path: Callable[[str], str] = path_of
) -> None:
    """Wait for what the ids name, and exit with what became of it."""
    limit_s = optional_duration_s(timeout, "--timeout")
    deadline = None if limit_s is None else time.monotonic() + limit_s
    client = Client()
    tasks = [client.get(path(text)) for text in listed(ids, "An id")]
    live = sys.stdout.isatty() and not as_json
    tasks = _live_wait(client, tasks, deadline) if live else _wait(client, tasks, deadline, as_json)
    if as_json:
        document(tasks)
    pending = [task for task in tasks if not settled(task)]
    if pending:
        say(f"kapelle: the time is up, and {_names(pending)} has not ended. It goes on.")
        raise typer.Exit(ERROR)
    raise typer.Exit(exit_code_of_all(tasks))


def _names(tasks: list[Task]) -> str:
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"{tasks[0]['id']} ({tasks[0]['status']}){more}"


def _wait(client: Client, tasks: list[Task], deadline: float | None, as_json: bool) -> list[Task]:
    def report(task: Task) -> None:
        if settled(task) and not as_json:
            data(_ending(task))
            sys.stdout.flush()

    for task in tasks:
        report(task)
    return until_settled(client, tasks, deadline, report)


def _ending(task: Task) -> str:
    reason = f"  {one_line(task['reason'])}" if task["reason"] else ""
    return f"{task['id']}  {task['status']}{reason}"


def _live_wait(client: Client, tasks: list[Task], deadline: float | None) -> list[Task]:
    from kapelle.cli.live import LiveTasks

    with LiveTasks(tasks) as view:
        tasks = until_settled(client, tasks, deadline, view.update, LIVE_POLL_S)
    for task in tasks:
        if settled(task):
            data(_ending(task))
    return tasks


def until_settled(
    client: Client,
    tasks: list[Task],
    deadline: float | None,
    report: Report,
    poll_s: float = LONG_POLL_S,
) -> list[Task]:
    """The tasks when nothing more will happen to them, or as they are at the deadline.

    A short poll keeps the state of all of them fresh; a long one asks only for the first.
    """
    known = {task["id"]: task for task in tasks}
    while pending := [task for task in known.values() if not settled(task)]:
        remaining = LONG_POLL_S if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            break
        first = pending[0]
        fresh = [_poll(client, first, min(poll_s, remaining))]
        if poll_s < LONG_POLL_S:
            fresh += [client.get(path_of(task["id"])) for task in pending[1:]]
        for task in fresh:
            known[task["id"]] = task
            report(task)
    return [known[task["id"]] for task in tasks]


def _poll(client: Client, task: Task, seconds: float) -> Task:
    began = time.monotonic()
    fresh: Task = client.get(
        path_of(task["id"], "wait"), {"timeout_s": round(seconds, 3)}, timeout=seconds + 30
    )
    if not settled(fresh) and time.monotonic() - began < seconds / 2:
        # The answer came early because of a rate limit, which may take long to pass.
        time.sleep(min(1.0, seconds))
    return fresh
