"""The ensemble as a table that changes while one looks at it."""

from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kapelle.cli.outcome import Task
from kapelle.cli.style import STATUS_STYLE
from kapelle.cli.text import one_line
from kapelle.cli.times import between
from kapelle.demo.views import Tasks, waits_for

_SIGNS = {"completed": "✓", "failed": "✗", "cancelled": "-", "blocked": "·", "queued": "·"}


class LiveTable:
    """Words above, the table below; at its end the table stays on the screen."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._spinner = Spinner("dots", style="cyan")
        self._tasks: Tasks = {}
        self._live: Live | None = None

    def say(self, text: str = "", style: str | None = None) -> None:
        self._console.print(Text(text, style=style or ""))

    def watch(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.say()
        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=10)
        self._live.start()

    def changed(self, key: str, kind: str, data: dict[str, Any]) -> None:
        """The table itself is drawn anew many times a second."""

    def end_watch(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=3, justify="right")
        for _ in range(5):
            table.add_column(no_wrap=True)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        heads = ("", "TASK", "AGENT", "STATUS", "TRY", "TIME", "")
        table.add_row(*(Text(head, style="bold") for head in heads))
        for key, task in self._tasks.items():
            table.add_row(self._sign(task), *_cells(key, task, self._tasks))
        return table

    def _sign(self, task: Task) -> Text | Spinner:
        if task["status"] == "running":
            return self._spinner
        status = task["status"]
        return Text(_SIGNS.get(status, "?"), style=STATUS_STYLE.get(status) or "")


def _cells(key: str, task: Task, tasks: Tasks) -> list[Text]:
    attempts = task["attempts"]
    return [
        Text(key),
        Text(task["agent"], style="dim"),
        Text(task["status"], style=STATUS_STYLE.get(task["status"]) or ""),
        Text(str(len(attempts)) if attempts else ""),
        Text(between(task["started_at"], task["ended_at"])),
        Text(_remark(key, task, tasks), style="dim"),
    ]


def _remark(key: str, task: Task, tasks: Tasks) -> str:
    if task["status"] == "blocked":
        return waits_for(key, tasks)
    if task["status"] == "completed":
        return one_line(task["result"] or "")
    before = [attempt["reason"] for attempt in task["attempts"] if attempt["status"] == "failed"]
    if task["status"] == "running" and before:
        return one_line(f"before: {before[-1]}")
    return one_line(task["reason"] or task["prompt"])
