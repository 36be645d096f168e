"""Take the steps of the demo, from failing tests to a merged result."""

import os
import shutil
import signal
import time
from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import ServerEvent
from kapelle.demo import sandbox as sample
from kapelle.demo.report import (
    LOOP,
    TASKS,
    TEAM,
    DemoReport,
    DemoRun,
    Kill,
    TasksById,
    join_names,
    task_spec,
)
from kapelle.demo.sandbox import Sandbox
from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.domain.report import FINAL

# The daemon is killed when both have begun their work.
_INTERRUPTED = {"intervals", "scales"}
_FIRST_OUTPUT_S = 5.0
# The limits of load and memory are low, because the demo's agents need next to nothing.
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


class View(Protocol):
    """Shows the demo to a person."""

    def say(self, text: str = "", style: str | None = None) -> None:
        """Show lines of text."""

    def watching(self, tasks: TasksById) -> AbstractContextManager[None]:
        """Show the state of the tasks while they work."""

    def show_task_event(self, key: str, event: ServerEvent, tasks: TasksById) -> None:
        """Show an event of a task."""

    def show_run_event(self, event: ServerEvent) -> None:
        """Show an event of a run."""


def run_demo(sandbox: Sandbox, view: View, playbook: Path | None) -> DemoReport:
    """Take all steps, and return the report, which has everything that went wrong."""
    began_at = time.monotonic()
    if shutil.which("git") is None:
        raise Unavailable("git is not installed.", hint="Install it, then try again.")
    report = DemoReport(_make_repository(sandbox, view))
    client = _start_daemon(sandbox, view, playbook)
    report.tasks = _submit(sandbox, client, view)
    report.kill = _watch(client, report.tasks, view)
    _merge_tasks(client, report, view)
    location = {"directory": str(sandbox.repository)}
    view.say("5  A goal for a team: planned, worked on at once, verified and reviewed", "bold")
    view.say(f'   kapelle team "{TEAM["goal"]}"', "dim")
    view.say('     --verify "python3 -m unittest"', "dim")
    report.team = _run(client, view, "team", {**TEAM, **location}, kill_at="work")
    view.say("6  A number to make smaller: every try is a commit, the best is kept", "bold")
    view.say(f'   kapelle loop "{LOOP["prompt"]}"', "dim")
    view.say('     --eval "… && wc -c < music/score.py" --minimize --max-iterations 4', "dim")
    report.loop = _run(client, view, "loop", {**LOOP, **location})
    _test(sandbox, report, view)
    for key, task in report.tasks.items():
        report.tasks[key] = client.get(f"/tasks/{task['id']}")
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
    source = playbook or files("kapelle.demo").joinpath("playbook.toml")
    copy.write_bytes(source.read_bytes())
    home.config.write_text(_SETTINGS.format(playbook=copy), encoding="utf-8")
    client = DaemonConnection()
    view.say("2  A daemon in a home of its own, apart from yours", "bold")
    view.say(f"   KAPELLE_HOME={home.root}, process {_daemon_pid(client)}")
    view.say()
    return client


def _daemon_pid(client: DaemonConnection) -> int:
    """Return the pid of the daemon; the client starts one if there is none."""
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
    """Update the tasks until all have ended; return the kill of the daemon, if it came to that."""
    keys = {task["id"]: key for key, task in tasks.items()}
    still_open = set(tasks)
    started = set[str]()
    kill = None
    with view.watching(tasks):
        for event in client.stream("/events", {"after": 0}, endless=True):
            key = keys.get(event.data.get("task_id") or "")
            if key is None:
                continue
            tasks[key] = client.get(f"/tasks/{tasks[key]['id']}")
            view.show_task_event(key, event, tasks)
            if event.kind == "attempt.started":
                started.add(key)
            running = {name: task for name, task in tasks.items() if task["status"] == "running"}
            if kill is None and started >= _INTERRUPTED and running:
                kill = _kill_daemon(client, running, view)
            if event.kind.removeprefix("task.") in FINAL:
                still_open.discard(key)
            if not still_open:
                break
    return kill


def _kill_daemon(client: DaemonConnection, running: TasksById, view: View) -> Kill:
    """Kill the daemon while agents are running, and start the next one."""
    _await_output(client, running)
    pid = _daemon_pid(client)
    attempts = {key: str(task["attempts"][-1]["id"]) for key, task in running.items()}
    os.kill(pid, signal.SIGKILL)
    began_at = time.monotonic()
    verb = "are" if len(running) > 1 else "is"
    names = join_names(running)
    view.say(f"   kill -9 {pid}: the daemon is gone, while {names} {verb} at work.", "yellow")
    successor = _daemon_pid(client)
    gap_s = time.monotonic() - began_at
    text = f"   The next command started another one ({successor}, {gap_s:.1f} s)."
    view.say(f"{text} The agents did not notice.", "yellow")
    view.say()
    return Kill(pid, successor, gap_s, attempts)


def _await_output(client: DaemonConnection, tasks: TasksById) -> None:
    """Wait until every agent has printed something, so that it is in the middle of its work."""
    deadline = time.monotonic() + _FIRST_OUTPUT_S
    silent = list(tasks)
    while silent and time.monotonic() < deadline:
        if client.get_bytes(f"/tasks/{tasks[silent[0]]['id']}/output")[0]:
            silent.pop(0)
        else:
            time.sleep(0.05)


def _merge_tasks(client: DaemonConnection, report: DemoReport, view: View) -> None:
    """Merge verified work, and try to merge failed work, to show that Kapelle refuses."""
    view.say()
    view.say("4  What is verified is merged into main, and nothing else", "bold")
    for key, task in sorted(report.tasks.items(), key=lambda item: item[1]["status"]):
        if task["status"] not in {"completed", "failed"} or not task["workspace"]["branch"]:
            continue
        commit, problem = _merge(client, f"/tasks/{task['id']}")
        if commit:
            report.merged[key] = commit
            view.say(f"   ✓ {key:10} {commit[:10]}", "green")
        else:
            view.say(f"   ✗ {key:10} {problem}", "red")
        if problem and task["status"] == "failed":
            report.refused[key] = problem
    view.say()


def _merge(client: DaemonConnection, work: str) -> tuple[str | None, str]:
    """Merge a task or a run by its path; return the commit, or the reason of a refusal."""
    try:
        return str(client.merge(f"{work}/merge", {})["commit"]), ""
    except KapelleError as error:
        return None, " ".join(error.message.split())


def _run(
    client: DaemonConnection,
    view: View,
    pattern: str,
    spec: dict[str, Any],
    kill_at: str | None = None,
) -> DemoRun:
    """Start a run, follow it to its end, and merge it.

    The daemon is killed once, when the run reaches the phase kill_at.
    """
    body = {"pattern": pattern, "spec": {**spec, "agent": "rehearsal", "max_seconds": 120}}
    run = client.create("/runs", body)
    path = f"/runs/{run['id']}"
    demo_run = DemoRun()
    for event in client.stream("/events", {"after": 0, "run_id": run["id"]}, endless=True):
        view.show_run_event(event)
        is_time = kill_at is not None and event.data["data"].get("phase") == kill_at
        if is_time and demo_run.killed is None:
            pid = demo_run.killed = _daemon_pid(client)
            os.kill(pid, signal.SIGKILL)
            successor = _daemon_pid(client)
            text = f"   kill -9 {pid}: the next daemon ({successor}) goes on with the run."
            view.say(text, "yellow")
        if event.kind.removeprefix("run.") in FINAL:
            break
    demo_run.run = client.get(path)
    demo_run.merged, problem = _merge(client, path)
    if demo_run.merged:
        view.say(f"   ✓ merged into main as {demo_run.merged[:10]}", "green")
    else:
        view.say(f"   ✗ {problem}", "red")
    view.say()
    return demo_run


def _test(sandbox: Sandbox, report: DemoReport, view: View) -> None:
    """Run the sample's tests on main, and play its tune if they pass."""
    view.say("7  The sample's own tests, on the merged main", "bold")
    dirty = sample.git(sandbox.repository, "status", "--porcelain")
    if dirty:
        raise KapelleError(f"The checkout of main is not what was merged: {dirty}")
    report.after = sample.run_tests(sandbox.repository)
    if not report.after.passes:
        view.say(f"   {report.after}.", "red")
    else:
        view.say(f"   {report.after}.", "green")
        view.say()
        for line in sample.tune(sandbox.repository).splitlines():
            view.say(f"   {line}", "cyan")
    view.say()
