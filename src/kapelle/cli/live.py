"""Live progress in a terminal: output above, the state of the tasks on the last lines."""

import threading
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kapelle.cli.ids import task_path
from kapelle.cli.outcome import Task, settled
from kapelle.cli.style import STATUS_STYLE
from kapelle.cli.text import one_line
from kapelle.cli.times import between
from kapelle.cli.transcript import passage
from kapelle.client.http import Connection as Client
from kapelle.client.http import ServerEvent
from kapelle.domain.errors import KapelleError

REFRESH_S = 1.0
ROWS = 15


class LiveTasks:
    """The states of tasks, redrawn below whatever is shown meanwhile."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = {task["id"]: task for task in tasks}
        self._spinner = Spinner("dots")
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> "LiveTasks":
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def update(self, task: Task) -> None:
        self._tasks[task["id"]] = task

    def show(self, event: ServerEvent) -> None:
        """A piece of an agent's output, above the states."""
        shown = passage(event)
        if shown is not None:
            self._console.print(Text(shown.text, style=shown.style or ""), soft_wrap=True)

    def _render(self) -> Table:
        rows = Table.grid(padding=(0, 1))
        pending = [task for task in self._tasks.values() if not settled(task)]
        for task in pending[:ROWS]:
            rows.add_row(self._spinner, *_cells(task))
        rest = len(pending) - ROWS
        if rest > 0:
            rows.add_row("", Text(f"and {rest} more", style="dim"))
        return rows


def _cells(task: Task) -> list[Text]:
    number = len(task.get("attempts", ()))  # a run has none
    facts = [
        f"attempt {number}" if number > 1 else "",
        between(task["started_at"], task["ended_at"]),
    ]
    about = one_line(task["title"], 40)
    if task["reason"] and task["status"] != "running":
        about += f" · {one_line(task['reason'], 60)}"
    return [
        Text(task["status"], style=STATUS_STYLE.get(task["status"]) or ""),
        Text(" ".join(filter(None, facts))),
        Text(about, style="dim", no_wrap=True, overflow="ellipsis"),
    ]


class Refresher:
    """Asks for a task's state in the background while its output is streamed."""

    def __init__(self, client: Client, task_id: str, view: LiveTasks) -> None:
        self._client = Client(client.address, autostart=False)
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
