"""Live views in a terminal: what happens above, the present state on the last lines."""

import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kapelle.cli.events import Event, line, state_words
from kapelle.cli.format import STATUS_STYLE, between, fit, moment, now, one_line, short
from kapelle.cli.ids import task_path
from kapelle.cli.outcome import FINAL, Run, Task, settled
from kapelle.cli.transcript import Passage, passage
from kapelle.client.http import Connection, ServerEvent
from kapelle.domain.errors import KapelleError

REFRESH_S = 1.0
ROWS = 15
_STATES = frozenset(STATUS_STYLE) | {"queued"}


class LiveView:
    """Rows that are redrawn below whatever is printed meanwhile."""

    def __init__(self) -> None:
        # Draws the rows once, so what they are made of must be there already.
        self._spinner = Spinner("dots")
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def _print(self, shown: Passage | None, *, soft_wrap: bool = False) -> None:
        if shown is not None:
            self._console.print(Text(shown.text, style=shown.style or ""), soft_wrap=soft_wrap)

    def _render(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        for row in self._rows():
            grid.add_row(self._spinner, *row)
        return grid

    def _rows(self) -> Iterator[list[Text]]:
        raise NotImplementedError


class LiveTasks(LiveView):
    """The states of tasks and runs that have not ended."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = {task["id"]: task for task in tasks}
        super().__init__()

    def update(self, task: Task) -> None:
        self._tasks[task["id"]] = task

    def show(self, event: ServerEvent) -> None:
        """A piece of an agent's output, above the states."""
        self._print(passage(event), soft_wrap=True)

    def _rows(self) -> Iterator[list[Text]]:
        pending = [task for task in self._tasks.values() if not settled(task)]
        for task in pending[:ROWS]:
            number = len(task.get("attempts", ()))  # a run has none
            again = f"attempt {number} " if number > 1 else ""
            about = one_line(task["title"], 40)
            if task["reason"] and task["status"] != "running":
                about += f" · {one_line(task['reason'], 60)}"
            yield [
                _status(task["status"]),
                Text(again + between(task["started_at"], task["ended_at"])),
                Text(about, style="dim", no_wrap=True, overflow="ellipsis"),
            ]
        if len(pending) > ROWS:
            yield [Text(f"and {len(pending) - ROWS} more", style="dim")]


class Refresher:
    """Asks for a task's state in the background while its output is streamed."""

    def __init__(self, client: Connection, task_id: str, view: LiveTasks) -> None:
        self._client = Connection(client.address, autostart=False)
        self._task_id, self._view = task_id, view
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(REFRESH_S):
            try:
                self._view.update(self._client.get(task_path(self._task_id), timeout=5))
            except KapelleError:
                # The stream itself reports a daemon that went away.
                continue


class LiveRun(LiveView):
    """What is known of one run from its events."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._status: str = run["status"]
        self._facts: dict[str, Any] = dict(run["progress"])
        self._tasks: dict[str, str] = {}
        super().__init__()

    def show(self, event: Event) -> None:
        """An event: its line above, and what follows from it below."""
        noun, _, what = event["kind"].partition(".")
        if event["kind"] == "run.progress":
            self._facts |= event["data"]
        elif noun == "run" and what in _STATES:
            self._status = what
        elif noun == "task" and what == "running":
            self._tasks[event["task_id"]] = one_line(str(event["data"].get("title") or ""))
        elif noun == "task" and what in {*FINAL, "queued", "waiting"}:
            self._tasks.pop(event["task_id"], None)
        # What it ended with is said again, with what to type next, when the view is gone.
        if noun != "run" or what not in FINAL:
            self._print(line(event))

    def _rows(self) -> Iterator[list[Text]]:
        if self._status in FINAL:
            return
        began = moment(self._run["created_at"])
        titles = list(self._tasks.values())
        facts = [
            short((now() - began).total_seconds()) if began else "",
            state_words(self._facts, self._run["spec"].get("max_iterations")),
            f"{len(titles)} tasks: {', '.join(titles)}" if len(titles) > 1 else "".join(titles),
        ]
        # Room is left for the spinner, and for the ^C that a terminal shows on an interrupt.
        room = max(self._console.width - len(self._status) - 8, 8)
        about = fit(" · ".join(filter(None, facts)), room)
        yield [_status(self._status), Text(about, style="dim")]


def _status(status: str) -> Text:
    return Text(status, style=STATUS_STYLE.get(status) or "")
