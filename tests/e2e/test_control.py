"""Order and control: queue, dependencies, cancel, retry, resume, requeue, archive."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import git
from tests.e2e.support.staging import until


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Instance]:
    """A daemon that runs one attempt at a time."""
    instance = Instance(tmp_path / "home", KAPELLE_LIMITS__MAX_ATTEMPTS="1")
    instance.start()
    yield instance
    instance.destroy()


def test_tasks_start_by_priority_and_the_others_say_what_they_wait_for(
    narrow: Instance, tmp_path: Path
) -> None:
    first = narrow.play("[[do]]\nsleep = 1.5", tmp_path)
    narrow.wait_for_status(first, "running")
    low = narrow.play('[[do]]\nsay = "low"', tmp_path, priority="P2")
    high = narrow.play('[[do]]\nsay = "high"', tmp_path, priority="P0")
    time.sleep(0.2)
    assert narrow.task(low)["reason"] == "waits for a free slot: 1 of 1 attempts are running"
    ended = {task_id: narrow.wait(task_id)["started_at"] for task_id in (low, high)}
    assert ended[high] < ended[low]


def test_a_machine_short_of_disk_starts_nothing_and_says_why(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home", KAPELLE_LIMITS__MIN_FREE_DISK_MB="999999999")
    instance.start()
    try:
        task_id = instance.play('[[do]]\nsay = "hi"', tmp_path)
        time.sleep(0.5)
        task = instance.task(task_id)
        assert task["status"] == "queued"
        assert "the disk is low" in task["reason"]
        assert "limits.min_free_disk_mb" in task["reason"]
        instance.cli("config", "set", "limits.min_free_disk_mb", "1", check=True)
    finally:
        instance.destroy()


def test_a_chain_of_dependencies_made_by_two_cli_calls_runs(
    kapelle: Instance, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    wait = f"until [ -e {gate} ]; do sleep 0.1; done"
    part = f"Go.\n```rehearsal\n[[do]]\nrun = '{wait}'\n```"
    run = ["run", "--agent", "rehearsal", "--directory", str(tmp_path)]
    first = kapelle.cli(*run, part, check=True).stdout.strip()
    second = kapelle.cli(*run, part, "--depends-on", first, check=True).stdout.strip()
    assert kapelle.task(second)["status"] == "blocked"
    assert first in kapelle.task(second)["reason"]
    gate.touch()
    assert kapelle.cli("wait", second).returncode == 0
    assert kapelle.task(second)["started_at"] > kapelle.task(first)["ended_at"]


def test_a_failed_dependency_cancels_its_dependents_with_the_reason(
    kapelle: Instance, tmp_path: Path
) -> None:
    first = kapelle.play('[[do]]\nfail = "no"', tmp_path)
    second = kapelle.play('[[do]]\nsay = "hi"', tmp_path, depends_on=[first])
    anyway = kapelle.play('[[do]]\nsay = "hi"', tmp_path, depends_on=[first], deps_policy="run")
    task = kapelle.wait(second)
    assert (task["status"], task["reason"]) == ("cancelled", f"its dependency {first} failed")
    assert kapelle.wait(anyway)["status"] == "completed"


def test_a_circle_of_dependencies_is_refused(kapelle: Instance, tmp_path: Path) -> None:
    first = kapelle.play("[[do]]\nhang = true", tmp_path)
    second = kapelle.play('[[do]]\nsay = "hi"', tmp_path, depends_on=[first])
    third = kapelle.play('[[do]]\nsay = "hi"', tmp_path, depends_on=[second])
    with pytest.raises(ApiError) as caught:
        kapelle.call("PUT", f"/tasks/{second}/dependencies", {"depends_on": [third]})
    assert caught.value.status == 422
    assert "circular" in caught.value.body["error"]["message"]
    kapelle.call("PUT", f"/tasks/{second}/dependencies", {"depends_on": []})
    assert kapelle.wait(third)["status"] == "completed"


def test_cancel_ends_an_agent_that_ignores_sigterm_and_its_grandchildren(
    kapelle: Instance, tmp_path: Path
) -> None:
    part = """
[[do]]
spawn = "trap '' TERM; sleep 600"
detached = true
[[do]]
say = "stubborn"
[[do]]
hang = true
stubborn = true
"""
    task_id = kapelle.play(part, tmp_path)
    kapelle.wait_for_status(task_id, "running")
    deadline = time.monotonic() + 20
    while b"stubborn" not in kapelle.output(task_id):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [p for p in kapelle.processes() if "KAPELLE_RUN_DIR" in p.environ()]
    done = kapelle.cli("cancel", task_id, "--reason", "enough")
    assert done.returncode == 0, done.stderr
    task = kapelle.task(task_id)
    assert (task["status"], task["reason"]) == ("cancelled", "enough")
    assert task["attempts"][0]["status"] == "cancelled"
    assert [p for p in kapelle.processes() if "KAPELLE_RUN_DIR" in p.environ()] == []


def test_cancel_reaches_a_task_in_its_check_and_one_that_has_not_started(
    narrow: Instance, tmp_path: Path
) -> None:
    checking = narrow.play('[[do]]\nsay = "hi"', tmp_path, checks=["sleep 600"])
    queued = narrow.play('[[do]]\nsay = "hi"', tmp_path)
    waiting = narrow.play('[[do]]\nsay = "hi"', tmp_path, depends_on=[queued])
    assert narrow.post(f"/tasks/{queued}/cancel")["status"] == "cancelled"
    assert narrow.task(waiting)["reason"] == f"its dependency {queued} was cancelled"
    deadline = time.monotonic() + 20
    while not list(narrow.home.processes.glob("*/run.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    narrow.post(f"/tasks/{checking}/cancel")
    assert narrow.wait(checking, timeout_s=15)["status"] == "cancelled"


def test_retry_starts_afresh_resume_goes_on_and_requeue_takes_the_new_base(
    kapelle: Instance, repository: Path
) -> None:
    part = """
[[do]]
append = "log.txt"
content = "line\\n"
[[do]]
fail = "no"
"""
    task_id = kapelle.play(part, repository)
    kapelle.wait(task_id)
    worktree = Path(kapelle.task(task_id)["workspace"]["path"])
    assert (worktree / "log.txt").read_text(encoding="utf-8") == "line\n"
    kapelle.post(f"/tasks/{task_id}/retry")
    kapelle.wait(task_id)
    assert (worktree / "log.txt").read_text(encoding="utf-8") == "line\n"
    kapelle.post(f"/tasks/{task_id}/resume", {"message": "go on"})
    task = kapelle.wait(task_id)
    assert (worktree / "log.txt").read_text(encoding="utf-8") == "line\nline\n"
    assert [attempt["mode"] for attempt in task["attempts"]] == ["fresh", "fresh", "resume"]
    (repository / "later.txt").write_text("later", encoding="utf-8")
    git(repository, "add", "later.txt")
    git(repository, "commit", "--quiet", "--message=Later")
    kapelle.post(f"/tasks/{task_id}/requeue")
    task = kapelle.wait(task_id)
    assert (worktree / "later.txt").exists()
    assert task["workspace"]["base_commit"] == git(repository, "rev-parse", "main")
    kept = git(repository, "for-each-ref", "--format=%(refname)", "refs/kapelle/archive/")
    assert len(kept.splitlines()) == 2


def test_a_resumed_agent_is_told_what_happened_before(kapelle: Instance, tmp_path: Path) -> None:
    part = """
[[rule]]
attempt = 1
[[rule.do]]
say = "I have painted the left half."
[[rule]]
match = '(?s)painted the left half.*Output of the failed check.*missing right half.*Now the rest'
[[rule.do]]
result = "painted it all"
"""
    check = "echo missing right half; test -f right || test $KAPELLE_ATTEMPT_NUMBER = 2"
    task_id = kapelle.play(part, tmp_path, checks=[check])
    assert kapelle.wait(task_id)["status"] == "failed"
    kapelle.post(f"/tasks/{task_id}/resume", {"message": "Now the rest"})
    task = kapelle.wait(task_id)
    assert (task["status"], task["result"]) == ("completed", "painted it all")


def test_a_task_that_continues_another_builds_on_its_branch_and_knows_its_result(
    kapelle: Instance, repository: Path
) -> None:
    first = kapelle.play(
        '[[do]]\nwrite = "one.txt"\ncontent = "1"\n[[do]]\nresult = "wrote one"', repository
    )
    second = kapelle.play(
        """
[[rule]]
match = '(?s)wrote one.*one.txt'
[[rule.do]]
run = "test -f one.txt && echo 2 > two.txt"
""",
        repository,
        continue_from=first,
    )
    task = kapelle.wait(second)
    assert task["status"] == "completed", task["reason"]
    assert task["workspace"]["base"] == "main"
    kapelle.post(f"/tasks/{second}/merge")
    assert git(repository, "ls-tree", "--name-only", "main").split() == [
        "README.md",
        "one.txt",
        "two.txt",
    ]


def test_archive_puts_an_ended_task_away_and_keeps_its_work(
    kapelle: Instance, repository: Path
) -> None:
    task_id = kapelle.play(
        '[[do]]\nwrite = "precious.txt"\ncontent = "gold"\n[[do]]\nfail = "no"', repository
    )
    worktree = Path(kapelle.wait(task_id)["workspace"]["path"])
    running = kapelle.play("[[do]]\nhang = true", repository)
    with pytest.raises(ApiError, match="409"):
        kapelle.post(f"/tasks/{running}/archive")
    kapelle.post(f"/tasks/{task_id}/archive")
    assert not worktree.exists()
    assert task_id not in [task["id"] for task in kapelle.get("/tasks")["tasks"]]
    assert task_id in [task["id"] for task in kapelle.get("/tasks?archived=true")["tasks"]]
    refs = git(repository, "for-each-ref", "--format=%(refname)", "refs/kapelle/archive/").split()
    assert any("gold" in git(repository, "show", f"{ref}:precious.txt") for ref in refs)


def test_an_idempotency_key_submits_once(kapelle: Instance, tmp_path: Path) -> None:
    body = {"prompt": "hello", "directory": str(tmp_path), "agent": "rehearsal"}
    made = [
        kapelle.call("POST", "/tasks", body, {"Idempotency-Key": "same"})["id"] for _ in range(3)
    ]
    assert len(set(made)) == 1
    assert len(kapelle.get("/tasks")["tasks"]) == 1


def test_checks_are_made_once_more_on_what_was_committed(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    broken, hold, held = (tmp_path / name for name in ("broken", "hold", "held"))
    wait = f"if test -e {hold}; then touch {held}; while test -e {hold}; do sleep 0.1; done; fi"
    check = f"{wait}; test -f new.txt && echo seen && ! test -e {broken}"
    work = "[[do]]\nwrite = 'new.txt'\ncontent = 'new'\n[[do]]\nrun = \"sleep 60\"\n"
    task = kapelle.play(work.replace("sleep 60", "true"), repository, checks=[check])
    first = kapelle.wait(task)
    assert [spec["command"] for spec in first["check_specs"]] == [check]
    assert (first["verified"], first["checked_again"]) == (True, None)
    # What lies in the worktree meanwhile is not what was committed.
    Path(first["workspace"]["path"], "new.txt").unlink()
    again = kapelle.post(f"/tasks/{task}/check")["checked_again"]
    assert (again["passed"], again["commit"]) == (True, first["workspace"]["commit"])
    broken.touch()
    done = kapelle.cli("check", task)
    assert done.returncode == 1, done.stderr
    assert "✗ check failed" in done.stdout
    now = kapelle.task(task)
    assert (now["status"], now["checks"]) == ("completed", first["checks"])
    assert now["checked_again"]["checks"][0]["output"].startswith("seen")
    # What goes on meanwhile is not told what was found of it before.
    hold.touch()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(kapelle.post, f"/tasks/{task}/check")
        until(held.exists, "the check is made")
        kapelle.post(f"/tasks/{task}/resume")
        kapelle.wait_for_status(task, "running")
        broken.unlink()
        hold.unlink()
        asked.result()
    assert kapelle.wait(task)["status"] == "completed"
    assert kapelle.task(task)["checked_again"] is None
    running = kapelle.play(work, repository, checks=[check])
    kapelle.wait_for_status(running, "running")
    with pytest.raises(ApiError, match="is running"):
        kapelle.post(f"/tasks/{running}/check")
    kapelle.post(f"/tasks/{running}/cancel")


def test_work_is_flagged_put_off_and_seen(kapelle: Instance, tmp_path: Path) -> None:
    task = kapelle.play('[[do]]\nsay = "hi"', tmp_path)
    other = kapelle.play('[[do]]\nsay = "hi"', tmp_path)
    kapelle.wait(task), kapelle.wait(other)
    assert "kapelle list --flagged" in kapelle.cli("flag", task, check=True).stderr
    assert [one["id"] for one in kapelle.get("/work?flagged=true")["work"]] == [task]
    said = kapelle.cli("snooze", task, "--until", "2h", check=True).stdout
    assert "snoozed until 20" in said
    for shown in (kapelle.cli("status", task).stdout, kapelle.cli("list", "--all").stdout):
        assert "flagged, snoozed until 20" in shown
    marked = kapelle.post(f"/work/{task}/mark", {"seen": True})
    assert marked["flagged_at"]
    assert marked["snoozed_until"] > marked["seen_at"]
    kinds = [e["kind"] for e in _events(kapelle, task)]
    assert kinds.count("task.marked") == 2
    kapelle.cli("flag", "--off", task)
    kapelle.cli("snooze", "--off", task)
    marked = kapelle.task(task)
    assert (marked["flagged_at"], marked["snoozed_until"]) == (None, None)
    assert marked["seen_at"]


def _events(kapelle: Instance, task: str) -> list[dict[str, Any]]:
    told = kapelle.cli("events", "--after", "0", "--task", task, "--json", check=True).stdout
    return [json.loads(line) for line in told.splitlines()]
