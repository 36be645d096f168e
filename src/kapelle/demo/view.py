"""How the demo is shown: as lines, in a terminal above what its tasks are at, or not at all."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kapelle.cli.follow import live
from kapelle.cli.format import STATUS_STYLE, colourful, one_line, wrapped
from kapelle.cli.outcome import Task
from kapelle.cli.transcript import Passage, show

Tasks = dict[str, Task]
"""The tasks by their keys."""


class View:
    """Lines for a person; quiet it shows nothing, for a program reads the document at the end."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._began_at = quiet, time.monotonic()
        self._show: Callable[[Passage | None], None] = show

    def say(self, text: str = "", style: str | None = None) -> None:
        if not self._quiet:
            indent = len(text) - len(text.lstrip())
            lines = "\n".join(wrapped(line, indent) for line in text.split("\n"))
            self._show(Passage(lines, style))

    @contextmanager
    def watching(self, tasks: Tasks) -> Iterator[None]:
        """Show how the tasks get on meanwhile."""
        self.say()
        self._began_at = time.monotonic()
        if self._quiet or not colourful():
            yield
            return
        with live(tasks.values()) as self._show:
            yield
        self._show = show

    def changed(self, key: str, kind: str, data: dict[str, Any], tasks: Tasks) -> None:
        """Show an event of a task, if it is a change of its status."""
        word, about = _change(key, kind, data, tasks)
        if word:
            passed_s = time.monotonic() - self._began_at
            text = f"   {passed_s:5.1f}s  {key:10} {word:12} {about}".rstrip()
            self.say(text, STATUS_STYLE.get(word))


def series(names: Iterable[str]) -> str:
    """Names in a sentence: a, b and c."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _change(key: str, kind: str, data: dict[str, Any], tasks: Tasks) -> tuple[str, str]:
    """A word for an event of a task and what else to say; no word for what shows no change."""
    match kind:
        case "task.created" if tasks[key]["depends_on"]:
            names = {task["id"]: name for name, task in tasks.items()}
            return "blocked", f"waits for {series(names[one] for one in tasks[key]['depends_on'])}"
        case "attempt.started":
            return "running", f"attempt {data['number']}" if data["number"] > 1 else ""
        case "check.failed":
            return "check failed", one_line(str(data["name"]))
        case "task.completed":
            return "completed", one_line(tasks[key]["result"] or "")
        case "task.queued" | "task.failed" | "task.cancelled" | "task.waiting":
            return kind.removeprefix("task."), one_line(str(data["reason"] or ""))
    return "", ""
