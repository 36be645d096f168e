"""The daemon or the shim dies at every named place; the task ends right all the same."""

import time
from pathlib import Path

import pytest

from kapelle.runner.shim.failpoints import ALL_FAILPOINTS
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git, make_repository
from tests.failpoints import failpoints_in

_PART = """
[[do]]
run = "echo $KAPELLE_ATTEMPT_ID >> {ledger}"
[[do]]
write = "work.txt"
content = "done"
[[do]]
sleep = 0.2
[[do]]
result = "ready"
"""


@pytest.mark.parametrize("name", [*failpoints_in("tasks"), *ALL_FAILPOINTS])
def test_a_task_survives_a_death_at(name: str, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    ledger = tmp_path / "ledger"
    ledger.touch()
    instance = Instance(tmp_path / "home")
    try:
        instance.start(KAPELLE_FAILPOINT=f"{name}@1")
        task_id = instance.play(
            _PART.format(ledger=ledger), repository, checks=["test -f work.txt", "diff_not_empty"]
        )
        daemon_dies = not name.startswith("shim_")
        if daemon_dies:
            instance.await_death()
            instance.start()
        task = instance.wait(task_id)
        attempt = task["attempts"][0]
        runs = ledger.read_text(encoding="ascii").split()
        assert len(task["attempts"]) == 1
        assert len(runs) == len(set(runs)) <= 1
        if daemon_dies or task["status"] == "completed":
            assert task["status"] == "completed", task["reason"]
            assert runs == [attempt["id"]]
            assert [check["passed"] for check in task["checks"]] == [True, True]
            assert git(repository, "show", f"{task['workspace']['branch']}:work.txt") == "done"
        else:
            assert attempt["exit"]["kind"] == "lost"
            assert task["reason"].startswith("lost: ")
    finally:
        instance.destroy()
    assert instance.processes() == []


def test_a_settled_attempt_is_not_performed_again(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    instance = Instance(tmp_path / "home", KAPELLE_LIMITS__MAX_ATTEMPTS="1")
    try:
        instance.start(KAPELLE_FAILPOINT="perform_end@2")
        first = instance.play("[[do]]\nsleep = 1", tmp_path)
        second = instance.play('[[do]]\nwrite = "ran"\ncontent = "x"', place)
        place.rmdir()
        instance.await_death()
        place.mkdir()
        instance.start()
        assert instance.wait(first)["status"] == "completed"
        task = instance.wait(second)
        assert task["status"] == "failed"
        assert "no longer exists" in task["reason"]
        time.sleep(3)
        assert not (place / "ran").exists()
    finally:
        instance.destroy()


def test_checks_that_were_made_before_a_crash_are_not_made_again(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home")
    try:
        instance.start(KAPELLE_FAILPOINT="verify_before_check@2")
        checks = [f"echo {number} >> {tmp_path}/ledger" for number in range(3)]
        task_id = instance.play('[[do]]\nsay = "hi"', tmp_path, checks=checks)
        instance.await_death()
        instance.start()
        assert instance.wait(task_id)["status"] == "completed"
        assert (tmp_path / "ledger").read_text(encoding="utf-8") == "0\n1\n2\n"
        response, body = instance.request("GET", f"/events?after=0&follow=false&task_id={task_id}")
        assert response.status == 200
        assert body.count(b"event: check.started") == 3
        assert body.count(b"event: check.passed") == 3
    finally:
        instance.destroy()
