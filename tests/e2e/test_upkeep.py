"""What a daemon does by itself when it starts: backups, its log, what is old, what a crash left."""

import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kapelle.store import backup
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import make_repository

_WORK = '[[do]]\nwrite = "new.txt"\ncontent = "kept"\n[[do]]\nresult = "done"'


def _await(condition: Callable[[], bool], instance: Instance) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, instance.log_tail()
        time.sleep(0.05)


def _change(instance: Instance, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(instance.home.database)) as connection:
        connection.execute(statement, values)
        connection.commit()


def _is_gone(instance: Instance, task_id: str) -> bool:
    try:
        instance.task(task_id)
    except ApiError as error:
        return error.status == 404
    return False


def test_backups_go_on_and_old_tasks_go_though_a_repository_was_deleted(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    kapelle.env["KAPELLE_UPKEEP__RETENTION_DAYS"] = "1"
    lost = make_repository(tmp_path / "lost")
    stuck, old = kapelle.play(_WORK, lost), kapelle.play(_WORK, repository)
    for task_id in (stuck, old):
        assert kapelle.wait(task_id)["status"] == "completed"
    _await(lambda: bool(backup.list_backups(kapelle.home.backups)), kapelle)
    kapelle.kill()
    shutil.rmtree(lost)
    shutil.rmtree(kapelle.home.backups)
    _change(kapelle, "UPDATE tasks SET ended_at = 1")
    kapelle.start()
    _await(lambda: _is_gone(kapelle, old), kapelle)
    _await(lambda: bool(backup.list_backups(kapelle.home.backups)), kapelle)
    assert not lost.exists()
    assert (kapelle.home.worktrees / stuck / "new.txt").exists()
    assert kapelle.task(stuck)["archived_at"]
    assert kapelle.log_tail().count(f"{stuck} stays: ") == 1


def test_a_worktree_that_a_crash_left_with_an_archived_task_is_put_away(
    kapelle: Instance, repository: Path
) -> None:
    task_id = kapelle.play(_WORK, repository)
    assert kapelle.wait(task_id)["status"] == "completed"
    kapelle.kill()
    _change(kapelle, "UPDATE tasks SET archived_at = 1 WHERE id = ?", task_id)
    kapelle.start()
    _await(lambda: not (kapelle.home.worktrees / task_id).exists(), kapelle)
    assert "new.txt" in kapelle.get(f"/tasks/{task_id}/diff")["files"]


@pytest.mark.parametrize("size", [1_000, 30_000_000])
def test_a_large_log_is_shortened_and_written_on(tmp_path: Path, size: int) -> None:
    instance = Instance(tmp_path / "home")
    instance.home.root.mkdir(mode=0o700)
    instance.home.log.write_bytes((b"x" * 99 + b"\n") * (size // 100))
    kept = instance.home.log.with_name("daemon.log.1")
    try:
        instance.start()
        if size > 20_000_000:
            _await(kept.exists, instance)
            _await(lambda: instance.home.log.stat().st_size < 100_000, instance)
        else:
            _await(lambda: bool(backup.list_backups(instance.home.backups)), instance)
            assert not kept.exists()
            assert instance.home.log.stat().st_size >= size
    finally:
        instance.destroy()


def test_a_clock_that_is_set_back_delays_no_retry_and_nothing_ends_before_it_began(
    kapelle: Instance, tmp_path: Path
) -> None:
    again = {"policy": "same", "max_attempts": 2, "delay_s": 5}
    task_id = kapelle.play(
        '[[rule]]\nattempt = 1\n[[rule.do]]\nfail = "no"\n[[rule]]\n[[rule.do]]\nsleep = 3',
        tmp_path,
        workspace="in_place",
        retry=again,
    )
    _await(lambda: "starts in" in (kapelle.task(task_id)["reason"] or ""), kapelle)
    kapelle.kill()
    day = 86_400_000_000
    # As if all of it had happened before the clock was set back by a day.
    _change(kapelle, f"UPDATE tasks SET not_before = not_before + {day}")
    later = f"started_at = started_at + {day}, ended_at = ended_at + {day}"
    _change(kapelle, f"UPDATE attempts SET {later}")
    kapelle.start()
    kapelle.wait_for_status(task_id, "running", timeout_s=60)
    kapelle.kill()
    # And now while an attempt was running.
    for table in ("tasks", "attempts"):
        _change(
            kapelle, f"UPDATE {table} SET started_at = started_at + {day} WHERE ended_at IS NULL"
        )
    kapelle.start()
    task = kapelle.wait(task_id)
    assert task["status"] == "completed"
    for ended in (task, *task["attempts"]):
        assert ended["started_at"] <= ended["ended_at"]


def test_what_the_daemon_says_of_itself_fits_together(kapelle: Instance, tmp_path: Path) -> None:
    kapelle.kill()
    kapelle.env["KAPELLE_LIMITS__MAX_ATTEMPTS"] = "2"
    kapelle.start()
    tasks = [kapelle.play("", tmp_path, workspace="in_place") for _ in range(12)]
    told = set()
    while kapelle.task(tasks[-1])["status"] in {"queued", "running"}:
        found = kapelle.get("/daemon")
        told.add((found["running"], found["held"]))
    assert {running for running, held in told if held and "2 of 2" in held} <= {2}, told
    assert not [held for running, held in told if running == 2 and not held], told
