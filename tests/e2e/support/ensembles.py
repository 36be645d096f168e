"""Small runs for tests of any kind: their playbooks, how they are started, and what they left."""

import contextlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.support.instance import Instance, pauses
from tests.e2e.support.repositories import git

RESTING = {"completed", "failed", "cancelled", "waiting", "paused"}

DIAMOND = {
    "subgoals": [
        {"id": "a", "title": "base part", "task": "WORK-A"},
        {"id": "b", "title": "left part", "task": "WORK-B", "depends_on": ["a"]},
        {"id": "c", "title": "right part", "task": "WORK-C", "depends_on": ["a"]},
        {"id": "d", "title": "join part", "task": "WORK-D", "depends_on": ["b", "c"]},
    ]
}
YES = {
    "quality": True,
    "consistency": True,
    "goal_aligned": True,
    "goal_complete": True,
    "feedback": "",
}


def rule(match: str, *steps: dict[str, Any]) -> str:
    """One rule of a playbook; the match is a regular expression searched in the prompt."""
    return f"[[rule]]\nmatch = {json.dumps(match)}\ndo = [{', '.join(map(_inline, steps))}]\n"


def _inline(value: Any) -> str:
    """A value in TOML, of which a JSON string, number or truth is one as well."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def answer(value: Any) -> dict[str, Any]:
    """The step by which a rehearsal answers with an object, as models do, amid words."""
    return {"result": f"Here it is:\n```json\n{json.dumps(value)}\n```\n"}


def play(*steps: dict[str, Any]) -> str:
    """A prompt that brings its own part."""
    body = "\n".join(
        "[[do]]\n" + "\n".join(f"{key} = {_inline(value)}" for key, value in step.items())
        for step in steps
    )
    return f"Play.\n```rehearsal\n{body}\n```\n"


def diamond_team(review: Any = YES) -> str:
    """A plan of four parts in a diamond; every part needs what it depends on."""
    return "\n".join(
        [
            rule("You plan the work", answer(DIAMOND)),
            rule("You review", answer(review)),
            rule("^WORK-A", {"write": "a.txt", "content": "a\n"}, {"result": "did a"}),
            rule("^WORK-B", {"run": "test -f a.txt"}, {"write": "b.txt", "content": "b\n"}),
            rule("^WORK-C", {"run": "test -f a.txt"}, {"write": "c.txt", "content": "c\n"}),
            rule(
                "^WORK-D",
                {"run": "cat a.txt b.txt c.txt > all.txt"},
                {"write": "d.txt", "content": "d\n"},
            ),
        ]
    )


SLOW = play({"run": "echo x >> n.txt; sleep 1"})
FOR_EVER = play({"run": "sleep 60"})


def clashing_team(resolve: dict[str, Any], review: Any = YES) -> str:
    """Two parts that write the same file, and how the conflict is resolved."""
    plan = {
        "subgoals": [
            {"id": "one", "title": "one", "task": "WORK-1"},
            {"id": "two", "title": "two", "task": "WORK-2"},
        ]
    }
    return (
        rule("Resolve every conflict", resolve)
        + rule("You plan", answer(plan))
        + rule("You review", answer(review))
        + rule("^WORK-1", {"write": "same", "content": "one\n"})
        + rule("^WORK-2", {"write": "same", "content": "two\n"})
    )


def cast(kapelle: Instance, **books: str) -> None:
    """Agents by name, each with a playbook of its own, wherever it works."""
    lines = []
    for name, text in books.items():
        path = kapelle.home.root / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        lines.append(f'[agents.{name}]\ntype = "rehearsal"\nplaybook = {json.dumps(str(path))}\n')
    kapelle.home.config.write_text("\n".join(lines), encoding="utf-8")


def with_playbook(kapelle: Instance, text: str) -> None:
    """Have the rehearsal agent of an instance follow this playbook."""
    cast(kapelle, rehearsal=text)


def write_pattern(repository: Path, body: str, name: str = "own") -> None:
    """A pattern of the repository's own."""
    directory = repository / ".kapelle" / "patterns"
    directory.mkdir(parents=True, exist_ok=True)
    head = "from kapelle.patterns import Context, Failed, PatternSpec, pattern\nimport asyncio\n\n"
    (directory / f"{name}.py").write_text(head + body, encoding="utf-8")


def start(kapelle: Instance, pattern: str, directory: Path, **spec: Any) -> str:
    """Start a run; the rehearsal agent plays where no other is named."""
    values = {"directory": str(directory), "agent": "rehearsal", **spec}
    return str(kapelle.post("/runs", {"pattern": pattern, "spec": values})["id"])


def rest(kapelle: Instance, run_id: str, timeout_s: float = 60) -> Any:
    """The run when nothing more happens to it by itself."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        run = kapelle.get(f"/runs/{run_id}/wait?timeout_s=5")
        if run["status"] in RESTING:
            return run
    raise AssertionError(f"{run_id} did not come to rest: {run}\n{kapelle.log_tail()}")


def perform(kapelle: Instance, pattern: str, directory: Path, **spec: Any) -> Any:
    """A run from its start to its rest."""
    return rest(kapelle, start(kapelle, pattern, directory, **spec))


def await_status(kapelle: Instance, run_id: str, *statuses: str, timeout_s: float = 30) -> Any:
    for _ in pauses(timeout_s):
        run = kapelle.get(f"/runs/{run_id}")
        if run["status"] in statuses:
            return run
    raise AssertionError(f"{run_id} never was {statuses}: {run}")


def tasks_of(kapelle: Instance, run_id: str) -> list[Any]:
    steps = kapelle.get(f"/runs/{run_id}/steps")
    return [kapelle.task(step["subject"]) for step in steps if step["kind"] == "task"]


def purposes_of(kapelle: Instance, run_id: str) -> list[tuple[str | None, int | None]]:
    """The role and the cycle of each task of a run, in order."""
    steps = kapelle.get(f"/runs/{run_id}/steps")
    return [(step["role"], step["cycle"]) for step in steps if step["kind"] == "task"]


def await_running_task(kapelle: Instance, run_id: str, number: int = 1) -> Any:
    for _ in pauses(30):
        found = tasks_of(kapelle, run_id)
        if len(found) >= number and found[number - 1]["status"] == "running":
            return found[number - 1]
    raise AssertionError(f"task {number} of {run_id} never ran")


def sleeping(kapelle: Instance, seconds: int) -> list[psutil.Process]:
    """The processes of an instance that sleep for so long."""
    found = []
    for process in kapelle.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[-2:] == ["sleep", str(seconds)]:
                found.append(process)
    return found


def on_branch(repository: Path, run: Any, path: str) -> str | None:
    """A file's content on the branch of a run, None if it is not there."""
    name = f"{tip_of(repository, run)}:{path}"
    shown = subprocess.run(
        ["git", "show", name], cwd=repository, capture_output=True, text=True, check=False
    )
    return shown.stdout if shown.returncode == 0 else None


def tip_of(repository: Path, work: Any) -> str:
    """What the branch of a task or run holds: its base, as long as nothing was committed."""
    branch: str = work["workspace"]["branch"]
    if git(repository, "branch", "--list", branch):
        return branch
    return f"refs/kapelle/base/{branch.removeprefix('kapelle/')}"


def files_on_branch(repository: Path, run: Any) -> set[str]:
    names = ["git", "ls-tree", "-r", "--name-only", tip_of(repository, run)]
    shown = subprocess.run(names, cwd=repository, capture_output=True, text=True, check=True)
    return set(shown.stdout.split())


def subjects(repository: Path, run: Any) -> list[str]:
    """The subjects of the commits that the run's branch has and main has not, newest first."""
    argv = ["git", "log", "--format=%s", f"main..{tip_of(repository, run)}"]
    shown = subprocess.run(argv, cwd=repository, capture_output=True, text=True, check=True)
    return shown.stdout.splitlines()
