"""Runs whatever their pattern: budgets, secrets, history, merging, and what is refused."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import FOR_EVER, perform, play, start, tasks_of
from tests.e2e.support.instance import ApiError, Instance


def test_time_runs_out_while_an_agent_works(kapelle: Instance, repository: Path) -> None:
    began = time.monotonic()
    run = perform(kapelle, "loop", repository, prompt=FOR_EVER, until=["true"], max_seconds=2)
    assert time.monotonic() - began < 20
    assert run["status"] == "failed"
    assert run["result"]["stopped_by"] == "budget"
    assert "Time limit of 2 s reached" in run["reason"]
    assert [task["status"] for task in tasks_of(kapelle, run["id"])] == ["cancelled"]


def test_time_runs_out_while_it_sleeps(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"run": "echo x >> n.txt"}), until=["false"], cooldown_s=60, max_seconds=2,
    )  # fmt: skip
    assert run["status"] == "failed"
    assert "Time limit of 2 s reached" in run["reason"]


def test_calls_of_agents_are_counted(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"run": "echo x >> n.txt"}), until=["false"], max_agent_calls=2,
    )  # fmt: skip
    assert run["status"] == "failed"
    assert run["reason"] == "Limit of 2 agent calls reached."
    assert run["spent"]["agent_calls"] == 2


def test_money_runs_out(kapelle: Instance, repository: Path) -> None:
    costly = play(
        {"run": "echo x >> n.txt"},
        {"usage": {"input": 10, "output": 10, "cost": 0.6}},
    )
    run = perform(
        kapelle, "loop", repository, prompt=costly, until=["false"], budget_usd=1.0, max_failures=0
    )
    assert run["status"] == "failed"
    assert run["reason"] == "Budget of $1 reached."
    assert len(tasks_of(kapelle, run["id"])) == 2


def test_secrets_of_a_run_stay_out_of_the_database(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"run": "test ${#WORD} -eq 9"}), until=["test ${#WORD} -eq 9"],
        env={"WORD": "hush-hush"},
    )  # fmt: skip
    assert run["status"] == "completed", run["reason"]
    path = kapelle.home.database
    for part in path.parent.glob(f"{path.name}*"):
        assert b"hush-hush" not in part.read_bytes()


def test_its_history_is_in_plain_files(kapelle: Instance, repository: Path) -> None:
    run = perform(kapelle, "loop", repository, prompt=play({"result": "x"}), until=["true"])
    directory = kapelle.home.runs / run["id"]
    deadline = time.monotonic() + 10
    while not (directory / "result.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    kinds = [event["kind"] for event in events]
    assert kinds[0] == "run.created"
    assert kinds[-1] == "run.completed"
    assert "task.completed" in kinds
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(set(numbers))
    assert json.loads((directory / "result.json").read_text(encoding="utf-8"))["result"]
    status = json.loads((directory / "status.json").read_text(encoding="utf-8"))
    assert status["status"] == "completed"
    assert (directory / "events.jsonl").stat().st_mode & 0o777 == 0o600


def test_merging_and_putting_away(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"write": "new.txt", "content": "n\n"}), until=["true"],
    )  # fmt: skip
    assert "new.txt" in kapelle.get(f"/runs/{run['id']}/diff")["files"]
    merged = kapelle.post(f"/runs/{run['id']}/merge")
    assert merged["id"] == run["id"]
    assert (repository / "new.txt").exists()
    archived = kapelle.post(f"/runs/{run['id']}/archive")
    assert archived["archived_at"]
    assert not Path(run["workspace"]["path"]).exists()
    assert run["id"] not in [item["id"] for item in kapelle.get("/runs")["runs"]]
    failed = perform(kapelle, "loop", repository, prompt=play({"fail": "no"}), until=["true"])
    with pytest.raises(ApiError, match="only verified work"):
        kapelle.post(f"/runs/{failed['id']}/merge")


def test_the_same_key_starts_one_run(kapelle: Instance, repository: Path) -> None:
    spec = {"directory": str(repository), "agent": "rehearsal", "prompt": "x", "until": ["true"]}
    body = {"pattern": "loop", "spec": spec}
    key = {"Idempotency-Key": "once"}
    first = kapelle.call("POST", "/runs", body, key)
    assert kapelle.call("POST", "/runs", body, key)["id"] == first["id"]
    with pytest.raises(ApiError, match="another run"):
        kapelle.call("POST", "/runs", {**body, "spec": {**spec, "prompt": "y"}}, key)


def test_the_same_key_follows_up_once(kapelle: Instance, repository: Path) -> None:
    run = perform(kapelle, "loop", repository, prompt=play({"result": "x"}), until=["true"])
    path, headers = f"/runs/{run['id']}/follow_up", {"Idempotency-Key": "one"}
    made = [kapelle.call("POST", path, {"message": "More"}, headers)["id"] for _ in range(2)]
    assert made[0] == made[1]
    with pytest.raises(ApiError, match="used for another task"):
        kapelle.call("POST", path, {"message": "Mo"}, headers)
    assert kapelle.post(path, {"message": "More"})["id"] != made[0]


def test_a_follow_up_has_the_environment_and_the_limits_of_its_run(
    kapelle: Instance, repository: Path
) -> None:
    run = perform(
        kapelle, "loop", repository, prompt=play({"result": "x"}), until=["true"],
        env={"WORD": "hush-hush"}, budget_usd=7,
        task_timeout_s=77,
    )  # fmt: skip
    message = play({"run": 'test "$WORD" = hush-hush && touch seen'})
    made = kapelle.post(f"/runs/{run['id']}/follow_up", {"message": message})
    task = kapelle.wait(made["id"])
    assert "seen" in kapelle.get(f"/tasks/{task['id']}/diff")["files"]
    assert (task["budget_usd"], task["timeout_s"]) == (7, 77)


@pytest.mark.parametrize(
    ("pattern", "spec", "told"),
    [
        ("loop", {"prompt": "x"}, "needs a condition"),
        (
            "loop",
            {"prompt": "x", "until": ["true"], "direction": "minimize"},
            "no number to improve",
        ),
        ("loop", {"until": ["true"]}, "either a prompt or steps"),
        ("pipeline", {"steps": ["one"]}, "at least 2"),
        ("pipeline", {"steps": ["a", " "]}, "steps.1.prompt: the prompt is empty"),
        ("best-of", {"prompt": "x", "candidates": ["a"]}, "no choice"),
        ("team", {"goal": "x", "planner": "nobody"}, "There is no agent 'nobody'"),
        ("team", {"goal": "x", "colour": "red"}, "colour is not a known field"),
    ],
)
def test_bad_specifications_are_refused(
    kapelle: Instance, repository: Path, pattern: str, spec: dict[str, Any], told: str
) -> None:
    with pytest.raises(ApiError, match=told):
        start(kapelle, pattern, repository, **spec)
    assert kapelle.get("/runs")["runs"] == []
