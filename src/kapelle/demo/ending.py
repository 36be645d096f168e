"""The last words: what happened, whether it is as it should be, and where to look."""

import shlex
from collections.abc import Iterator
from typing import Any

from kapelle.cli.outcome import Task
from kapelle.cli.style import STATUS_STYLE, paint, table
from kapelle.cli.text import one_line
from kapelle.demo.ensemble import ENSEMBLE
from kapelle.demo.place import Place
from kapelle.demo.report import Report
from kapelle.demo.views import listing

HEADER = ["TASK", "STATUS", "TRIES", "CLAIMED", "VERIFIED", "MERGED"]


def summary(report: Report) -> Iterator[str]:
    """What happened, as a table and a sentence or two."""
    rows = [_row(key, task, report) for key, task in report.tasks.items()]
    styles = [STATUS_STYLE.get(task["status"]) for task in report.tasks.values()]
    yield paint("What happened", "bold")
    yield from (f"   {line}" for line in table(HEADER, rows, styles))
    yield ""
    yield from (f"   {sentence}" for sentence in _sentences(report))


def _row(key: str, task: Task, report: Report) -> list[str]:
    attempts, checks = task["attempts"], task["checks"]
    passed = sum(check["passed"] for check in checks)
    return [
        key,
        task["status"],
        str(len(attempts)),
        (attempts[-1]["claimed"] or "nothing") if attempts else "",
        f"{passed} of {len(checks)} checks" if checks else "",
        report.merged.get(key, "no")[:10],
    ]


def _sentences(report: Report) -> Iterator[str]:
    for part in ENSEMBLE:
        task = report.tasks[part.key]
        if task["status"] == "completed" and len(task["attempts"]) > 1:
            yield f"{part.key}: the first attempt failed its check, the next one passed."
        if task["status"] == "failed" and task["attempts"][-1]["claimed"] == "success":
            said = one_line(task["result"] or "success", 60)
            yield f'{part.key}: the agent said "{said}" The check knew better.'
    if report.team.merged:
        number = len(report.team.run["result"]["iterations"])
        yield f"team: the reviewer said no once, so it took {number} iterations."
    if report.loop.merged:
        scores = [f"{score:g}" if score is not None else "none" for score in _scores(report)]
        yield f"loop: {' → '.join(scores)} bytes; main has the best, and the tests still pass."
    if report.kill:
        names = listing(report.kill.attempts)
        yield f"kill -9 of the daemon: {names} went on, and the next daemon found them again."


def _scores(report: Report) -> list[float | None]:
    scores: list[float | None] = report.loop.run["result"]["scores"]
    return scores


def verdict(report: Report) -> Iterator[str]:
    problems = report.problems()
    if not problems:
        told = f"{report.before} → {report.after}"
        yield paint(f"✓ {told}, in {report.seconds:.0f} s. Nothing is left running.", "green")
        return
    yield paint("✗ The demo did not go as it should:", "red")
    yield from (f"   {problem}" for problem in problems)


def directions(report: Report, place: Place, kapelle: str) -> Iterator[str]:
    """Commands to look further with."""
    ids = {key: task["id"] for key, task in report.tasks.items()}
    repository = shlex.quote(str(place.repository))
    commands = [
        (f"export KAPELLE_HOME={shlex.quote(str(place.home.root))}", ""),
        (f"{kapelle} list", ""),
        (f"{kapelle} status {ids['score']}", "what was claimed, what was verified"),
        (f"{kapelle} logs {ids['melody']}", "what an agent said and did"),
        (f"{kapelle} diff {ids['rhythm']}", "what it changed"),
        (f"{kapelle} runs status {report.team.run.get('id')}", "how the team got there"),
        (f"git -C {repository} log --oneline --graph", ""),
        (f"{kapelle} stop", "because looking starts the daemon again"),
        (f"rm -rf {shlex.quote(str(place.root))}", "when you have seen enough"),
    ]
    yield paint("Look around", "bold")
    width = max(len(command) for command, purpose in commands if purpose)
    for command, purpose in commands:
        told = paint(f"  # {purpose}", "dim") if purpose else ""
        yield f"   {command.ljust(width) if told else command}{told}"


def invitation(kapelle: str) -> Iterator[str]:
    yield paint("Now with a real agent, in a repository of yours", "bold")
    yield f'   {kapelle} init && {kapelle} run "…"'


def as_document(report: Report, place: Place, *, kept: bool) -> dict[str, Any]:
    """The same for programs."""
    problems = report.problems()
    kill = report.kill
    return {
        "ok": not problems,
        "problems": problems,
        "seconds": round(report.seconds, 1),
        "directory": str(place.root) if kept else None,
        "repository": str(place.repository) if kept else None,
        "home": str(place.home.root) if kept else None,
        "tests_before": vars(report.before),
        "tests_after": vars(report.after) if report.after else None,
        "killed": vars(kill) if kill else None,
        "merged": report.merged,
        "refused": report.refused,
        "tasks": report.tasks,
        "team": report.team.run,
        "loop": report.loop.run,
    }
