"""How the demo is shown: as a live table in a terminal, as lines in a pipe, or not at all."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kapelle.cli.format import STATUS_STYLE, between, one_line, paint, wrapped
from kapelle.cli.outcome import Task

Tasks = dict[str, Task]
"""The tasks by their keys."""

_SIGNS = {"completed": "✓", "failed": "✗", "cancelled": "-", "blocked": "·", "queued": "·"}


class View:
    """Shows nothing; a program reads the document at the end."""

    def say(self, text: str = "", style: str | None = None) -> None:
        pass

    @contextmanager
    def watching(self, tasks: Tasks) -> Iterator[None]:
        """Show how the tasks get on meanwhile."""
        yield

    def changed(self, key: str, kind: str, data: dict[str, Any]) -> None:
        """Show an event of a task."""


class Lines(View):
    """One line for every change of a status."""

    def say(self, text: str = "", style: str | None = None) -> None:
        sys.stdout.write(paint(text, style) + "\n")
        sys.stdout.flush()

    @contextmanager
    def watching(self, tasks: Tasks) -> Iterator[None]:
        self._tasks, self._began_at = tasks, time.monotonic()
        self.say()
        yield

    def changed(self, key: str, kind: str, data: dict[str, Any]) -> None:
        word, about = _change(key, kind, data, self._tasks)
        if word:
            passed_s = time.monotonic() - self._began_at
            shown = paint(f"{word:12}", STATUS_STYLE.get(word))
            self.say(f"   {passed_s:5.1f}s  {key:10} {shown} {about}".rstrip())


class LiveTable(View):
    """Text above, the table below; at its end the table stays on the screen."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._spinner = Spinner("dots", style="cyan")

    def say(self, text: str = "", style: str | None = None) -> None:
        indent = len(text) - len(text.lstrip())
        lines = "\n".join(wrapped(line, indent) for line in text.split("\n"))
        self._console.print(Text(lines, style=style or ""), soft_wrap=True)

    @contextmanager
    def watching(self, tasks: Tasks) -> Iterator[None]:
        self.say()
        table = partial(self._table, tasks)
        with Live(console=self._console, get_renderable=table, refresh_per_second=10):
            yield

    def _table(self, tasks: Tasks) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=3, justify="right")
        for _ in range(5):
            table.add_column(no_wrap=True)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        heads = ("", "TASK", "AGENT", "STATUS", "TRY", "TIME", "")
        table.add_row(*(Text(head, style="bold") for head in heads))
        for key, task in tasks.items():
            status, attempts = task["status"], task["attempts"]
            style = STATUS_STYLE.get(status) or ""
            table.add_row(
                self._spinner if status == "running" else Text(_SIGNS.get(status, "?"), style),
                Text(key),
                Text(task["agent"], style="dim"),
                Text(status, style=style),
                Text(str(len(attempts)) if attempts else ""),
                Text(between(task["started_at"], task["ended_at"])),
                Text(_remark(key, task, tasks), style="dim"),
            )
        return table


def series(names: Iterable[str]) -> str:
    """Names in a sentence: a, b and c."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _change(key: str, kind: str, data: dict[str, Any], tasks: Tasks) -> tuple[str, str]:
    """A word for an event of a task and what else to say; no word for what shows no change."""
    match kind:
        case "task.created" if tasks[key]["depends_on"]:
            return "blocked", _open_dependencies(key, tasks)
        case "attempt.started":
            return "running", f"attempt {data['number']}" if data["number"] > 1 else ""
        case "check.failed":
            return "check failed", one_line(str(data["name"]))
        case "task.completed":
            return "completed", one_line(tasks[key]["result"] or "")
        case "task.queued" | "task.failed" | "task.cancelled" | "task.waiting":
            return kind.removeprefix("task."), one_line(str(data["reason"] or ""))
    return "", ""


def _remark(key: str, task: Task, tasks: Tasks) -> str:
    if task["status"] == "blocked":
        return _open_dependencies(key, tasks)
    if task["status"] == "completed":
        return one_line(task["result"] or "")
    before = [attempt["reason"] for attempt in task["attempts"] if attempt["status"] == "failed"]
    if task["status"] == "running" and before:
        return one_line(f"before: {before[-1]}")
    return one_line(task["reason"] or task["prompt"])


def _open_dependencies(key: str, tasks: Tasks) -> str:
    names = {task["id"]: name for name, task in tasks.items()}
    wanted = [names[other] for other in tasks[key]["depends_on"] if other in names]
    still_open = [name for name in wanted if tasks[name]["status"] != "completed"]
    return f"waits for {series(still_open)}" if still_open else ""
