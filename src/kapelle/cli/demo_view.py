"""Show the demo: its steps as lines, its tasks as they change, and its result at the end."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import indent
from typing import TYPE_CHECKING

from kapelle.cli.events import read_event
from kapelle.cli.layout import (
    STATUS_STYLE,
    command_lines,
    format_table,
    paint,
    uses_colours,
    wrap_line,
)
from kapelle.cli.live_view import draw_live
from kapelle.cli.passages import Passage, event_passage, print_passage
from kapelle.cli.text import one_line
from kapelle.client.protocol import ServerEvent
from kapelle.demo.report import DemoReport, TasksById, join_names
from kapelle.demo.sandbox import Sandbox

if TYPE_CHECKING:
    from kapelle.client.records import TaskJson

_HEADER = ["TASK", "STATUS", "TRIES", "CLAIMED", "VERIFIED", "MERGED"]


class DemoView:
    """Shows the demo to a person; a quiet view shows nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._began_at = time.monotonic()
        self._show: Callable[[Passage | None], None] = print_passage

    def say(self, text: str = "", style: str | None = None) -> None:
        """Show lines of text."""
        if self._quiet:
            return
        margin = len(text) - len(text.lstrip())
        lines = "\n".join(wrap_line(line, margin) for line in text.split("\n"))
        self._show(Passage(lines, style))

    @contextmanager
    def watching(self, tasks: TasksById) -> Iterator[None]:
        """Show the state of the tasks below the lines, in a terminal."""
        self.say()
        self._began_at = time.monotonic()
        if self._quiet or not uses_colours():
            yield
            return
        with draw_live(tasks.values()) as self._show:
            yield
        self._show = print_passage

    def show_task_event(self, key: str, event: ServerEvent, tasks: TasksById) -> None:
        """Show an event of a task, if it changes the task's status."""
        word, detail = _change(key, event, tasks)
        if word:
            seconds = time.monotonic() - self._began_at
            line = f"   {seconds:5.1f}s  {key:10} {word:12} {one_line(detail)}".rstrip()
            self.say(line, STATUS_STYLE.get(word))

    def show_run_event(self, event: ServerEvent) -> None:
        """Show an event of a run."""
        data = read_event(event)
        if data is None:
            return
        passage = event_passage(data)
        if passage is not None:
            self.say(indent(passage.text, "   "), passage.style)


def _change(key: str, event: ServerEvent, tasks: TasksById) -> tuple[str, str]:
    """Return a word for a change of a task, and its detail; no word for any other event."""
    task = tasks[key]
    data = event.data["data"]
    match event.kind:
        case "task.created" if task["depends_on"]:
            names = {other["id"]: name for name, other in tasks.items()}
            others = join_names(names[one] for one in task["depends_on"])
            return "blocked", f"waits for {others}"
        case "attempt.started":
            number = data["number"]
            return "running", f"attempt {number}" if number > 1 else ""
        case "check.failed":
            return "check failed", str(data["name"])
        case "task.completed":
            return "completed", task["result"] or ""
        case "task.queued" | "task.failed" | "task.cancelled" | "task.waiting":
            return event.kind.removeprefix("task."), str(data["reason"] or "")
    return "", ""


def result_lines(
    report: DemoReport, sandbox: Sandbox, kapelle: str, *, is_kept: bool, page: str | None = None
) -> Iterator[str]:
    """Yield the lines that a person reads at the end; page is the address of a running daemon."""
    rows = [_row(key, task, report) for key, task in report.tasks.items()]
    styles = [STATUS_STYLE.get(task["status"]) for task in report.tasks.values()]
    yield paint("What happened", "bold")
    for line in format_table(_HEADER, rows, styles):
        yield f"   {line}"
    yield ""
    for sentence in _sentences(report):
        yield wrap_line(f"   {sentence}", 6)
    yield ""
    yield from _verdict_lines(report, is_running=page is not None)
    yield ""
    if is_kept:
        yield from _directions(report, sandbox, kapelle)
        yield ""
    yield paint("Now with a real agent, in a repository of yours", "bold")
    yield f'   {kapelle} init && {kapelle} run "…"'
    if page:
        yield ""
        yield paint("The page, with all of this", "bold")
        yield f"   {page}"
        yield "   This address works once, within a minute; `kapelle open` makes another."


def _verdict_lines(report: DemoReport, *, is_running: bool) -> Iterator[str]:
    problems = report.problems()
    if problems:
        yield paint("✗ The demo did not end as it should:", "red")
        for problem in problems:
            yield wrap_line(f"   {problem}", 6)
        return
    tests = f"{report.before} → {report.after}"
    remark = "Its daemon keeps running." if is_running else "Nothing is left running."
    yield paint(f"✓ {tests}, in {report.seconds:.0f} s. {remark}", "green")


def _row(key: str, task: "TaskJson", report: DemoReport) -> list[str]:
    attempts = task["attempts"]
    checks = task["checks"]
    claim = ""
    if attempts:
        claim = attempts[-1]["claimed"] or "nothing"
    verified = ""
    if checks:
        passes = sum(check["passed"] for check in checks)
        verified = f"{passes} of {len(checks)} checks"
    commit = report.merged.get(key, "no")[:10]
    return [key, task["status"], str(len(attempts)), claim, verified, commit]


def _sentences(report: DemoReport) -> Iterator[str]:
    """Yield the remarkable events."""
    for key, task in report.tasks.items():
        attempts = task["attempts"]
        if task["status"] == "completed" and len(attempts) > 1:
            yield f"{key}: the first attempt failed its check, the next one passed."
        if task["status"] == "failed" and attempts[-1]["claimed"] == "success":
            claim = one_line(task["result"] or "success", 60)
            yield f'{key}: the agent said "{claim}" Its check failed.'
    if report.team.merged:
        count = len(report.team.run["result"]["iterations"])
        yield f"team: the reviewer said no once, so it took {count} iterations."
    if report.loop.merged:
        scores = report.loop.run["result"]["scores"]
        words = " → ".join("none" if score is None else f"{score:g}" for score in scores)
        yield f"loop: {words} bytes; main has the best, and the tests still pass."
    if report.kill:
        names = join_names(report.kill.attempts)
        yield f"kill -9 of the daemon: {names} went on, and the next daemon found them again."


def _directions(report: DemoReport, sandbox: Sandbox, kapelle: str) -> Iterator[str]:
    """Yield commands with which a person can look further."""
    ids = {key: task["id"] for key, task in report.tasks.items()}
    commands = [
        (f"export KAPELLE_HOME={shlex.quote(str(sandbox.home.root))}", ""),
        (f"{kapelle} open", "all of it in a browser"),
        (f"{kapelle} list", ""),
        (f"{kapelle} status {ids['score']}", "the agent's claim, and the failed check"),
        (f"{kapelle} logs {ids['melody']}", "the output of an agent"),
        (f"{kapelle} diff {ids['rhythm']}", "the changes of an agent"),
        (f"{kapelle} runs status {report.team.run.get('id')}", "the iterations of the team"),
        (f"git -C {shlex.quote(str(sandbox.repository))} log --oneline --graph", ""),
        (f"{kapelle} stop", "because these commands start the daemon again"),
        (f"rm -rf {shlex.quote(str(sandbox.root))}", "when you have seen enough"),
    ]
    yield paint("Look around", "bold")
    yield from command_lines(commands)
