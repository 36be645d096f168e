"""Lines on stderr that say why work waits, for readers without a live view such as a CI job."""

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kapelle.cli.format import one_line, settled, waiting_words
from kapelle.cli.ids import path_of
from kapelle.cli.output import say
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import KapelleError
from kapelle.domain.report import FINAL

_POLL_S = 1.0
_AT_REST = frozenset({"queued", "blocked", "waiting"})
# A countdown and the free megabytes change with every poll: the reason stays the same.
_NUMBERS = re.compile(r"\d[\d.,:]*\s*(?:ms|[smhd]|[kMGT]?B)?\b")

WorkFields = dict[str, Any]


class WaitingLines:
    """Prints one line whenever the reason changes for which an item waits."""

    def __init__(self, *, names_item: bool = False) -> None:
        self._names_item = names_item
        self._last: dict[str, str | None] = {}
        self._lock = threading.Lock()

    def report(self, item: WorkFields, waiting: WorkFields | None) -> None:
        """Print why the item waits; waiting is the item itself or the part that holds it up."""
        if waiting:
            reason = one_line(waiting_words(waiting))
        else:
            reason = None
        if waiting:
            key = _NUMBERS.sub("", (waiting["reason"] or reason or ""))
        else:
            key = None
        with self._lock:
            has_changed = self._last.get(item["id"]) != key
            self._last[item["id"]] = key
        if reason and has_changed:
            if self._names_item:
                name = f"{item['id']}: "
            else:
                name = ""
            say(f"Waiting: {name}{reason}")


@contextmanager
def waiting_lines(client: DaemonConnection, items: Iterable[WorkFields]) -> Iterator[WaitingLines]:
    """Print why the items wait until the block is left; the daemon is asked every second."""
    ids = [item["id"] for item in items]
    lines = WaitingLines(names_item=len(ids) > 1)
    own = DaemonConnection(client.address, autostart=False)
    left = threading.Event()

    def poll() -> None:
        while ids and not left.wait(_POLL_S):
            for item_id in list(ids):
                # Whoever waits for the items reports a daemon that went away.
                with suppress(KapelleError):
                    item = own.get(path_of(item_id), timeout=5)
                    waiting = find_waiting(own, item)
                    if left.is_set():
                        return
                    lines.report(item, waiting)
                    if item["status"] in FINAL:
                        ids.remove(item_id)

    threading.Thread(target=poll, daemon=True).start()
    try:
        yield lines
    finally:
        left.set()


def find_waiting(client: DaemonConnection, item: WorkFields) -> WorkFields | None:
    """Return what waits: the item, or the first task of a run none of whose tasks is running."""
    if item["status"] in _AT_REST:
        return None if settled(item) else item
    if item["status"] != "running" or "spent" not in item:
        return None
    tasks = client.get("/tasks", {"run_id": item["id"], "limit": 100}, timeout=5)["tasks"]
    if any(task["status"] == "running" for task in tasks):
        return None
    held = [task for task in tasks if task["status"] in {"queued", "waiting"} and not settled(task)]
    return held[0] if held else None
