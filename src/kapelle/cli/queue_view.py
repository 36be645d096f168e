"""Lines on stderr that tell why work waits, for readers without a live view such as a CI job."""

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kapelle.cli.ids import path_of
from kapelle.cli.output import say
from kapelle.cli.states import is_settled, waiting_reason
from kapelle.cli.text import one_line
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import KapelleError
from kapelle.domain.report import FINAL

if TYPE_CHECKING:
    from kapelle.client.records import TaskJson, WorkJson

_POLL_S = 1.0
_WAITING_STATUSES = frozenset({"queued", "blocked", "waiting"})
# A countdown and the free megabytes change with every poll: the reason stays the same.
_NUMBERS = re.compile(r"\d[\d.,:]*\s*(?:ms|[smhd]|[kMGT]?B)?\b")


class WaitingLines:
    """Prints a line whenever the reason changes for which a task or a run waits."""

    def __init__(self, *, names_item: bool = False) -> None:
        self._names_item = names_item
        self._last_reasons: dict[str, str | None] = {}
        self._lock = threading.Lock()

    def report(self, item: "WorkJson", waiting: "WorkJson | None") -> None:
        """Print why the item waits; waiting is the item itself or the task that holds it up."""
        reason = None
        reason_without_numbers = None
        if waiting:
            reason = one_line(waiting_reason(waiting))
            reason_without_numbers = _NUMBERS.sub("", waiting["reason"] or reason)
        with self._lock:
            has_changed = self._last_reasons.get(item["id"]) != reason_without_numbers
            self._last_reasons[item["id"]] = reason_without_numbers
        if reason and has_changed:
            name = ""
            if self._names_item:
                name = f"{item['id']}: "
            say(f"Waiting: {name}{reason}")


@contextmanager
def waiting_lines(client: DaemonConnection, items: Iterable["WorkJson"]) -> Iterator[WaitingLines]:
    """Print why the items wait until the block is left; the daemon is asked each second."""
    ids = [item["id"] for item in items]
    lines = WaitingLines(names_item=len(ids) > 1)
    own_client = DaemonConnection(client.address, autostart=False)
    is_left = threading.Event()

    def poll() -> None:
        while ids and not is_left.wait(_POLL_S):
            for item_id in list(ids):
                # The block itself reports a daemon that is gone.
                with suppress(KapelleError):
                    item = own_client.get(path_of(item_id), timeout=5)
                    waiting = find_waiting(own_client, item)
                    if is_left.is_set():
                        return
                    lines.report(item, waiting)
                    if item["status"] in FINAL:
                        ids.remove(item_id)

    threading.Thread(target=poll, daemon=True).start()
    try:
        yield lines
    finally:
        is_left.set()


def find_waiting(client: DaemonConnection, item: "WorkJson") -> "WorkJson | None":
    """Return what waits: the item itself, or the first task of a run with no task at work."""
    if item["status"] in _WAITING_STATUSES:
        return None if is_settled(item) else item
    if item["status"] != "running" or "pattern" not in item:
        return None
    query = {"run_id": item["id"], "limit": 100}
    tasks: list[TaskJson] = client.get("/tasks", query, timeout=5)["tasks"]
    if any(task["status"] == "running" for task in tasks):
        return None
    for task in tasks:
        if task["status"] in {"queued", "waiting"} and not is_settled(task):
            return task
    return None
