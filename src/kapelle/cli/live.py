"""Live views in a terminal: what happens above, the present state on the last lines."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kapelle.cli.format import STATUS_STYLE, between, one_line
from kapelle.cli.ids import path_of
from kapelle.cli.outcome import Run, Task, doing_words, settled
from kapelle.cli.transcript import Passage
from kapelle.client.http import Connection
from kapelle.domain.errors import KapelleError

REFRESH_S = 1.0
ROWS = 15

Row = list[Text]


@contextmanager
def live(items: Iterable[Task | Run]) -> Iterator[Callable[[Passage | None], None]]:
    """Redraw what tasks and runs are at, below whatever is shown with what this yields."""
    console = Console(highlight=False, markup=False, emoji=False)
    spinner = Spinner("dots")

    def render() -> Table:
        grid = Table.grid(padding=(0, 1))
        for row in _rows(items):
            grid.add_row(spinner, *row)
        return grid

    def show(shown: Passage | None) -> None:
        if shown is not None:
            console.print(Text(shown.text, style=shown.style or ""), soft_wrap=True)

    with Live(console=console, get_renderable=render, refresh_per_second=8, transient=True):
        yield show


def _rows(items: Iterable[Task | Run]) -> Iterator[Row]:
    """The states of tasks and runs that have not ended."""
    pending = [item for item in items if not settled(item)]
    for item in pending[:ROWS]:
        doing = one_line(doing_words(item), 100)
        about = " · ".join(filter(None, [doing, one_line(item["title"], 40)]))
        yield [
            Text(item["status"], style=STATUS_STYLE.get(item["status"]) or ""),
            Text(between(item["started_at"], item["ended_at"])),
            Text(about, style="dim", no_wrap=True, overflow="ellipsis"),
        ]
    if len(pending) > ROWS:
        yield [Text(f"and {len(pending) - ROWS} more", style="dim")]


@contextmanager
def refreshed(client: Connection, item: Task | Run) -> Iterator[list[Task | Run]]:
    """A task or a run, kept up to date while what it does is streamed."""
    known = [item]
    own, ended = Connection(client.address, autostart=False), threading.Event()

    def refresh() -> None:
        while not ended.wait(REFRESH_S):
            # The stream itself reports a daemon that went away.
            with suppress(KapelleError):
                known[0] = own.get(path_of(item["id"]), timeout=5)

    threading.Thread(target=refresh, daemon=True).start()
    try:
        yield known
    finally:
        ended.set()
