"""How the demo is told: as a live table in a terminal, as lines in a pipe, or not at all."""

import sys
import time
from collections.abc import Iterable
from typing import Any, Protocol

from kapelle.cli.outcome import Task
from kapelle.cli.style import STATUS_STYLE, paint
from kapelle.cli.text import one_line

Tasks = dict[str, Task]
"""The tasks by the names of their parts."""


class View(Protocol):
    def say(self, text: str = "", style: str | None = None) -> None: ...

    def watch(self, tasks: Tasks) -> None:
        """Begin to show how the tasks get on."""

    def changed(self, key: str, kind: str, data: dict[str, Any]) -> None:
        """Something happened to a task."""

    def end_watch(self) -> None: ...


class Silence:
    """Tells nothing; a program reads the document at the end."""

    def say(self, text: str = "", style: str | None = None) -> None:
        pass

    def watch(self, tasks: Tasks) -> None:
        pass

    def changed(self, key: str, kind: str, data: dict[str, Any]) -> None:
        pass

    def end_watch(self) -> None:
        pass


class Lines:
    """One line for every change of a status."""

    def __init__(self) -> None:
        self._tasks: Tasks = {}
        self._began_at = time.monotonic()

    def say(self, text: str = "", style: str | None = None) -> None:
        sys.stdout.write(paint(text, style) + "\n")
        sys.stdout.flush()

    def watch(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._began_at = time.monotonic()
        self.say()

    def changed(self, key: str, kind: str, data: dict[str, Any]) -> None:
        told = change_of(key, kind, data, self._tasks)
        if told is not None:
            word, about = told
            passed_s = time.monotonic() - self._began_at
            shown = paint(f"{word:12}", STATUS_STYLE.get(word))
            self.say(f"   {passed_s:5.1f}s  {key:10} {shown} {about}".rstrip())

    def end_watch(self) -> None:
        pass


def change_of(key: str, kind: str, data: dict[str, Any], tasks: Tasks) -> tuple[str, str] | None:
    """A word for what happened to a task and what else to say; None for what shows no change."""
    match kind:
        case "task.created" if tasks[key]["depends_on"]:
            return "blocked", waits_for(key, tasks)
        case "attempt.started":
            return "running", f"attempt {data['number']}" if data["number"] > 1 else ""
        case "check.failed":
            return "check failed", one_line(str(data["name"]))
        case "task.completed":
            return "completed", one_line(tasks[key]["result"] or "")
        case "task.queued" | "task.failed" | "task.cancelled" | "task.waiting":
            return kind.removeprefix("task."), one_line(str(data["reason"] or ""))
    return None


def waits_for(key: str, tasks: Tasks) -> str:
    """The open dependencies of a task, by the names of their parts."""
    names = {task["id"]: name for name, task in tasks.items()}
    wanted = [names[other] for other in tasks[key]["depends_on"] if other in names]
    still_open = [name for name in wanted if tasks[name]["status"] != "completed"]
    return f"waits for {listing(still_open)}" if still_open else ""


def listing(names: Iterable[str]) -> str:
    """Names in a sentence: a, b and c."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
