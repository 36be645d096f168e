"""An attempt's own token: it reads its own task while it runs, and does nothing else."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from docs.services import idle_services

from kapelle.api.app import openapi
from tests.e2e.support.door import OPEN, Door, every_route, open_door

READABLE = {"", "/output", "/transcript", "/diff", "/patch"}
HANG = '[[do]]\nsay = "here"\n[[do]]\nhang = true'


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(tmp_path_factory.mktemp("door")) as opened:
        yield opened


@pytest.fixture(scope="module")
def other(door: Door) -> str:
    """A task that is somebody else's."""
    task_id = door.instance.play('[[do]]\nsay = "mine"')
    door.instance.wait(task_id)
    return task_id


def test_a_running_attempt_reads_its_own_task_and_nothing_else(
    door: Door, other: str, tmp_path: Path
) -> None:
    task_id = door.instance.play(HANG, tmp_path)
    environ = _environment(door, task_id)
    token = ("Authorization", f"Bearer {environ['KAPELLE_TOKEN']}")
    assert environ["KAPELLE_URL"] == door.origin
    readable = {("GET", f"/api/v1/tasks/{task_id}{path}") for path in READABLE}
    paths = openapi(idle_services())["paths"]
    allowed = {
        (method.upper(), path.replace("{task_id}", task_id))
        for path, methods in paths.items()
        for method, operation in methods.items()
        if {"attempt": []} in operation.get("security", ())
    }
    for method, path in every_route(task_id):
        if (method, path) in allowed - readable:
            continue  # the table of callers tells what of it is its own
        answer = door.ask(method, path, [token])
        if (method, path) in readable:
            # Work in place has no diff, which is a matter of the task and not of the token.
            assert answer.status == (409 if path.endswith(("/diff", "/patch")) else 200), path
        elif (method, path) not in OPEN:
            assert (answer.status, answer.code) == (403, "forbidden"), (method, path)
    door.instance.post(f"/tasks/{task_id}/cancel")
    _assert_dead(door, token, task_id)


def test_an_attempt_learns_nothing_of_other_tasks(door: Door, other: str, tmp_path: Path) -> None:
    task_id = door.instance.play(HANG, tmp_path)
    token = ("Authorization", f"Bearer {_environment(door, task_id)['KAPELLE_TOKEN']}")
    answers = {
        (answer.status, answer.code)
        for text in (other, "task_00000000000000000000000000", "task_0", "%00", "x" * 5000)
        for path in READABLE
        for answer in [door.ask("GET", f"/api/v1/tasks/{text}{path}", [token])]
    }
    assert answers == {(403, "forbidden")}
    door.instance.post(f"/tasks/{task_id}/cancel")
    door.instance.wait(task_id)


def test_the_next_attempt_of_a_task_has_another_token(door: Door, tmp_path: Path) -> None:
    task_id = door.instance.play(HANG, tmp_path)
    first = _environment(door, task_id)
    door.instance.post(f"/tasks/{task_id}/requeue")
    second = _environment(door, task_id, not_of=first["KAPELLE_ATTEMPT_ID"])
    path = f"/api/v1/tasks/{task_id}"
    old = door.ask("GET", path, [("Authorization", f"Bearer {first['KAPELLE_TOKEN']}")])
    new = door.ask("GET", path, [("Authorization", f"Bearer {second['KAPELLE_TOKEN']}")])
    assert (old.status, new.status) == (403, 200)
    door.instance.post(f"/tasks/{task_id}/cancel")
    door.instance.wait(task_id)


def test_an_agent_may_ask_about_its_task_by_itself(door: Door, tmp_path: Path) -> None:
    script = tmp_path / "ask.py"
    script.write_text(
        "import json, os, urllib.request as web\n"
        "env = os.environ\n"
        "url = env['KAPELLE_URL'] + '/api/v1/tasks/' + env['KAPELLE_TASK_ID']\n"
        "headers = {'Authorization': 'Bearer ' + env['KAPELLE_TOKEN']}\n"
        "answer = web.urlopen(web.Request(url, headers=headers))\n"
        "print('I am', json.load(answer)['status'])\n",
        encoding="utf-8",
    )
    task_id = door.instance.play('[[do]]\nrun = "python3 ask.py"', tmp_path)
    assert door.instance.wait(task_id)["status"] == "completed"
    assert door.instance.output(task_id).startswith(b"I am running\n")


def _environment(door: Door, task_id: str, not_of: str = "") -> dict[str, str]:
    """What the agent of a running attempt was given, as its own process sees it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for process in door.instance.processes():
            try:
                environ = process.environ()
            except psutil.Error:
                continue
            named = environ.get("KAPELLE_TASK_ID") == task_id and "KAPELLE_TOKEN" in environ
            if named and environ["KAPELLE_ATTEMPT_ID"] != not_of:
                return environ
        time.sleep(0.02)
    raise AssertionError(f"{task_id} has no process:\n{door.instance.log_tail()}")


def _assert_dead(door: Door, token: tuple[str, str], task_id: str) -> None:
    assert door.instance.wait(task_id)["status"] == "cancelled"
    for method, path in every_route(task_id):
        if (method, path) not in OPEN:
            answer = door.ask(method, path, [token])
            assert (answer.status, answer.code) == (403, "forbidden"), (method, path)
