"""The live view of tasks and runs at work: lines at the bottom of the terminal, redrawn."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

from kapelle.cli.figures import attempts_s, format_seconds
from kapelle.cli.ids import path_of
from kapelle.cli.layout import STATUS_STYLE
from kapelle.cli.passages import Passage
from kapelle.cli.states import describe_activity, is_settled
from kapelle.cli.text import one_line
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import KapelleError
from kapelle.domain.report import FINAL

if TYPE_CHECKING:
    from rich.spinner import Spinner
    from rich.table import Table

    from kapelle.client.records import WorkJson

ShowPassage: TypeAlias = Callable[[Passage | None], None]

_REFRESH_S = 1.0
_MOST_ROWS = 15


@contextmanager
def watch_live(client: DaemonConnection, items: Iterable["WorkJson"]) -> Iterator[ShowPassage]:
    """Show the states of tasks and runs until the block is left; the daemon is asked each second.

    The block gets a function that prints a passage above them.
    """
    items_by_id = {item["id"]: item for item in items}
    own_client = DaemonConnection(client.address, autostart=False)
    is_left = threading.Event()

    def refresh() -> None:
        while not is_left.wait(_REFRESH_S):
            open_ids = [id_ for id_, item in items_by_id.items() if item["status"] not in FINAL]
            for item_id in open_ids:
                # The block itself reports a daemon that is gone.
                with suppress(KapelleError):
                    items_by_id[item_id] = own_client.get(path_of(item_id), timeout=5)

    threading.Thread(target=refresh, daemon=True).start()
    try:
        with draw_live(items_by_id.values()) as show_above:
            yield show_above
    finally:
        is_left.set()


@contextmanager
def draw_live(items: Collection["WorkJson"]) -> Iterator[ShowPassage]:
    """Redraw the states of tasks and runs, which the caller keeps up to date.

    The block gets a function that prints a passage above them.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    spinner = Spinner("dots")

    def show_above(passage: Passage | None) -> None:
        if passage is not None:
            console.print(Text(passage.text, style=passage.style or ""), soft_wrap=True)

    with Live(
        console=console,
        get_renderable=lambda: _make_grid(items, spinner),
        refresh_per_second=8,
        transient=True,
    ):
        yield show_above


def _make_grid(items: Collection["WorkJson"], spinner: "Spinner") -> "Table":
    """Return a row for each task and run that is not settled."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    pending = [item for item in items if not is_settled(item)]
    for item in pending[:_MOST_ROWS]:
        activity = one_line(describe_activity(item), 100)
        subject = " · ".join(filter(None, [activity, one_line(item["title"], 40)]))
        grid.add_row(
            spinner,
            Text(item["status"], style=STATUS_STYLE.get(item["status"]) or ""),
            Text(_format_time_at_work(item)),
            Text(subject, style="dim", no_wrap=True, overflow="ellipsis"),
        )
    if len(pending) > _MOST_ROWS:
        grid.add_row(spinner, Text(f"and {len(pending) - _MOST_ROWS} more", style="dim"))
    return grid


def _format_time_at_work(item: "WorkJson") -> str:
    """Format the time at work, without pauses and the time between attempts."""
    if not item["started_at"]:
        return ""
    if "pattern" in item:
        return format_seconds(item["spent"]["seconds"])
    return format_seconds(attempts_s(item))
