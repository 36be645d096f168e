"""The daemon doubts its own files: database, socket, lock, token, and the room on the disk."""

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kapelle.store import backup
from tests.e2e.support.instance import ApiError, Instance

_SLEEP = '[[do]]\nrun = "sleep 600"'


def _await(what: Callable[[], object], instance: Instance, timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, instance.log_tail()
        time.sleep(0.05)


def _health(instance: Instance) -> int:
    return instance.request("GET", "/healthz")[0].status


def test_a_database_that_is_gone_is_noticed_and_its_rows_are_rescued(kapelle: Instance) -> None:
    done = kapelle.submit("hello")
    kapelle.wait(done)
    running = kapelle.play(_SLEEP)
    kapelle.wait_for_status(running, "running")
    for path in kapelle.home.root.glob("kapelle.db*"):
        path.unlink()
    assert _health(kapelle) == 503
    with pytest.raises(ApiError) as refused:
        kapelle.submit("never stored")
    assert (refused.value.status, refused.value.body["error"]["code"]) == (503, "unavailable")
    assert "is missing" in refused.value.body["error"]["message"]
    assert "kapelle stop" in refused.value.body["error"]["hint"]
    kapelle.cli("stop", check=True)
    # A new daemon refuses to begin anew beside what is there, and says what to do.
    kapelle.spawn()
    kapelle.await_death()
    assert "there was work here before" in kapelle.log_tail()
    rescued = backup.list_backups(kapelle.home.backups)[-1] / "kapelle.db"
    assert str(rescued) in kapelle.log_tail().splitlines()[-1]
    for path in kapelle.home.root.glob("kapelle.db*"):
        path.unlink()
    shutil.copy(rescued, kapelle.home.database)
    kapelle.start()
    assert kapelle.task(done)["status"] == "completed"
    assert kapelle.task(running)["status"] == "running"
    kapelle.post(f"/tasks/{running}/cancel")
    assert kapelle.wait(running)["status"] == "cancelled"


def test_a_damaged_page_makes_the_daemon_unwell(kapelle: Instance) -> None:
    for _ in range(3):
        kapelle.wait(kapelle.submit("x" * 2000))
    copy = kapelle.post("/backup")["path"]
    with contextlib.closing(sqlite3.connect(kapelle.home.database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with kapelle.home.database.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    # Found by whoever reads the page, at the latest by the next backup.
    with pytest.raises(ApiError) as refused:
        kapelle.post("/backup")
    assert refused.value.status == 503
    assert _health(kapelle) == 503
    told = kapelle.request("GET", "/healthz")[1].decode()
    assert "damaged" in told
    assert copy in told


def test_a_lost_socket_is_made_anew(kapelle: Instance) -> None:
    kapelle.home.socket.unlink()
    _await(kapelle.home.socket.exists, kapelle)
    assert kapelle.wait(kapelle.submit("hello"))["status"] == "completed"
    assert kapelle.home.socket.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("lost", [["daemon.sock"], ["daemon.sock", "daemon.json"]])
def test_stop_finds_a_daemon_without_its_socket(kapelle: Instance, lost: list[str]) -> None:
    for name in lost:
        (kapelle.home.root / name).unlink()
    done = kapelle.cli("stop")
    assert (done.returncode, "The daemon has stopped." in done.stderr) == (0, True), done.stderr
    assert kapelle.process is not None
    assert kapelle.process.wait(10) == 0


def test_a_lost_lock_is_taken_again_and_a_lost_token_written_anew(kapelle: Instance) -> None:
    token = kapelle.home.token.read_bytes()
    for path in (kapelle.home.lock, kapelle.home.token, kapelle.home.info):
        path.unlink()
    _await(lambda: kapelle.home.info.exists() and kapelle.home.lock.exists(), kapelle)
    assert kapelle.home.token.read_bytes() == token
    assert (
        kapelle.home.lock.read_text(encoding="ascii")
        == f"{kapelle.process and kapelle.process.pid}\n"
    )
    second = Instance(kapelle.home.root).spawn_cold()
    assert second.wait(60) == 2
    assert "already running" in kapelle.log_tail()
    assert _health(kapelle) == 200


def test_whoever_lost_its_lock_to_another_daemon_leaves(kapelle: Instance) -> None:
    assert kapelle.process is not None
    kapelle.home.lock.unlink()
    with kapelle.home.lock.open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert kapelle.process.wait(20) == 0
    assert "this daemon stops" in kapelle.log_tail()
    assert kapelle.home.socket.exists(), "it may be the other one's"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_daemon_starts_on_a_full_disk_and_cancels(small_disk: Path) -> None:
    instance = Instance(small_disk / "home", KAPELLE_LIMITS__MIN_FREE_DISK_MB="0")
    try:
        instance.start()
        task_id = instance.play(_SLEEP)
        instance.wait_for_status(task_id, "running")
        _await(instance.home.reserve.exists, instance)
        time.sleep(0.3)
        with open(small_disk / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))
        instance.kill()
        instance.start()
        instance.post(f"/tasks/{task_id}/cancel")
        assert instance.wait(task_id)["status"] == "cancelled"
    finally:
        instance.destroy()


def test_nobody_is_told_that_all_is_well_before_it_is(kapelle: Instance) -> None:
    """Whoever gets an answer finds the daemon's record and its first event."""
    for _ in range(3):
        kapelle.kill()
        kapelle.home.info.unlink()
        kapelle.start()
        assert kapelle.process is not None
        assert json.loads(kapelle.home.info.read_bytes())["pid"] == kapelle.process.pid
