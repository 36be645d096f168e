"""Schedules by a real daemon: what is typed comes about once, whatever becomes of the daemon."""

import json
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.staging import until
from tests.failpoints import failpoints_in


def part(ledger: Path, steps: str = "") -> str:
    """A rehearsal that leaves a line for each time it is played."""
    lines = f'[[do]]\nrun = "echo $KAPELLE_TASK_ID:$WORD >> {ledger}"\n{steps}'
    return f"Play.\n```rehearsal\n{lines}\n```\n"


def create(kapelle: Instance, *arguments: str, cwd: Path) -> str:
    done = kapelle.cli("schedule", "create", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def tasks_of(kapelle: Instance, schedule_id: str) -> list[dict[str, Any]]:
    """The tasks that a schedule started, oldest first."""
    found = kapelle.get("/tasks?limit=1000")["tasks"]
    return [task for task in reversed(found) if task["schedule_id"] == schedule_id]


def firings(kapelle: Instance, schedule_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kapelle.get(f"/schedules/{schedule_id}/firings")["firings"]
    return found[::-1]


def status(kapelle: Instance, schedule_id: str) -> str:
    return str(kapelle.get(f"/schedules/{schedule_id}")["status"])


def await_status(kapelle: Instance, schedule_id: str, wanted: str) -> None:
    until(lambda: status(kapelle, schedule_id) == wanted, f"{schedule_id} being {wanted}")


def test_what_is_asked_for_in_two_seconds_is_started_then_and_once(
    kapelle: Instance, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    began = time.time()
    schedule = create(
        kapelle, "--at", "2s", "--title", "soon", "--", "run", part(ledger), "-a", "rehearsal",
        cwd=tmp_path,
    )  # fmt: skip
    assert status(kapelle, schedule) == "active"
    await_status(kapelle, schedule, "completed")
    assert 1.5 < time.time() - began < 15
    (task,) = tasks_of(kapelle, schedule)
    assert kapelle.wait(task["id"])["status"] == "completed"
    (firing,) = firings(kapelle, schedule)
    assert (firing["outcome"], firing["subject"]) == ("started", task["id"])
    assert firing["subject_status"] == "completed"
    shown = kapelle.cli("schedule", "status", schedule)
    assert "completed" in shown.stdout
    assert task["id"] in shown.stdout
    assert ledger.read_text(encoding="ascii").splitlines() == [f"{task['id']}:"]


def test_what_repeats_is_controlled_from_the_command_line(
    kapelle: Instance, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    done = kapelle.cli("run", part(ledger), "-a", "rehearsal", "--every", "1s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    schedule = done.stdout.strip()
    until(lambda: len(tasks_of(kapelle, schedule)) >= 3, "three repetitions")
    assert schedule in kapelle.cli("schedule").stdout
    assert "every 1s" in kapelle.cli("schedule", "list", "--status", "active").stdout
    paused = kapelle.cli("schedule", "pause", schedule[:-1])
    assert paused.stdout == f"{schedule}  paused\n"
    assert kapelle.get(f"/schedules/{schedule[-5:]}")["next_at"] is None
    until(lambda: not kapelle.get(f"/schedules/{schedule}")["in_flight"], "rest")
    count = len(tasks_of(kapelle, schedule))
    time.sleep(2.5)
    assert len(tasks_of(kapelle, schedule)) == count
    by_hand = kapelle.cli("schedule", "run", schedule).stdout.strip()
    assert kapelle.wait(by_hand)["schedule_id"] == schedule
    assert kapelle.cli("schedule", "resume", schedule).returncode == 0
    until(lambda: len(tasks_of(kapelle, schedule)) > count + 1, "going on")
    history = json.loads(kapelle.cli("schedule", "history", schedule, "--json").stdout)
    assert {firing["outcome"] for firing in history} == {"started"}
    assert kapelle.cli("schedule", "cancel", schedule).returncode == 0
    again = kapelle.cli("schedule", "cancel", schedule)
    assert (again.returncode, "cancelled already" in again.stderr) == (2, True)
    # Each repetition ended before the next began.
    starts = [task for task in tasks_of(kapelle, schedule) if task["started_at"]]
    for earlier, later in pairwise(starts):
        assert earlier["ended_at"] <= later["created_at"]


def test_cancelling_with_the_work_ends_the_agent(kapelle: Instance, tmp_path: Path) -> None:
    prompt = "Play.\n```rehearsal\n[[do]]\nhang = true\n```\n"
    schedule = create(kapelle, "--every", "1s", "run", prompt, "-a", "rehearsal", cwd=tmp_path)
    (task,) = until(lambda: tasks_of(kapelle, schedule), "a task")
    kapelle.wait_for_status(task["id"], "running")
    done = kapelle.cli("schedule", "cancel", schedule, "--with-work")
    assert (done.returncode, done.stdout) == (0, f"{schedule}  cancelled\n")
    ended = kapelle.wait(task["id"])
    assert (ended["status"], ended["reason"]) == ("cancelled", f"cancelled with {schedule}")


def test_a_failing_repetition_fails_the_schedule_and_says_why(
    kapelle: Instance, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    words = ["run", part(ledger), "-a", "rehearsal", "--check", "test ! -f ledger"]
    schedule = create(kapelle, "--every", "1s", *words, cwd=tmp_path)
    await_status(kapelle, schedule, "failed")
    (task,) = tasks_of(kapelle, schedule)
    assert kapelle.get(f"/schedules/{schedule}")["reason"].startswith(f"{task['id']} failed: ")


def test_a_pattern_is_started_as_a_run(kapelle: Instance, tmp_path: Path) -> None:
    words = ["loop", "try", "--until", "true", "-a", "rehearsal"]
    first = create(kapelle, "--at", "5s", *words, cwd=tmp_path)
    second = create(kapelle, "--after", first, "run", "then", "-a", "rehearsal", cwd=tmp_path)
    await_status(kapelle, first, "completed")
    (firing,) = firings(kapelle, first)
    run = until(
        lambda: (found := kapelle.get(f"/runs/{firing['subject']}"))["ended_at"] and found, "an end"
    )
    assert (run["pattern"], run["status"], run["schedule_id"]) == ("loop", "completed", first)
    await_status(kapelle, second, "completed")
    assert len(tasks_of(kapelle, second)) == 1


@pytest.mark.parametrize("name", failpoints_in("schedules"))
def test_a_daemon_that_dies_at(name: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    kapelle = Instance(tmp_path / "home")
    try:
        kapelle.start(KAPELLE_FAILPOINT=f"{name}@1")
        words = ["run", part(ledger), "-a", "rehearsal"]
        schedule = create(kapelle, "--at", "1s", *words, cwd=tmp_path)
        assert kapelle.process is not None
        kapelle.process.wait(30)
        kapelle.start()
        await_status(kapelle, schedule, "completed")
        (task,) = tasks_of(kapelle, schedule)
        assert kapelle.wait(task["id"])["status"] == "completed"
        time.sleep(1)
        assert len(tasks_of(kapelle, schedule)) == 1
        assert [found["outcome"] for found in firings(kapelle, schedule)] == ["started"]
        assert ledger.read_text(encoding="ascii").splitlines() == [f"{task['id']}:"]
    finally:
        kapelle.destroy()


def test_repetitions_go_on_over_many_deaths_of_the_daemon(
    kapelle: Instance, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    words = ["run", part(ledger), "-a", "rehearsal"]
    schedule = create(kapelle, "--every", "1s", *words, cwd=tmp_path)
    for number in range(5):
        time.sleep(0.7 + 0.23 * number)
        kapelle.kill()
        kapelle.start()
    until(lambda: len(tasks_of(kapelle, schedule)) >= 6, "six repetitions")
    kapelle.post(f"/schedules/{schedule}/pause")
    tasks = [kapelle.wait(task["id"]) for task in tasks_of(kapelle, schedule)]
    assert {task["status"] for task in tasks} == {"completed"}
    told = [firing["subject"] for firing in firings(kapelle, schedule)]
    assert told == [task["id"] for task in tasks]
    played = ledger.read_text(encoding="ascii").split()
    assert played == [f"{task_id}:" for task_id in told]


def test_a_time_that_came_while_no_daemon_ran_for_a_moment_is_not_missed(
    kapelle: Instance, tmp_path: Path
) -> None:
    words = ["run", "x", "-a", "rehearsal"]
    schedule = create(kapelle, "--at", "1s", *words, cwd=tmp_path)
    kapelle.kill()
    time.sleep(2)
    kapelle.start()
    await_status(kapelle, schedule, "completed")
    assert len(tasks_of(kapelle, schedule)) == 1


def test_secrets_are_given_to_the_agent_and_kept_from_the_database(
    kapelle: Instance, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    secret = "qXv81-not-for-the-database"
    words = ["run", part(ledger), "-a", "rehearsal", "--env", f"WORD={secret}"]
    schedule = create(kapelle, "--every", "1s", "--max-runs", "2", *words, cwd=tmp_path)
    path = kapelle.home.secrets / f"{schedule}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert kapelle.get(f"/schedules/{schedule}")["spec"]["env"] == ["WORD"]
    await_status(kapelle, schedule, "completed")
    for task in tasks_of(kapelle, schedule):
        kapelle.wait(task["id"])
    lines = ledger.read_text(encoding="utf-8").splitlines()
    assert [line.partition(":")[2] for line in lines] == [secret] * 2
    assert not path.exists()
    kapelle.stop()
    for file in kapelle.home.root.glob("*.db*"):
        assert secret.encode() not in file.read_bytes(), file


def test_wrong_schedules_get_a_sentence_and_leave_nothing(
    kapelle: Instance, tmp_path: Path
) -> None:
    body = {"spec": {"prompt": "x", "directory": str(tmp_path), "agent": "rehearsal"}}
    soon = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    for change, said in (
        ({"cron": "0 25 * * *"}, "an hour is 0 to 23"),
        ({"cron": "* * * * *", "timezone": "Berlin"}, "did you mean Europe/Berlin"),
        ({}, "a trigger is missing"),
        ({"at": "2020-01-01T00:00:00Z"}, "has passed"),
        (
            {"cron": "0 0 29 2 *", "expires_at": soon},
            "the cron expression has no slot before this time",
        ),
        ({"every_s": 5, "spec": {"prompt": "", "directory": "/"}}, "prompt"),
        ({"every_s": 5, "spec": {"prompt": "x", "directory": "/no/where"}}, "no directory"),
        ({"every_s": 5, "spec": {**body["spec"], "agent": "nobody"}}, "no agent 'nobody'"),
        ({"every_s": 5, "kind": "nothing"}, "no pattern 'nothing'"),
        ({"after": "schedule_zzz"}, "is not the id of a schedule"),
    ):
        with pytest.raises(ApiError) as caught:
            kapelle.post("/schedules", {**body, **change})
        assert caught.value.status in {404, 422}
        assert said in caught.value.body["error"]["message"]
    assert kapelle.get("/schedules") == {"schedules": [], "next_cursor": None}
    assert list(kapelle.home.secrets.glob("schedule_*")) == []
    typed = kapelle.cli("schedule", "create", "--cron", "0 3 * *", "run", "x", "-a", "rehearsal")
    assert typed.returncode == 2
    assert "instead of five: minute, hour" in typed.stderr
    assert "Traceback" not in typed.stderr
