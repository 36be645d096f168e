"""Playbooks and specifications of small runs, one for each pattern, for tests of any kind."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.e2e.instance import Instance

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


def with_playbook(kapelle: Instance, text: str) -> None:
    """Have the rehearsal agent of an instance follow this playbook, wherever it works."""
    path = kapelle.home.root / "playbook.toml"
    path.write_text(text, encoding="utf-8")
    kapelle.home.config.write_text(
        f"[agents.rehearsal]\nplaybook = {json.dumps(str(path))}\n", encoding="utf-8"
    )


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


def on_branch(repository: Path, run: Any, path: str) -> str | None:
    """A file's content on the branch of a run, None if it is not there."""
    name = f"{run['workspace']['branch']}:{path}"
    shown = subprocess.run(
        ["git", "show", name], cwd=repository, capture_output=True, text=True, check=False
    )
    return shown.stdout if shown.returncode == 0 else None


def files_on_branch(repository: Path, run: Any) -> set[str]:
    names = ["git", "ls-tree", "-r", "--name-only", run["workspace"]["branch"]]
    shown = subprocess.run(names, cwd=repository, capture_output=True, text=True, check=True)
    return set(shown.stdout.split())


def subjects(repository: Path, run: Any) -> list[str]:
    """The subjects of the commits that the run's branch has and main has not, newest first."""
    argv = ["git", "log", "--format=%s", f"main..{run['workspace']['branch']}"]
    shown = subprocess.run(argv, cwd=repository, capture_output=True, text=True, check=True)
    return shown.stdout.splitlines()
