"""Changing several tasks or runs at once: each is tried, and what became of them is shown."""

import time
from collections.abc import Callable
from typing import Any

from kapelle.cli.ids import path_of
from kapelle.cli.outcome import FINAL, Task
from kapelle.cli.output import data, document, say
from kapelle.cli.values import listed
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import KapelleError


def change_each(
    client: Client,
    ids: list[str],
    action: str,
    body: dict[str, Any] | None = None,
    path: Callable[..., str] = path_of,
) -> tuple[list[Task], KapelleError | None]:
    """Do it to every one; one that refuses does not keep the others from it."""
    changed: list[Task] = []
    failure: KapelleError | None = None
    for some_id in listed(ids, "An id"):
        try:
            changed.append(client.post(path(some_id, action), body))
        except KapelleError as error:
            if failure:
                say(f"kapelle: {failure.message}")
            failure = error
    return changed, failure


def until_ended(client: Client, task: Task) -> Task:
    """The task or run once it has ended, which was asked of it already."""
    while task["status"] not in FINAL:
        task = client.get(path_of(task["id"], "wait"), {"timeout_s": 25})
        if task["status"] not in FINAL:
            # One that rests is told at once; only this pause keeps us from asking without end.
            time.sleep(0.3)
    return task


def show_each(tasks: list[Task], as_json: bool, state: str | None = None) -> None:
    """The id and the status of every one, or another word for its state."""
    if as_json:
        document(tasks)
        return
    for task in tasks:
        data(f"{task['id']}  {state or task['status']}")
