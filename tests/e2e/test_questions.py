"""Questions of tasks and runs: asked by agents, seen in one place, answered by people."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from kapelle.domain.ids import make_attempt_token
from tests.e2e.support.ensembles import rest, start
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.staging import until

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

    def found() -> Any:
        task = kapelle.task(task_id)
        ended = [one for one in task["attempts"] if one["ended_at"] is not None]
        return task if len(ended) >= attempt else None

    return until(found, "an end")


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
    refused = kapelle.cli("answer", task_id, "3")
    assert "There is no choice 3: 1 red, 2 blue." in refused.stderr
    done = kapelle.cli("answer", task_id[-5:], "2")
    assert done.returncode == 0, done.stderr
    task = kapelle.wait(task_id)
    assert (task["status"], len(task["attempts"])) == ("completed", 1)
    assert heard(directory) == "answered: blue\n"
    assert asked(kapelle) == []
    assert "has no open question" in kapelle.cli("answer", task_id, "red").stderr
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
    assert "You asked: Which colour?\nAnswer: green" in prompt.read_text(encoding="utf-8")
    kapelle.cli("cancel", task_id, check=True)
    assert asked(kapelle) == []


def test_an_answer_that_did_not_arrive_is_there_when_it_is_asked_for_again(
    kapelle: Instance, directory: Path
) -> None:
    task_id = kapelle.play("[[do]]\nhang = true", directory)
    attempt = kapelle.wait_for_status(task_id, "running")["attempts"][0]["id"]
    token = make_attempt_token(kapelle.home.token.read_text(encoding="ascii"), attempt)
    headers = {"Authorization": f"Bearer {token}"}

    def ask() -> Any:
        return kapelle.call("POST", "/questions?timeout_s=0", {"text": "Which?"}, headers)

    question = ask()
    kapelle.post(f"/questions/{question['token']}/answer", {"answer": "blue"})
    # Nobody knows whether the first of these was heard.
    assert [(found["token"], found["answer"]) for found in (ask(), ask())] == [
        (question["token"], "blue")
    ] * 2
    kapelle.cli("cancel", task_id, check=True)


def test_an_answer_that_an_agent_died_with_is_told_to_the_next_attempt(
    kapelle: Instance, directory: Path
) -> None:
    pid = directory / "pid"
    steps = f"[[do]]\nrun = 'echo $PPID > {pid}'\n[[do]]\nsay = 'I am stuck.'\n[[do]]\nhang = true"
    retry = {"policy": "same", "max_attempts": 2, "delay_s": 0.1}
    task_id = kapelle.play(steps, directory, retry=retry)
    attempt = kapelle.wait_for_status(task_id, "running")["attempts"][0]["id"]
    log = kapelle.home.attempts / attempt / "out.log"
    until(lambda: log.exists() and b"I am stuck." in log.read_bytes(), "its last words")
    token = make_attempt_token(kapelle.home.token.read_text(encoding="ascii"), attempt)
    headers = {"Authorization": f"Bearer {token}"}
    body = {"text": "Which?"}
    question = kapelle.call("POST", "/questions?timeout_s=0", body, headers)
    kapelle.post(f"/questions/{question['token']}/answer", {"answer": "blue"})
    assert kapelle.call("POST", "/questions?timeout_s=0", body, headers)["answer"] == "blue"
    os.kill(int(pid.read_text()), signal.SIGKILL)
    until_ended(kapelle, task_id, attempt=1)
    second = until(lambda: kapelle.task(task_id)["attempts"][1:], "a second attempt")[0]
    prompt = kapelle.home.attempts / second["id"] / "prompt"
    until(prompt.exists, "its prompt")
    assert "You asked: Which?\nAnswer: blue" in prompt.read_text(encoding="utf-8")
    kapelle.cli("cancel", task_id, check=True)


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


TELL = """
import json, os, sys, urllib.request
for path, body in json.loads(sys.argv[1]):
    request = urllib.request.Request(os.environ["KAPELLE_URL"] + "/api/v1/attempt/" + path)
    request.add_header("Authorization", "Bearer " + os.environ["KAPELLE_TOKEN"])
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, json.dumps(body).encode(), timeout=60)
"""


def telling(place: Path, calls: str) -> str:
    script = place.parent / "tell.py"
    script.write_text(TELL, encoding="utf-8")
    return f"[[do]]\nrun = '''{sys.executable} {script} '{calls}' '''\n"


def test_an_agent_says_how_far_it_is_and_hands_in_a_result_that_overrides_no_check(
    kapelle: Instance, repository: Path
) -> None:
    halfway = telling(repository, '[["report", {"text": "half of it"}]]')
    task_id = kapelle.play(halfway + "[[do]]\nhang = true", repository)
    until(lambda: kapelle.task(task_id)["report"] == "half of it", "a report")
    assert "half of it" in kapelle.task(task_id)["reason"]
    assert "half of it" in kapelle.cli("list", cwd=repository).stdout
    attempt = kapelle.task(task_id)["attempts"][0]["id"]
    token = make_attempt_token(kapelle.home.token.read_text(encoding="ascii"), attempt)
    with pytest.raises(ApiError, match="at most 1,000,000 characters"):
        kapelle.call("POST", "/attempt/finish", {"result": ["x" * 1_000_000]},
                     {"Authorization": f"Bearer {token}"})  # fmt: skip
    kapelle.cli("cancel", task_id, check=True)
    finish = telling(repository, '[["finish", {"result": {"answer": 42}}]]')
    checks = [{"command": "false"}]
    for spec, status in (({}, "completed"), ({"checks": checks}, "failed")):
        task = kapelle.wait(kapelle.play(finish, repository, **spec))
        assert (task["status"], task["result"]) == (status, '{"answer": 42}')
    gave_up = telling(repository, '[["finish", {"result": "no way", "success": false}]]')
    task = kapelle.wait(kapelle.play(gave_up, repository))
    assert (task["status"], task["attempts"][0]["claimed"]) == ("failed", "failure")
    assert "no way" in task["reason"]


def test_what_a_person_says_to_an_agent_that_cannot_hear_is_told_to_its_next_attempt(
    kapelle: Instance, directory: Path
) -> None:
    rules = '[[rule]]\nattempt = 1\ndo = [{run = "until test -e go; do sleep 0.05; done"}]'
    task_id = kapelle.play(f'{rules}\n[[rule]]\ndo = [{{say = "heard"}}]', directory)
    kapelle.wait_for_status(task_id, "running")
    done = kapelle.cli("say", task_id, "Use tabs.", check=True)
    assert "it gets your message in its next attempt" in done.stderr
    (directory / "go").touch()
    task = kapelle.wait(task_id)
    assert (task["status"], len(task["attempts"])) == ("completed", 2)
    prompt = kapelle.home.attempts / task["attempts"][1]["id"] / "prompt"
    assert "Use tabs." in prompt.read_text(encoding="utf-8")
    assert "has ended" in kapelle.cli("say", task_id, "more").stderr


def test_an_agent_over_acp_is_interrupted_and_hears(kapelle: Instance, directory: Path) -> None:
    agent = Path(__file__).parents[1] / "integration" / "acp_agent.py"
    command = f'command = ["{sys.executable}", "{agent}"]'
    log = directory / "log"
    kapelle.home.config.write_text(
        f'[agents.small]\ntype = "acp"\n{command}\nenv = {{ ACP_LOG = "{log}" }}\n',
        encoding="utf-8",
    )
    task_id = kapelle.submit('{"do": [["wait"]]}', directory, agent="small")
    until(lambda: log.exists() and '"prompt"' in log.read_text(encoding="utf-8"), "a prompt")
    told = kapelle.post(f"/tasks/{task_id}/say", {"message": '{"do": [["say", "I hear"]]}'})
    assert told["told"] == "now"
    task = kapelle.wait(task_id)
    assert (task["status"], len(task["attempts"]), task["result"]) == ("completed", 1, "I hear")
