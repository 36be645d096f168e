"""A run in a terminal: its history above, where it stands on the last line."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kapelle.cli.runs.lines import Event, line
from kapelle.cli.runs.progress import state_words
from kapelle.cli.style import STATUS_STYLE, fit
from kapelle.cli.text import one_line
from kapelle.cli.times import moment, now, short

_STATES = frozenset(STATUS_STYLE) | {"queued"}
_ENDS = frozenset({"completed", "failed", "cancelled"})
_LAST = frozenset(f"run.{status}" for status in _ENDS)


class LiveRun:
    """What is known of one run from its events, redrawn below them."""

    def __init__(self, run: dict[str, Any]) -> None:
        self._run = run
        self._status: str = run["status"]
        self._facts: dict[str, Any] = dict(run["progress"])
        self._tasks: dict[str, str] = {}
        self._spinner = Spinner("dots")
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> Callable[[Event], None]:
        self._live.__enter__()
        return self.show

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, event: Event) -> None:
        """An event: its line above, and what follows from it below."""
        self._learn(event)
        # What it ended with is said again, with what to type next, when the view is gone.
        shown = None if event["kind"] in _LAST else line(event)
        if shown is not None:
            self._console.print(Text(shown.text, style=shown.style or ""))

    def _learn(self, event: Event) -> None:
        noun, _, what = event["kind"].partition(".")
        if event["kind"] == "run.progress":
            self._facts |= event["data"]
        elif noun == "run" and what in _STATES:
            self._status = what
        elif noun == "task" and what == "running":
            self._tasks[event["task_id"]] = one_line(str(event["data"].get("title") or ""))
        elif noun == "task" and what in {*_ENDS, "queued", "waiting"}:
            self._tasks.pop(event["task_id"], None)

    def _render(self) -> Table:
        row = Table.grid(padding=(0, 1))
        if self._status not in _ENDS:
            status = Text(self._status, style=STATUS_STYLE.get(self._status) or "")
            # Room is left for the spinner, and for the ^C that a terminal shows on an interrupt.
            room = max(self._console.width - len(self._status) - 8, 8)
            row.add_row(self._spinner, status, Text(fit(self._about(), room), style="dim"))
        return row

    def _about(self) -> str:
        limit = self._run["spec"].get("max_iterations")
        facts = [self._age(), state_words(self._facts, limit), self._at_work()]
        return " · ".join(filter(None, facts))

    def _age(self) -> str:
        began = moment(self._run["created_at"])
        return short((now() - began).total_seconds()) if began else ""

    def _at_work(self) -> str:
        titles = list(self._tasks.values())
        if len(titles) < 2:
            return "".join(titles)
        return f"{len(titles)} tasks: {', '.join(titles)}"
