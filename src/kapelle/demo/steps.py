"""The steps of the demo, from failing tests to a merged result, shown as lines, in a terminal above
what its tasks are at, or not at all."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from textwrap import indent
from typing import Any

from kapelle.cli.events import read_event
from kapelle.cli.ids import path_of, task_path
from kapelle.cli.layout import STATUS_STYLE, uses_colours, wrap_line
from kapelle.cli.live_view import draw_live
from kapelle.cli.passages import Passage, event_passage, print_passage
from kapelle.cli.text import one_line
from kapelle.client.http import DaemonConnection
from kapelle.demo import sandbox as sample
from kapelle.demo.report import (
    LOOP,
    TASKS,
    TEAM,
    DemoReport,
    DemoRun,
    Kill,
    TasksById,
    series,
    task_spec,
)
from kapelle.demo.sandbox import Sandbox
from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.domain.report import FINAL

# Both have begun their work when the daemon is killed.
_INTERRUPTED = {"intervals", "scales"}
_FIRST_OUTPUT_S = 5.0
# The agents of the demo cost next to nothing, so a small or busy machine is no reason to wait.
_SETTINGS = """\
[agents.rehearsal]
playbook = "{playbook}"

[limits]
max_attempts = 4
max_load_per_core = 0
min_free_memory_mb = 32
min_free_disk_mb = 50

[tasks]
grace_s = 2
"""


class View:
    """Lines for a person; quiet it shows nothing, for a program reads the document at the end."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._began_at = quiet, time.monotonic()
        self._show: Callable[[Passage | None], None] = print_passage

    def say(self, text: str = "", style: str | None = None) -> None:
        if not self._quiet:
            indent = len(text) - len(text.lstrip())
            lines = "\n".join(wrap_line(line, indent) for line in text.split("\n"))
            self._show(Passage(lines, style))

    @contextmanager
    def watching(self, tasks: TasksById) -> Iterator[None]:
        """Show how the tasks get on meanwhile."""
        self.say()
        self._began_at = time.monotonic()
        if self._quiet or not uses_colours():
            yield
            return
        with draw_live(tasks.values()) as self._show:
            yield
        self._show = print_passage

    def changed(self, key: str, kind: str, data: dict[str, Any], tasks: TasksById) -> None:
        """Show an event of a task, if it is a change of its status."""
        word, about = _change(key, kind, data, tasks)
        if word:
            passed_s = time.monotonic() - self._began_at
            text = f"   {passed_s:5.1f}s  {key:10} {word:12} {about}".rstrip()
            self.say(text, STATUS_STYLE.get(word))


def _change(key: str, kind: str, data: dict[str, Any], tasks: TasksById) -> tuple[str, str]:
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


def run_demo(sandbox: Sandbox, view: View, playbook: Path | None) -> DemoReport:
    """Take every step; what went wrong stands in the report."""
    began_at = time.monotonic()
    if shutil.which("git") is None:
        raise Unavailable("git is not installed.", hint="Install it, then try again.")
    report = DemoReport(_make_repository(sandbox, view))
    client = _start_daemon(sandbox, view, playbook)
    report.tasks = _submit(sandbox, client, view)
    report.kill = _watch(client, report.tasks, view)
    _merge_tasks(client, report, view)
    place = {"directory": str(sandbox.repository)}
    view.say("5  A goal for a team: planned, worked on at once, verified and reviewed", "bold")
    view.say(f'   kapelle team "{TEAM["goal"]}"', "dim")
    view.say('     --verify "python3 -m unittest"', "dim")
    report.team = _run(client, view, "team", {**TEAM, **place}, kill_at="work")
    view.say("6  A number to make smaller: every try is a commit, the best is kept", "bold")
    view.say(f'   kapelle loop "{LOOP["prompt"]}"', "dim")
    view.say('     --eval "… && wc -c < music/score.py" --minimize --max-iterations 4', "dim")
    report.loop = _run(client, view, "loop", {**LOOP, **place})
    _test(sandbox, report, view)
    report.tasks = {key: client.get(task_path(task["id"])) for key, task in report.tasks.items()}
    report.seconds = time.monotonic() - began_at
    return report


def _make_repository(sandbox: Sandbox, view: View) -> sample.Tally:
    sample.make_repository(sandbox.repository)
    tally = sample.run_tests(sandbox.repository)
    view.say("1  A sample repository, a very small music library", "bold")
    view.say(f"   {sandbox.repository}")
    view.say(f"   {tally}.", None if tally.passes else "red")
    view.say()
    return tally


def _start_daemon(sandbox: Sandbox, view: View, playbook: Path | None) -> DaemonConnection:
    home = sandbox.home
    home.root.mkdir(mode=0o700)
    copy = home.root / "playbook.toml"
    own = files("kapelle.demo").joinpath("playbook.toml")
    copy.write_bytes(playbook.read_bytes() if playbook else own.read_bytes())
    home.config.write_text(_SETTINGS.format(playbook=copy), encoding="utf-8")
    client = DaemonConnection()
    view.say("2  A daemon in a home of its own, apart from yours", "bold")
    view.say(f"   KAPELLE_HOME={home.root}, process {_daemon_pid(client)}")
    view.say()
    return client


def _daemon_pid(client: DaemonConnection) -> int:
    """Asking anything is enough to have one: the client starts a daemon when there is none."""
    return int(client.get("/daemon")["pid"])


def _submit(sandbox: Sandbox, client: DaemonConnection, view: View) -> TasksById:
    view.say(f"3  {len(TASKS)} tasks, each in a git worktree, each with checks", "bold")
    for task in TASKS.values():
        view.say(f'   kapelle run "{task["prompt"]}" …', "dim")
    tasks: TasksById = {}
    for key in TASKS:
        tasks[key] = client.create("/tasks", task_spec(key, str(sandbox.repository), tasks))
    return tasks


def _watch(client: DaemonConnection, tasks: TasksById, view: View) -> Kill | None:
    """Keep the tasks up to date until all have ended; returns the kill if it came to that."""
    keys = {task["id"]: key for key, task in tasks.items()}
    still_open = set(tasks)
    begun = set[str]()
    kill = None
    with view.watching(tasks):
        for event in client.stream("/events", {"after": 0}, endless=True):
            key = keys.get(event.data.get("task_id") or "")
            if key is None:
                continue
            tasks[key] = client.get(task_path(tasks[key]["id"]))
            view.changed(key, event.kind, event.data["data"], tasks)
            if event.kind == "attempt.started":
                begun.add(key)
            running = {name: task for name, task in tasks.items() if task["status"] == "running"}
            if kill is None and begun >= _INTERRUPTED and running:
                kill = _kill_daemon(client, running, view)
            if event.kind.removeprefix("task.") in FINAL:
                still_open.discard(key)
            if not still_open:
                break
    return kill


def _kill_daemon(client: DaemonConnection, running: TasksById, view: View) -> Kill:
    _await_output(client, running)
    pid = _daemon_pid(client)
    attempts = {key: str(task["attempts"][-1]["id"]) for key, task in running.items()}
    os.kill(pid, signal.SIGKILL)
    began_at = time.monotonic()
    names = f"{series(running)} {'are' if len(running) > 1 else 'is'}"
    view.say(f"   kill -9 {pid}: the daemon is gone, while {names} at work.", "yellow")
    successor = _daemon_pid(client)
    gap_s = time.monotonic() - began_at
    text = f"   The next command started another one ({successor}, {gap_s:.1f} s)."
    view.say(f"{text} The agents did not notice.", "yellow")
    view.say()
    return Kill(pid, successor, gap_s, attempts)


def _await_output(client: DaemonConnection, tasks: TasksById) -> None:
    """Wait until every agent has said something, so that they are really in the middle."""
    deadline = time.monotonic() + _FIRST_OUTPUT_S
    silent = list(tasks)
    while silent and time.monotonic() < deadline:
        if client.get_bytes(task_path(tasks[silent[0]]["id"], "output"))[0]:
            silent.pop(0)
        else:
            time.sleep(0.05)


def _merge_tasks(client: DaemonConnection, report: DemoReport, view: View) -> None:
    """Merge what is verified, and try to merge what is not, to show that Kapelle refuses."""
    view.say()
    view.say("4  What is verified is merged into main, and nothing else", "bold")
    for key, task in sorted(report.tasks.items(), key=lambda item: item[1]["status"]):
        if task["status"] not in {"completed", "failed"} or not task["workspace"]["branch"]:
            continue
        commit, problem = _merge(client, task["id"])
        if commit:
            report.merged[key] = commit
            view.say(f"   ✓ {key:10} {commit[:10]}", "green")
        else:
            view.say(f"   ✗ {key:10} {problem}", "red")
        if problem and task["status"] == "failed":
            report.refused[key] = problem
    view.say()


def _merge(client: DaemonConnection, some_id: str) -> tuple[str | None, str]:
    """The commit with which it was merged, or why it was not."""
    try:
        return str(client.merge(path_of(some_id, "merge"), {})["commit"]), ""
    except KapelleError as error:
        return None, one_line(error.message)


def _run(
    client: DaemonConnection,
    view: View,
    pattern: str,
    spec: dict[str, Any],
    kill_at: str | None = None,
) -> DemoRun:
    body = {"pattern": pattern, "spec": {**spec, "agent": "rehearsal", "max_seconds": 120}}
    made = DemoRun(client.create("/runs", body))
    for event in client.stream("/events", {"after": 0, "run_id": made.run["id"]}, endless=True):
        data = read_event(event)
        passage = data and event_passage(data)
        if passage:
            view.say(indent(passage.text, "   "), passage.style)
        if kill_at and event.data["data"].get("phase") == kill_at:
            made.killed = _daemon_pid(client)
            kill_at = None
            os.kill(made.killed, signal.SIGKILL)
            text = f"   kill -9 {made.killed}: the next daemon ({_daemon_pid(client)}) goes on"
            view.say(f"{text} with the run.", "yellow")
        if event.kind.removeprefix("run.") in FINAL:
            break
    made.run = client.get(path_of(made.run["id"]))
    made.merged, problem = _merge(client, made.run["id"])
    if made.merged:
        view.say(f"   ✓ merged into main as {made.merged[:10]}", "green")
    else:
        view.say(f"   ✗ {problem}", "red")
    view.say()
    return made


def _test(sandbox: Sandbox, report: DemoReport, view: View) -> None:
    view.say("7  The sample's own tests, on the merged main", "bold")
    dirty = sample.git(sandbox.repository, "status", "--porcelain")
    if dirty:
        raise KapelleError(f"The checkout of main is not what was merged: {dirty}")
    report.after = sample.run_tests(sandbox.repository)
    view.say(f"   {report.after}.", "green" if report.after.passes else "red")
    if report.after.passes:
        view.say()
        for line in sample.tune(sandbox.repository).splitlines():
            view.say(f"   {line}", "cyan")
    view.say()
