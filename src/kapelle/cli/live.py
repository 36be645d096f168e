"""Live views in a terminal: what happens above, the present state on the last lines."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kapelle.cli.events import Event, state_words
from kapelle.cli.format import STATUS_STYLE, between, fit, one_line
from kapelle.cli.ids import path_of
from kapelle.cli.outcome import FINAL, Run, Task, doing_words, settled
from kapelle.cli.transcript import Passage
from kapelle.client.http import Connection
from kapelle.domain.errors import KapelleError

REFRESH_S = 1.0
ROWS = 15
_STATES = frozenset(STATUS_STYLE) | {"queued"}

Row = list[Text]


@contextmanager
def live(rows: Callable[[int], Iterable[Row]]) -> Iterator[Callable[[Passage | None], None]]:
    """Redraw rows, which are told the width, below whatever is shown with what this yields."""
    console = Console(highlight=False, markup=False, emoji=False)
    spinner = Spinner("dots")

    def render() -> Table:
        grid = Table.grid(padding=(0, 1))
        for row in rows(console.width):
            grid.add_row(spinner, *row)
        return grid

    def show(shown: Passage | None) -> None:
        if shown is not None:
            console.print(Text(shown.text, style=shown.style or ""), soft_wrap=True)

    with Live(console=console, get_renderable=render, refresh_per_second=8, transient=True):
        yield show


def pending_rows(items: Iterable[Task | Run]) -> Iterator[Row]:
    """The states of tasks and runs that have not ended."""
    pending = [item for item in items if not settled(item)]
    for item in pending[:ROWS]:
        number = len(item.get("attempts", ()))  # a run has none
        again = f"attempt {number} " if number > 1 else ""
        about = one_line(item["title"], 40)
        if doing := doing_words(item):
            about += f" · {one_line(doing, 60)}"
        yield [
            _status(item["status"]),
            Text(again + between(item["started_at"], item["ended_at"])),
            Text(about, style="dim", no_wrap=True, overflow="ellipsis"),
        ]
    if len(pending) > ROWS:
        yield [Text(f"and {len(pending) - ROWS} more", style="dim")]


@contextmanager
def refreshed(client: Connection, known: dict[str, Task | Run], id: str) -> Iterator[None]:
    """Keep what is known of a task or a run up to date while what it does is streamed."""
    own, ended = Connection(client.address, autostart=False), threading.Event()

    def refresh() -> None:
        while not ended.wait(REFRESH_S):
            # The stream itself reports a daemon that went away.
            with suppress(KapelleError):
                known[id] = own.get(path_of(id), timeout=5)

    threading.Thread(target=refresh, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class RunState:
    """What is known of one run from its events, and by asking for it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.known = {run["id"]: run}
        self._status: str = run["status"]
        self._facts: dict[str, Any] = dict(run["progress"])
        self._tasks: dict[str, str] = {}

    def update(self, event: Event) -> None:
        noun, _, what = event["kind"].partition(".")
        if event["kind"] == "run.progress":
            self._facts |= event["data"]
        elif noun == "run" and what in _STATES:
            self._status = what
        elif noun == "task" and what == "running":
            self._tasks[event["task_id"]] = one_line(str(event["data"].get("title") or ""))
        elif noun == "task" and what in {*FINAL, "queued", "waiting"}:
            self._tasks.pop(event["task_id"], None)

    def rows(self, width: int) -> Iterator[Row]:
        if self._status in FINAL:
            return
        titles = list(self._tasks.values())
        facts = [
            between(self._run["created_at"], None),
            state_words(self._facts, self._run["spec"].get("max_iterations")),
            f"{len(titles)} tasks: {', '.join(titles)}" if len(titles) > 1 else "".join(titles),
            self._doing(),
        ]
        # Room is left for the spinner, and for the ^C that a terminal shows on an interrupt.
        about = fit(" · ".join(filter(None, facts)), max(width - len(self._status) - 8, 8))
        yield [_status(self._status), Text(about, style="dim")]

    def _doing(self) -> str:
        """The command that it runs, or why nothing is at work."""
        run = self.known[self._run["id"]]
        if run.get("checking"):
            return one_line(doing_words(run))
        return "" if self._tasks else one_line(str(run["reason"] or ""))


def _status(status: str) -> Text:
    return Text(status, style=STATUS_STYLE.get(status) or "")
