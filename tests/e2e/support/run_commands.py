"""Runs from the command line: where they are started, with which prompts, how they are found."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import make_repository
from tests.e2e.support.staging import set_up, until

COUNT_DOWN = """Count down.
```rehearsal
[[do]]
run = "n=$(cat n); echo $((n-1)) > n"
```"""
SLOW = """Take your time.
```rehearsal
[[do]]
sleep = 60
```"""
CREW = """
[[rule]]
match = "You prepare the work of a team"
do = [{ result = '{"success_criteria": ["it is there"], "questions": ["Which?", "How?"]}' }]
[[rule]]
match = "You plan the work of a team"
do = [{ result = '''{"subgoals": [
  {"id": "a", "title": "Part A", "task": "write-a", "depends_on": []},
  {"id": "b", "title": "Part B", "task": "write-b", "depends_on": ["a"]}]}''' }]
[[rule]]
match = "write-a"
do = [{ append = "a.txt", content = "a\\n" }]
[[rule]]
match = "write-b"
do = [{ append = "b.txt", content = "b\\n" }]
[[rule]]
match = "You review the work of a team"
do = [{ result = '''{"quality": true, "consistency": true, "goal_aligned": true,
  "goal_complete": true, "feedback": ""}''' }]
"""


def make_place(path: Path) -> Path:
    """A repository with a number in it, and with a crew that can play a team."""
    repository = make_repository(path, {"n": "5\n"})
    return set_up(repository, 'default_agent = "crew"\n', crew=CREW)


def run_of(kapelle: Instance, run_id: str) -> Any:
    return json.loads(kapelle.cli("runs", "status", run_id, "--json", check=True).stdout)


def loop(
    kapelle: Instance, place: Path, *options: str, prompt: str = COUNT_DOWN
) -> CompletedProcess[str]:
    return kapelle.cli("loop", prompt, "-a", "rehearsal", *options, cwd=place)


def started(kapelle: Instance, place: Path, *options: str) -> str:
    """A loop at work on a task that takes long."""
    run_id = loop(kapelle, place, "--until", "true", *options, prompt=SLOW).stdout.strip()
    until(lambda: task_of(kapelle, run_id, "running"), "a running task")
    return run_id


def task_of(kapelle: Instance, run_id: str, status: str) -> str | None:
    """A task of the run that is in a state."""
    for step in kapelle.get(f"/runs/{run_id}/steps"):
        if step["kind"] == "task" and kapelle.task(step["subject"])["status"] == status:
            return str(step["subject"])
    return None
