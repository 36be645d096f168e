"""The same task to several, of whom one is chosen."""

from pathlib import Path

import pytest

from tests.e2e.support.ensembles import (
    answer,
    cast,
    on_branch,
    perform,
    rest,
    rule,
    start,
    tasks_of,
    with_playbook,
)
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.staging import until


def test_the_best_score_wins(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("Make it small", {"run": "od -An -N2 -tu2 /dev/urandom | tr -d ' ' > size"}),
    )
    run = perform(
        kapelle, "best-of", repository,
        prompt="Make it small", count=3, eval="cat size", direction="minimize",
    )  # fmt: skip
    assert run["status"] == "completed", run["reason"]
    candidates = run["result"]["candidates"]
    scores = [candidate["score"] for candidate in candidates]
    assert len(scores) == 3
    winner = candidates[run["result"]["winner"] - 1]
    assert winner["score"] == min(scores)
    size = on_branch(repository, run, "size")
    assert size is not None
    assert float(size) == min(scores)
    losers = [candidate for candidate in candidates if candidate is not winner]
    assert all("size" in loser["against_winner"] for loser in losers)
    against = f"/tasks/{losers[0]['task']['id']}/diff?against={winner['task']['id']}"
    assert kapelle.get(against)["files"] == ["size"]


def test_checks_sort_candidates_out(kapelle: Instance, repository: Path) -> None:
    cast(
        kapelle,
        good=rule(".", {"write": "w", "content": "yes\n"}),
        bad=rule(".", {"write": "w", "content": "no\n"}),
        idle=rule(".", {"result": "done"}),
    )
    spec = {"prompt": "Do it", "candidates": ["bad", "good", "idle"], "checks": ["grep yes w"]}
    run = perform(kapelle, "best-of", repository, **spec)
    assert run["status"] == "completed", run["reason"]
    assert run["result"]["winner"] == 2
    problems = [candidate["problem"] for candidate in run["result"]["candidates"]]
    assert problems[1] is None
    assert "grep yes w" in problems[0]
    assert "diff_not_empty" in problems[2]
    run = perform(kapelle, "best-of", repository, **{**spec, "candidates": ["bad", "idle"]})
    assert run["status"] == "failed"
    assert "no candidate did it" in run["reason"]


def test_a_judge_chooses(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("Choose the one", answer({"winner": 2, "reasoning": "neater"}))
        + rule("Do it", {"run": "date +%N > w"}),
    )
    run = perform(kapelle, "best-of", repository, prompt="Do it", count=2)
    assert run["status"] == "completed", run["reason"]
    assert run["result"]["winner"] == 2
    assert "neater" in run["reason"]


def test_a_judge_that_names_nobody_is_asked_once_more(kapelle: Instance, repository: Path) -> None:
    again = "Choose the one[\\s\\S]*could not be used[\\s\\S]*winner: 9 is not one of \\[1, 2\\]"
    tries = rule("Do it", {"run": "date +%N > w"})
    nobody = rule("Choose the one", answer({"winner": 9, "reasoning": "?"}))
    with_playbook(kapelle, rule(again, answer({"winner": 2})) + nobody + tries)
    run = perform(kapelle, "best-of", repository, prompt="Do it", count=2)
    assert run["status"] == "completed", run["reason"]
    assert run["result"]["winner"] == 2
    with_playbook(kapelle, nobody + tries)
    run = perform(kapelle, "best-of", repository, prompt="Do it", count=2)
    assert run["status"] == "failed"
    assert run["reason"].startswith("Judge: the answer of rehearsal is unusable")
    assert "winner: 9 is not one of [1, 2]" in run["reason"]
    judges = [task for task in tasks_of(kapelle, run["id"]) if task["title"].startswith("Judge")]
    assert len(judges) == 2


def test_best_of_needs_a_repository(kapelle: Instance, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="needs a git repository"):
        perform(kapelle, "best-of", tmp_path, prompt="Do it", count=2)


def test_a_limit_leaves_the_candidates_that_ended(kapelle: Instance, repository: Path) -> None:
    with_playbook(kapelle, rule("Do it", {"run": "date +%N > w"}))
    spec = {"prompt": "Do it", "max_agent_calls": 2}
    judged = perform(kapelle, "best-of", repository, **spec, count=2)
    crowded = perform(kapelle, "best-of", repository, **spec, count=3)
    for run in (judged, crowded):
        assert run["status"] == "failed"
        assert "Limit of 2 agent calls" in run["reason"]
        assert (run["result"]["winner"], run["result"]["reason"]) == (None, run["reason"])
        candidates = run["result"]["candidates"]
        assert [item["task"]["status"] for item in candidates] == ["completed", "completed"]
        assert candidates[0]["number"] < candidates[1]["number"]


def test_a_cancelled_one_has_the_candidates_that_ended(kapelle: Instance, repository: Path) -> None:
    cast(
        kapelle,
        quick=rule(".", {"write": "w", "content": "yes\n"}),
        slow=rule(".", {"run": "sleep 60"}),
    )
    spec = {"prompt": "Do it", "candidates": ["slow", "quick"]}
    run_id = start(kapelle, "best-of", repository, **spec)

    def looked_at() -> bool:
        steps = kapelle.get(f"/runs/{run_id}/steps")
        return any(step["kind"] == "changes" and step["ended_at"] for step in steps)

    until(looked_at, "a candidate that ended")
    kapelle.post(f"/runs/{run_id}/cancel")
    run = rest(kapelle, run_id)
    assert (run["status"], run["result"]["reason"]) == ("cancelled", "cancelled")
    assert run["result"]["winner"] is None
    candidates = run["result"]["candidates"]
    assert [(item["number"], item["agent"]) for item in candidates] == [(2, "quick")]
    assert "w" in candidates[0]["changes"]
