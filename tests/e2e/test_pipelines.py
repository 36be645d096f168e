"""Pipelines: steps that build on each other, in one worktree or one each."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import (
    FOR_EVER,
    await_running_task,
    files_on_branch,
    on_branch,
    perform,
    play,
    rest,
    start,
    subjects,
    tasks_of,
)
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import git, make_repository


def test_steps_build_on_each_other(kapelle: Instance, repository: Path) -> None:
    steps = [
        {"name": "design", "prompt": play({"write": "d", "content": "d\n"}, {"result": "PLANNED"})},
        play({"run": "cat d > i"}),
        {"prompt": play({"run": "cat d i > t"}), "checks": ["test $(wc -l < t) = 2"]},
    ]
    run = perform(kapelle, "pipeline", repository, steps=steps)
    assert run["status"] == "completed", run["reason"]
    assert on_branch(repository, run, "t") == "d\nd\n"
    second = kapelle.task(run["result"]["steps"][1]["task"]["id"])
    prompt = kapelle.home.attempts / second["attempts"][0]["id"] / "prompt"
    assert "PLANNED" in prompt.read_text(encoding="utf-8")
    assert len(subjects(repository, run)) == 3
    assert kapelle.post(f"/runs/{run['id']}/merge")["base"] == "main"
    assert (repository / "t").exists()


def test_a_failed_step_ends_it(kapelle: Instance, repository: Path) -> None:
    steps = [
        play({"write": "one", "content": "1\n"}),
        {"name": "check it", "prompt": play({"result": "done"}), "checks": ["false"]},
        play({"write": "three", "content": "3\n"}),
    ]
    run = perform(kapelle, "pipeline", repository, steps=steps)
    assert run["status"] == "failed"
    assert "step 2 of 3 (check it) failed" in run["reason"]
    assert len(run["result"]["steps"]) == 2
    assert "three" not in files_on_branch(repository, run)


def test_a_workspace_for_each_step(kapelle: Instance, repository: Path) -> None:
    steps = [play({"write": "one", "content": "1\n"}), play({"run": "cat one > two"})]
    run = perform(kapelle, "pipeline", repository, steps=steps, workspaces="each")
    assert run["status"] == "completed", run["reason"]
    first, second = (kapelle.task(step["task"]["id"]) for step in run["result"]["steps"])
    assert first["workspace"]["path"] != second["workspace"]["path"]
    assert on_branch(repository, run, "two") == "1\n"


def test_each_step_is_merged_when_it_is_done_and_the_next_begins_with_it(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    steps = [
        play({"write": "one", "content": "1\n"}),
        play({"result": "I only looked."}),
        play({"run": f"cat one > three; until test -e {gate}; do sleep 0.1; done"}),
    ]
    run_id = start(kapelle, "pipeline", repository, steps=steps, workspaces="each")
    third = await_running_task(kapelle, run_id, 3)
    run = kapelle.get(f"/runs/{run_id}")
    assert on_branch(repository, run, "one") == "1\n"
    tip = git(repository, "rev-parse", run["workspace"]["branch"])
    gate.touch()
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    assert kapelle.task(third["id"])["workspace"]["base_commit"] == tip
    assert on_branch(repository, run, "three") == "1\n"
    merges = [subject for subject in subjects(repository, run) if subject.startswith("Merge")]
    assert len(merges) == 2


def test_what_was_done_stays_on_the_branch_when_a_later_step_fails(
    kapelle: Instance, repository: Path
) -> None:
    steps = [
        play({"write": "one", "content": "1\n"}),
        {"name": "break", "prompt": play({"write": "two", "content": "2\n"}), "checks": ["false"]},
    ]
    run = perform(kapelle, "pipeline", repository, steps=steps, workspaces="each")
    assert run["status"] == "failed"
    assert "step 2 of 2 (break) failed" in run["reason"]
    assert on_branch(repository, run, "one") == "1\n"
    assert "two" not in files_on_branch(repository, run)


def test_steps_in_directories_of_their_own(kapelle: Instance, repository: Path) -> None:
    steps = [
        play({"run": "mkdir -p docs && echo d > docs/d"}),
        {"prompt": play({"run": "pwd > where"}), "directory": str(repository / "docs")},
    ]
    (repository / "docs").mkdir()
    run = perform(kapelle, "pipeline", repository, steps=steps)
    assert run["status"] == "completed", run["reason"]
    where = on_branch(repository, run, "docs/where")
    assert where is not None
    assert where.strip() == f"{run['workspace']['path']}/docs"


def test_a_step_in_another_repository(kapelle: Instance, repository: Path, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other")
    steps = [
        play({"write": "one", "content": "1\n"}),
        {"prompt": play({"write": "two", "content": "2\n"}), "directory": str(other)},
    ]
    # It is heard of before anything has cost money.
    kinds: list[tuple[str, dict[str, Any]]] = [("pipeline", {}), ("loop", {"until": ["true"]})]
    for pattern, more in kinds:
        with pytest.raises(ApiError, match="is not in the repository of the run"):
            start(kapelle, pattern, repository, steps=steps, **more)
    gone = [steps[0], {"prompt": "x", "directory": str(tmp_path / "gone")}]
    with pytest.raises(ApiError, match="There is no directory"):
        start(kapelle, "pipeline", repository, steps=gone, workspaces="each")
    run = perform(kapelle, "pipeline", repository, steps=steps, workspaces="each")
    assert run["status"] == "completed", run["reason"]
    second = run["result"]["steps"][1]["task"]
    assert git(other, "show", f"{second['branch']}:two") == "2"


def test_a_limit_leaves_the_steps_that_were_played(kapelle: Instance, repository: Path) -> None:
    steps = [play({"write": "one", "content": "1\n"}), play({"write": "two", "content": "2\n"})]
    run = perform(kapelle, "pipeline", repository, steps=steps, max_agent_calls=1)
    assert run["status"] == "failed"
    assert "Limit of 1 agent call" in run["reason"]
    assert run["result"]["reason"] == run["reason"]
    assert [step["task"]["status"] for step in run["result"]["steps"]] == ["completed"]
    assert on_branch(repository, run, "one") == "1\n"


def test_a_cancelled_one_has_the_steps_that_were_played(
    kapelle: Instance, repository: Path
) -> None:
    steps = [play({"write": "one", "content": "1\n"}), FOR_EVER]
    run_id = start(kapelle, "pipeline", repository, steps=steps)
    await_running_task(kapelle, run_id, 2)
    first = tasks_of(kapelle, run_id)[0]
    kapelle.post(f"/runs/{run_id}/cancel")
    run = rest(kapelle, run_id)
    assert (run["status"], run["result"]["reason"]) == ("cancelled", "cancelled")
    assert [step["task"]["id"] for step in run["result"]["steps"]] == [first["id"]]
