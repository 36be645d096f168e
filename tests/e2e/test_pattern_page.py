"""The worked example of docs/patterns.md: taken from the page, put into a repository, and run."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import answer, cast, files_on_branch, perform, rest, rule
from tests.e2e.support.instance import ApiError, Instance

PAGE = Path(__file__).parents[2] / "docs" / "patterns.md"


@pytest.fixture
def example(repository: Path) -> Path:
    """The repository with the pattern that the page shows, in the place that it names."""
    text = PAGE.read_text(encoding="utf-8")
    source = next(code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
                  if "@pattern(" in code)  # fmt: skip
    named = re.search(r"`(\.kapelle/patterns/\w+\.py)`", text)
    assert named is not None
    path = repository / named[1]
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
    return repository


APPROVAL = answer({"approved": True})
DOER = (
    rule("Fix this[\\s\\S]*TESTS", {"write": "tests.txt", "content": "t\n"})
    + rule("Add a health check", {"write": "health.txt", "content": "h\n"})
)  # fmt: skip
PEDANT = (
    rule("Review[\\s\\S]*tests\\.txt", APPROVAL)
    + rule("Review", answer({"approved": False, "problem": "TESTS are missing"}))
)  # fmt: skip


def test_the_example_works_from_the_command_line(kapelle: Instance, example: Path) -> None:
    cast(kapelle, doer=DOER, friend=rule("Review", APPROVAL), pedant=PEDANT)
    listed = kapelle.cli("start", cwd=example, check=True).stdout
    assert "two-reviewers" in listed
    assert "Do a task, then fix it until two reviewers approve." in listed
    shown = kapelle.cli("start", "two-reviewers", "--help", cwd=example, check=True).stdout
    assert re.search(r"--second TEXT\s+Second reviewer.*required", shown)
    words = ["--prompt", "Add a health check", "--first", "friend", "--second", "pedant"]
    done = kapelle.cli("start", "two-reviewers", *words, "--agent", "doer", "-f", cwd=example)
    assert done.returncode == 0, done.stderr
    run = kapelle.get(f"/runs/{done.stdout.split()[0]}")
    assert run["status"] == "completed"
    assert run["reason"] == "both approved in round 2"
    assert run["result"]["rounds"] == 2
    assert {"health.txt", "tests.txt"} <= files_on_branch(example, run)
    merged = kapelle.cli("merge", run["id"], cwd=example)
    assert merged.returncode == 0, merged.stderr
    assert (example / "tests.txt").exists()
    assert _reviews(kapelle, run) == [["0002.1", "0002.2"], ["0004.1", "0004.2"]]


def _reviews(kapelle: Instance, run: Any) -> list[list[str]]:
    """The branches in which the reviews of each round were made."""
    steps = kapelle.get(f"/runs/{run['id']}/steps")
    places = [step["position"] for step in steps if step["label"].startswith("Review by")]
    branches = sorted({place.rpartition(".")[0] for place in places})
    return [branches[:2], branches[2:]]


def test_its_failure_and_its_refusals(kapelle: Instance, example: Path) -> None:
    never = rule("Review", answer({"approved": False, "problem": "More TESTS"}))
    cast(kapelle, doer=DOER, friend=rule("Review", APPROVAL), pedant=never)
    spec = {"agent": "doer", "prompt": "Add a health check", "first": "friend"}
    run = perform(kapelle, "two-reviewers", example, **spec, second="pedant", rounds=1)
    assert run["status"] == "failed"
    assert run["reason"] == "not approved in 1 rounds"
    assert run["result"] == {"problems": ["More TESTS"]}
    with pytest.raises(ApiError, match="second is missing"):
        perform(kapelle, "two-reviewers", example, **spec)
    listed = kapelle.get(f"/patterns?directory={example}")
    mine = next(item for item in listed if item["name"] == "two-reviewers")
    assert mine["spec_schema"]["properties"]["rounds"]["maximum"] == 20


def test_it_survives_a_kill_in_the_middle(kapelle: Instance, example: Path) -> None:
    slow = rule("Review", {"sleep": 1.5}, APPROVAL)
    cast(kapelle, doer=DOER, friend=slow, pedant=PEDANT)
    spec = {"agent": "doer", "prompt": "Add a health check", "first": "friend", "second": "pedant"}
    body = {"pattern": "two-reviewers", "spec": {"directory": str(example), **spec}}
    run_id = kapelle.post("/runs", body)["id"]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        labels = [step["label"] for step in kapelle.get(f"/runs/{run_id}/steps")]
        if "Review by friend" in labels:
            break
        time.sleep(0.02)
    kapelle.kill()
    kapelle.start()
    run = rest(kapelle, run_id)
    assert (run["status"], run["result"]["rounds"]) == ("completed", 2)
    assert run["spent"]["agent_calls"] == 6
