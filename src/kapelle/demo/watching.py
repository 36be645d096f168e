"""Watching the ensemble through the events, and killing the daemon in the middle of it."""

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from kapelle.cli.ids import task_path
from kapelle.cli.outcome import FINAL
from kapelle.client.http import Connection as Client
from kapelle.demo.views import Tasks, View, listing

# Both have begun their work when the daemon dies.
WITNESSES = ("intervals", "scales")
_FIRST_WORDS_S = 5.0
_ENDINGS = frozenset(f"task.{status}" for status in FINAL)


@dataclass(frozen=True)
class Kill:
    """A daemon that was killed, the one that followed, and the attempts that ran on meanwhile."""

    pid: int
    successor: int
    gap_s: float
    attempts: dict[str, str]


def watch(client: Client, tasks: Tasks, view: View) -> Kill | None:
    """Keep the tasks up to date until all have ended; returns the kill if it came to that."""
    keys = {task["id"]: key for key, task in tasks.items()}
    going, begun = set(tasks), set[str]()
    kill = None
    view.watch(tasks)
    try:
        for event in client.stream("/events", {"after": 0}, endless=True):
            key = keys.get(event.data.get("task_id") or "")
            if key is None:
                continue
            tasks[key] = client.get(task_path(tasks[key]["id"]))
            view.changed(key, event.kind, event.data["data"])
            if event.kind == "attempt.started":
                begun.add(key)
            if kill is None and begun.issuperset(WITNESSES) and _running(tasks):
                kill = _strike(client, tasks, view)
            if event.kind in _ENDINGS:
                going.discard(key)
            if not going:
                break
    finally:
        view.end_watch()
    return kill


def _running(tasks: Tasks) -> Tasks:
    return {key: task for key, task in tasks.items() if task["status"] == "running"}


def _strike(client: Client, tasks: Tasks, view: View) -> Kill:
    running = _running(tasks)
    _await_first_words(client, running)
    pid = int(client.get("/daemon")["pid"])
    attempts = {key: str(task["attempts"][-1]["id"]) for key, task in running.items()}
    os.kill(pid, signal.SIGKILL)
    began_at = time.monotonic()
    names = f"{listing(running)} {'are' if len(running) > 1 else 'is'}"
    view.say(f"   kill -9 {pid}: the daemon is gone, while {names} at work.", "yellow")
    # Asking anything is enough: the client starts a daemon when there is none.
    successor: dict[str, Any] = client.get("/daemon")
    gap_s = time.monotonic() - began_at
    view.say(
        f"   The next command started another one ({successor['pid']}, {gap_s:.1f} s). "
        "The agents did not notice.",
        "yellow",
    )
    view.say()
    return Kill(pid, int(successor["pid"]), gap_s, attempts)


def _await_first_words(client: Client, tasks: Tasks) -> None:
    """Wait until every agent has said something, so that they are really in the middle."""
    deadline = time.monotonic() + _FIRST_WORDS_S
    waiting = list(tasks)
    while waiting and time.monotonic() < deadline:
        if client.get_bytes(task_path(tasks[waiting[0]]["id"], "output"))[0]:
            waiting.pop(0)
        else:
            time.sleep(0.05)
