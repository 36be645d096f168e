"""What the demo is to do, and its result: whether it is as it should be, and where to look."""

import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from kapelle.cli.layout import STATUS_STYLE, command_lines, format_table, paint, wrap_line
from kapelle.cli.text import one_line
from kapelle.demo.sandbox import Sandbox, Tally
from kapelle.domain.report import TaskFields

TasksById = dict[str, TaskFields]
"""The tasks by their keys."""

_WORK = tomllib.loads(files("kapelle.demo").joinpath("work.toml").read_text(encoding="utf-8"))
TASKS = _WORK["tasks"]
TEAM = _WORK["runs"]["team"]
LOOP = _WORK["runs"]["loop"]
_EVERY = {"agent": "rehearsal", "workspace": "worktree", "timeout_s": 60}


def task_spec(key: str, repository: str, tasks: TasksById) -> dict[str, Any]:
    """The body of POST /tasks, with the ids of tasks that are there already."""
    text = json.dumps({**_EVERY, **TASKS[key], "directory": repository})
    for name, task in tasks.items():
        text = text.replace(f"{{{name}}}", task["id"])
    spec: dict[str, Any] = json.loads(text)
    return spec


def series(names: Iterable[str]) -> str:
    """Names in a sentence: a, b and c."""
    *most, last = names
    if most:
        return f"{', '.join(most)} and {last}"
    return last


HEADER = ["TASK", "STATUS", "TRIES", "CLAIMED", "VERIFIED", "MERGED"]


@dataclass(frozen=True)
class Kill:
    """A daemon that was killed, the one that followed, and the attempts that ran on meanwhile."""

    pid: int
    successor: int
    gap_s: float
    attempts: dict[str, str]


@dataclass
class DemoRun:
    """A run of the demo, the commit with which it was merged, the daemon killed meanwhile."""

    run: dict[str, Any] = field(default_factory=dict)
    merged: str | None = None
    killed: int | None = None


@dataclass
class DemoReport:
    """Everything that happened."""

    before: Tally
    after: Tally | None = None
    tasks: TasksById = field(default_factory=dict)
    kill: Kill | None = None
    merged: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    team: DemoRun = field(default_factory=DemoRun)
    loop: DemoRun = field(default_factory=DemoRun)
    not_ended: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def problems(self) -> list[str]:
        """Everything that is not as it should be, in sentences; none if all went well."""
        found = [problem for key in TASKS for problem in self._problem(key)]
        if self.before.passes:
            found.append("The sample's tests passed before anybody had worked on it.")
        if self.kill is None:
            found.append("The daemon was never killed; the tasks in the middle never began.")
        for key, attempt_id in self.kill.attempts.items() if self.kill else ():
            attempts = {attempt["id"]: attempt["exit"] for attempt in self.tasks[key]["attempts"]}
            if (attempts.get(attempt_id) or {}).get("kind") != "exited":
                found.append(f"The attempt of {key} did not survive the kill of the daemon.")
        found += self._problems_of_runs()
        if self.after is None or not self.after.passes:
            found.append(f"On the merged main, {self.after or 'the tests were not run'}.")
        return [*found, *self.not_ended]

    def _problem(self, key: str) -> Iterator[str]:
        task = self.tasks[key]
        if key in self.merged:
            merged = "merged"
        else:
            merged = "not merged"
        ends = _WORK["ends"].get(key, "completed")
        tries = _WORK["attempts"].get(key, 1)
        claims = [attempt["claimed"] for attempt in task["attempts"]]
        found = (task["status"], len(claims), claims[-1:], key in self.merged)
        if found != (ends, tries, ["success"], ends == "completed"):
            if task["reason"]:
                why = f" ({task['reason']})"
            else:
                why = ""
            yield f"{key} is {task['status']}{why} and {merged}, with claims of {claims}."

    def _problems_of_runs(self) -> list[str]:
        found = []
        for name, made in (("team", self.team), ("loop", self.loop)):
            if made.run.get("status") != "completed" or made.merged is None:
                status = made.run.get("status")
                reason = made.run.get("reason")
                found.append(f"The {name} is {status} ({reason}), and should be merged.")
        if not found and len(self.team.run["result"]["iterations"]) != 2:
            found.append("The team should have needed two iterations.")
        if not found and self.loop.run["result"]["best"]["number"] != 3:
            found.append("The loop's third iteration should have been the best.")
        if self.team.killed is None:
            found.append("The daemon was never killed in the middle of the team's work.")
        return found


def lines(
    report: DemoReport, sandbox: Sandbox, kapelle: str, *, kept: bool, page: str | None = None
) -> Iterator[str]:
    """What a person reads at the end."""
    rows = [_row(key, task, report) for key, task in report.tasks.items()]
    styles = [STATUS_STYLE.get(task["status"]) for task in report.tasks.values()]
    yield paint("What happened", "bold")
    yield from (f"   {line}" for line in format_table(HEADER, rows, styles))
    yield ""
    yield from (wrap_line(f"   {sentence}", 6) for sentence in _sentences(report))
    yield ""
    if problems := report.problems():
        yield paint("✗ The demo did not go as it should:", "red")
        yield from (wrap_line(f"   {problem}", 6) for problem in problems)
    else:
        tests = f"{report.before} → {report.after}"
        if page:
            left = "Its daemon goes on."
        else:
            left = "Nothing is left running."
        yield paint(f"✓ {tests}, in {report.seconds:.0f} s. {left}", "green")
    yield ""
    if kept:
        yield from _directions(report, sandbox, kapelle)
        yield ""
    yield paint("Now with a real agent, in a repository of yours", "bold")
    yield f'   {kapelle} init && {kapelle} run "…"'
    if page:
        yield ""
        yield paint("The page, with all of this", "bold")
        yield f"   {page}"
        yield "   This address works once, within a minute; `kapelle open` makes another."


def _row(key: str, task: TaskFields, report: DemoReport) -> list[str]:
    attempts = task["attempts"]
    checks = task["checks"]
    passed = sum(check["passed"] for check in checks)
    return [
        key,
        task["status"],
        str(len(attempts)),
        (attempts[-1]["claimed"] or "nothing") if attempts else "",
        f"{passed} of {len(checks)} checks" if checks else "",
        report.merged.get(key, "no")[:10],
    ]


def _sentences(report: DemoReport) -> Iterator[str]:
    for key, task in report.tasks.items():
        if task["status"] == "completed" and len(task["attempts"]) > 1:
            yield f"{key}: the first attempt failed its check, the next one passed."
        if task["status"] == "failed" and task["attempts"][-1]["claimed"] == "success":
            said = one_line(task["result"] or "success", 60)
            yield f'{key}: the agent said "{said}" The check knew better.'
    if report.team.merged:
        number = len(report.team.run["result"]["iterations"])
        yield f"team: the reviewer said no once, so it took {number} iterations."
    if report.loop.merged:
        scores = report.loop.run["result"]["scores"]
        words = ["none" if score is None else f"{score:g}" for score in scores]
        yield f"loop: {' → '.join(words)} bytes; main has the best, and the tests still pass."
    if report.kill:
        names = series(report.kill.attempts)
        yield f"kill -9 of the daemon: {names} went on, and the next daemon found them again."


def _directions(report: DemoReport, sandbox: Sandbox, kapelle: str) -> Iterator[str]:
    """Commands to look further with."""
    ids = {key: task["id"] for key, task in report.tasks.items()}
    commands = [
        (f"export KAPELLE_HOME={shlex.quote(str(sandbox.home.root))}", ""),
        (f"{kapelle} open", "all of it in a browser"),
        (f"{kapelle} list", ""),
        (f"{kapelle} status {ids['score']}", "what was claimed, what was verified"),
        (f"{kapelle} logs {ids['melody']}", "what an agent said and did"),
        (f"{kapelle} diff {ids['rhythm']}", "what it changed"),
        (f"{kapelle} runs status {report.team.run.get('id')}", "how the team got there"),
        (f"git -C {shlex.quote(str(sandbox.repository))} log --oneline --graph", ""),
        (f"{kapelle} stop", "because looking starts the daemon again"),
        (f"rm -rf {shlex.quote(str(sandbox.root))}", "when you have seen enough"),
    ]
    yield paint("Look around", "bold")
    yield from command_lines(commands)


def as_document(report: DemoReport, sandbox: Sandbox, *, kept: bool) -> dict[str, Any]:
    """What a program reads at the end."""
    problems = report.problems()
    return {
        "ok": not problems,
        "problems": problems,
        "seconds": round(report.seconds, 1),
        "directory": str(sandbox.root) if kept else None,
        "repository": str(sandbox.repository) if kept else None,
        "home": str(sandbox.home.root) if kept else None,
        "tests_before": vars(report.before),
        "tests_after": vars(report.after) if report.after else None,
        "killed": vars(report.kill) if report.kill else None,
        "merged": report.merged,
        "refused": report.refused,
        "tasks": report.tasks,
        "team": report.team.run,
        "loop": report.loop.run,
    }
