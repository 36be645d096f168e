"""Questions of tasks and runs: asked by agents, seen in one place, answered by people."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.ensembles import rest, start
from tests.e2e.instance import ApiError, Instance

# An agent that asks over REST, again and again until there is an answer, whoever dies meanwhile.
ASK = """
import json, os, sys, time, urllib.request
def call(path, body=None):
    request = urllib.request.Request(os.environ["KAPELLE_URL"] + "/api/v1/questions" + path)
    request.add_header("Authorization", "Bearer " + os.environ["KAPELLE_TOKEN"])
    request.add_header("Content-Type", "application/json")
    data = None if body is None else json.dumps(body).encode()
    return json.load(urllib.request.urlopen(request, data, timeout=60))
spec = json.loads(sys.argv[1])
patience = sys.argv[2] if len(sys.argv) > 2 else "for ever"
while True:
    try:
        found = call("?timeout_s=0" if patience == "none" else "?timeout_s=5", spec)
    except OSError:
        time.sleep(0.1)
        continue
    if found["status"] != "open" or patience == "none":
        break
open("heard.txt", "a").write(f"{found['status']}: {found['answer']}\\n")
"""


def asking(place: Path, spec: str, *more: str) -> str:
    """The part of an agent that asks."""
    script = place.parent / "ask.py"
    script.write_text(ASK, encoding="utf-8")
    command = f"{sys.executable} {script} '{spec}' {' '.join(more)}"
    return f"[[do]]\nrun = '''{command}'''\n"


def heard(place: Path) -> str:
    return (place / "heard.txt").read_text(encoding="utf-8")


def until_ended(kapelle: Instance, task_id: str, attempt: int) -> Any:
    """The task once so many attempts of it have ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        task = kapelle.task(task_id)
        if sum(one["ended_at"] is not None for one in task["attempts"]) >= attempt:
            return task
        time.sleep(0.02)
    raise AssertionError(task)


def asked(kapelle: Instance) -> list[Any]:
    return list(kapelle.get("/questions")["questions"])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    return place


def test_an_agent_asks_and_hears_the_answer_though_the_daemon_dies(
    kapelle: Instance, directory: Path
) -> None:
    spec = '{"text": "Which colour?", "choices": ["red", "blue"]}'
    task_id = kapelle.play(asking(directory, spec), directory)
    task = kapelle.wait_for_status(task_id, "waiting")
    assert (task["waiting_for"], task["question"]) == ("input", "Which colour?")
    assert task["attempts"][0]["ended_at"] is None
    kapelle.kill()
    kapelle.start()
    [question] = asked(kapelle)
    assert question["token"] == f"{task_id}:1"
    listed = kapelle.cli("questions", check=True).stdout
    assert "? Which colour?" in listed
    assert "2 blue" in listed
    assert "? Which colour?" in kapelle.cli("status", task_id).stdout
    done = kapelle.cli("answer", task_id[-5:], "2")
    assert done.returncode == 0, done.stderr
    task = kapelle.wait(task_id)
    assert (task["status"], len(task["attempts"])) == ("completed", 1)
    assert heard(directory) == "answered: blue\n"
    assert asked(kapelle) == []
    assert "asks nothing" in kapelle.cli("answer", task_id, "red").stderr
    with pytest.raises(ApiError, match="answered already"):
        kapelle.post(f"/questions/{question['token']}/answer", {"answer": "red"})


def test_the_answer_to_an_agent_that_did_not_wait_is_told_to_the_next_attempt(
    kapelle: Instance, directory: Path
) -> None:
    steps = asking(directory, '{"text": "Which colour?"}', "none")
    task_id = kapelle.play(steps, directory)
    task = until_ended(kapelle, task_id, attempt=1)
    assert (task["status"], task["waiting_for"]) == ("waiting", "input")
    assert kapelle.cli("answer", f"{task_id}:1", "green").returncode == 0
    # It asks once more: the first answer was told, so that is another question.
    task = until_ended(kapelle, task_id, attempt=2)
    assert [question["token"] for question in task["questions"]] == [f"{task_id}:2"]
    assert [attempt["mode"] for attempt in task["attempts"]] == ["fresh", "resume"]
    prompt = kapelle.home.attempts / task["attempts"][1]["id"] / "prompt"
    assert "You asked: Which colour?\nThe answer: green" in prompt.read_text(encoding="utf-8")
    kapelle.cli("cancel", task_id, check=True)
    assert asked(kapelle) == []


def test_a_default_holds_when_time_is_up_or_the_agent_is_done(
    kapelle: Instance, directory: Path
) -> None:
    spec = '{"text": "A?", "default": "red", "patience_s": 0.1}'
    task_id = kapelle.play(asking(directory, spec), directory)
    assert kapelle.wait_for_status(task_id, "completed")
    assert heard(directory) == "expired: red\n"
    nobody = kapelle.play(asking(directory, '{"text": "B?", "patience_s": 0.1}'), directory)
    assert kapelle.wait_for_status(nobody, "completed")
    assert heard(directory).endswith("expired: None\n")
    done = kapelle.play(asking(directory, '{"text": "C?", "default": "x"}', "none"), directory)
    assert kapelle.wait_for_status(done, "completed")


def test_one_that_asks_leaves_its_slot_and_can_be_cancelled(
    tmp_path: Path, directory: Path
) -> None:
    kapelle = Instance(tmp_path / "home", KAPELLE_LIMITS__MAX_ATTEMPTS="1")
    kapelle.start()
    try:
        asks = kapelle.play(asking(directory, '{"text": "May I?"}'), directory)
        kapelle.wait_for_status(asks, "waiting")
        other = kapelle.play('[[do]]\nsay = "beside it"', directory)
        assert kapelle.wait_for_status(other, "completed")
        refused = kapelle.cli("resume", asks, "yes")
        assert f'kapelle answer {asks} "…"' in refused.stderr
        kapelle.cli("cancel", asks, check=True)
        assert kapelle.wait(asks)["status"] == "cancelled"
        assert asked(kapelle) == []
    finally:
        kapelle.destroy()


def test_what_an_agent_prints_and_what_a_run_asks_are_answered_alike(
    kapelle: Instance, directory: Path, repository: Path
) -> None:
    printed = kapelle.play('[[do]]\nask = "Printed?"', directory)
    kapelle.wait(printed)
    run = start(kapelle, "team", repository, goal="x", ask=True)
    assert [question["text"] for question in asked(kapelle)] == ["Printed?"]
    kapelle.post(f"/questions/{printed}/answer", {"answer": "yes"})
    kapelle.post(f"/runs/{run}/cancel")
    rest(kapelle, run)
