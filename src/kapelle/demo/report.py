"""Read the demo's tasks and runs, and decide whether its result is as it should be."""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from kapelle.demo.sandbox import Sandbox, Tally

TasksById = dict[str, Any]
"""The tasks by their keys."""

_WORK = tomllib.loads(files("kapelle.demo").joinpath("work.toml").read_text(encoding="utf-8"))
TASKS = _WORK["tasks"]
TEAM = _WORK["runs"]["team"]
LOOP = _WORK["runs"]["loop"]
_COMMON_FIELDS = {"agent": "rehearsal", "workspace": "worktree", "timeout_s": 60}


def task_spec(key: str, repository: str, tasks: TasksById) -> dict[str, Any]:
    """Return the body of POST /tasks, with the ids of the tasks that it refers to."""
    text = json.dumps({**_COMMON_FIELDS, **TASKS[key], "directory": repository})
    for name, task in tasks.items():
        text = text.replace(f"{{{name}}}", task["id"])
    spec: dict[str, Any] = json.loads(text)
    return spec


def join_names(names: Iterable[str]) -> str:
    """Return names as a part of a sentence: a, b and c."""
    *others, last = names
    if others:
        return f"{', '.join(others)} and {last}"
    return last


@dataclass(frozen=True)
class Kill:
    """A killed daemon, its successor, and the attempts that kept running meanwhile."""

    pid: int
    successor: int
    gap_s: float
    attempts: dict[str, str]  # ids by the keys of their tasks


@dataclass
class DemoRun:
    """A run of the demo."""

    run: dict[str, Any] = field(default_factory=dict)
    merged: str | None = None  # the commit of the merge
    killed: int | None = None  # the pid of the daemon that was killed meanwhile


@dataclass
class DemoReport:
    """The whole course of the demo."""

    before: Tally
    after: Tally | None = None
    tasks: TasksById = field(default_factory=dict)
    kill: Kill | None = None
    merged: dict[str, str] = field(default_factory=dict)  # commits by the keys of tasks
    refused: dict[str, str] = field(default_factory=dict)  # reasons by the keys of tasks
    team: DemoRun = field(default_factory=DemoRun)
    loop: DemoRun = field(default_factory=DemoRun)
    not_ended: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def problems(self) -> list[str]:
        """Return a sentence for everything that is not as it should be."""
        problems = []
        for key in TASKS:
            problem = self._problem_of_task(key)
            if problem:
                problems.append(problem)
        if self.before.passes:
            problems.append("The sample's tests passed before anybody had worked on it.")
        problems += self._problems_of_kill()
        problems += self._problems_of_runs()
        if self.after is None or not self.after.passes:
            problems.append(f"On the merged main, {self.after or 'the tests were not run'}.")
        return [*problems, *self.not_ended]

    def _problem_of_task(self, key: str) -> str | None:
        task = self.tasks[key]
        expected_status = _WORK["ends"].get(key, "completed")
        expected_attempts = _WORK["attempts"].get(key, 1)
        claims = [attempt["claimed"] for attempt in task["attempts"]]
        is_merged = key in self.merged
        is_expected = (
            task["status"] == expected_status
            and len(claims) == expected_attempts
            and claims[-1:] == ["success"]
            and is_merged == (expected_status == "completed")
        )
        if is_expected:
            return None
        status = task["status"]
        if task["reason"]:
            status += f" ({task['reason']})"
        merged = "merged" if is_merged else "not merged"
        return f"{key} is {status} and {merged}, with claims of {claims}."

    def _problems_of_kill(self) -> list[str]:
        if self.kill is None:
            return ["The daemon was never killed; the tasks in the middle never began."]
        problems = []
        for key, attempt_id in self.kill.attempts.items():
            exits = {attempt["id"]: attempt["exit"] for attempt in self.tasks[key]["attempts"]}
            if (exits.get(attempt_id) or {}).get("kind") != "exited":
                problems.append(f"The attempt of {key} did not survive the kill of the daemon.")
        return problems

    def _problems_of_runs(self) -> list[str]:
        problems = []
        for name, demo_run in (("team", self.team), ("loop", self.loop)):
            status = demo_run.run.get("status")
            if status != "completed" or demo_run.merged is None:
                reason = demo_run.run.get("reason")
                problems.append(f"The {name} is {status} ({reason}), and should be merged.")
        if not problems and len(self.team.run["result"]["iterations"]) != 2:
            problems.append("The team should have needed two iterations.")
        if not problems and self.loop.run["result"]["best"]["number"] != 3:
            problems.append("The loop's third iteration should have been the best.")
        if self.team.killed is None:
            problems.append("The daemon was never killed in the middle of the team's work.")
        return problems


def as_document(report: DemoReport, sandbox: Sandbox, *, is_kept: bool) -> dict[str, Any]:
    """Return the report as JSON for a program; is_kept tells whether the files are kept."""
    problems = report.problems()
    return {
        "ok": not problems,
        "problems": problems,
        "seconds": round(report.seconds, 1),
        "directory": str(sandbox.root) if is_kept else None,
        "repository": str(sandbox.repository) if is_kept else None,
        "home": str(sandbox.home.root) if is_kept else None,
        "tests_before": vars(report.before),
        "tests_after": vars(report.after) if report.after else None,
        "killed": vars(report.kill) if report.kill else None,
        "merged": report.merged,
        "refused": report.refused,
        "tasks": report.tasks,
        "team": report.team.run,
        "loop": report.loop.run,
    }
