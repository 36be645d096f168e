"""kill -9 of anything: agents go on, verdicts are right, one daemon rules."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.daemons import daemon_factory
from tests.e2e.support.instance import Instance


def _live(instance: Instance, task_id: str) -> dict[str, dict[str, int]]:
    """The run.json of a task's running attempt."""
    attempt = instance.wait_for_status(task_id, "running")["attempts"][-1]["id"]
    path = instance.home.attempts / attempt / "run.json"
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, "the agent never started"
        time.sleep(0.01)
    found: dict[str, dict[str, int]] = json.loads(path.read_bytes())
    return found


def _alive(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
            != "Z"
        )
    except FileNotFoundError:
        return False


def _await_dead(pid: int, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while _alive(pid):
        assert time.monotonic() < deadline, f"{pid} is still alive"
        time.sleep(0.02)


def test_an_agent_outlives_its_daemon_and_the_next_one_hears_its_result(
    kapelle: Instance, tmp_path: Path
) -> None:
    part = '[[do]]\nsay = "one"\n[[do]]\nsleep = 3\n[[do]]\nsay = "two"\n[[do]]\nresult = "both"'
    task_id = kapelle.play(part, tmp_path)
    agent = _live(kapelle, task_id)["agent"]["pid"]
    kapelle.kill()
    time.sleep(0.5)
    assert _alive(agent)
    kapelle.start()
    task = kapelle.wait(task_id)
    assert task["status"] == "completed"
    assert task["result"] == "both"
    assert len(task["attempts"]) == 1


def test_a_daemon_that_is_started_cold_goes_on_with_what_the_one_before_began(
    tmp_path: Path,
) -> None:
    instance = Instance(tmp_path / "home")
    try:
        instance.spawn_cold()
        instance.await_ready()
        task_id = instance.play('[[do]]\nsleep = 3\n[[do]]\nresult = "done"', tmp_path)
        _live(instance, task_id)
        instance.kill()
        daemon = instance.spawn_cold()
        instance.await_ready()
        task = instance.wait(task_id)
        assert (task["result"], len(task["attempts"])) == ("done", 1)
        instance.stop()
        assert daemon.returncode == 0
    finally:
        instance.destroy()


def test_an_agent_that_ends_while_no_daemon_runs_is_judged_by_the_next_one(
    kapelle: Instance, tmp_path: Path
) -> None:
    task_id = kapelle.play('[[do]]\nsleep = 0.5\n[[do]]\nfail = "broke"\ncode = 7', tmp_path)
    agent = _live(kapelle, task_id)["agent"]["pid"]
    kapelle.kill()
    _await_dead(agent)
    kapelle.start()
    task = kapelle.wait(task_id)
    assert task["status"] == "failed"
    assert task["attempts"][0]["exit"]["code"] == 7


def test_a_stopped_daemon_leaves_its_agents_alone(kapelle: Instance, tmp_path: Path) -> None:
    task_id = kapelle.play('[[do]]\nsleep = 2\n[[do]]\nresult = "done"', tmp_path)
    agent = _live(kapelle, task_id)["agent"]["pid"]
    kapelle.stop()
    assert _alive(agent)
    kapelle.start()
    assert kapelle.wait(task_id)["status"] == "completed"


def test_stop_with_agents_ends_them_and_says_so(kapelle: Instance, tmp_path: Path) -> None:
    task_id = kapelle.play("[[do]]\nhang = true", tmp_path)
    agent = _live(kapelle, task_id)["agent"]["pid"]
    done = kapelle.cli("stop", "--agents")
    assert done.returncode == 0, done.stderr
    assert not _alive(agent)
    kapelle.start()
    task = kapelle.task(task_id)
    assert task["status"] == "cancelled"
    assert task["reason"] == "stopped with the daemon"


def test_a_killed_shim_takes_its_agent_along_and_the_attempt_is_lost(
    kapelle: Instance, tmp_path: Path
) -> None:
    part = '[[do]]\nspawn = "sleep 600"\ndetached = true\n[[do]]\nhang = true'
    task_id = kapelle.play(part, tmp_path)
    run = _live(kapelle, task_id)
    time.sleep(0.3)
    os.kill(run["shim"]["pid"], signal.SIGKILL)
    began = time.monotonic()
    task = kapelle.wait(task_id, timeout_s=15)
    assert time.monotonic() - began < 10
    assert task["status"] == "failed"
    assert task["attempts"][0]["status"] == "lost"
    assert task["attempts"][0]["exit"]["kind"] == "lost"
    _await_dead(run["agent"]["pid"])
    _no_agents_left(kapelle)


def test_a_killed_daemon_and_shim_together_are_found_out_too(
    kapelle: Instance, tmp_path: Path
) -> None:
    task_id = kapelle.play("[[do]]\nhang = true", tmp_path)
    run = _live(kapelle, task_id)
    kapelle.kill()
    os.kill(run["shim"]["pid"], signal.SIGKILL)
    kapelle.start()
    task = kapelle.wait(task_id)
    assert task["attempts"][0]["exit"]["kind"] == "lost"
    _no_agents_left(kapelle)


def test_a_forged_pid_is_never_signalled(kapelle: Instance, tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        task_id = kapelle.play("[[do]]\nhang = true", tmp_path)
        run = _live(kapelle, task_id)
        kapelle.kill()
        os.kill(run["shim"]["pid"], signal.SIGKILL)
        attempt = kapelle.home.attempts.glob("attempt_*").__next__()
        for name in ("claim", "run.json"):
            forged = json.loads((attempt / name).read_bytes())
            for part in (forged, forged.get("shim", {}), forged.get("agent", {})):
                if "pid" in part:
                    part["pid"] = bystander.pid
            (attempt / name).unlink()
            (attempt / name).write_text(json.dumps(forged), encoding="utf-8")
        kapelle.start()
        kapelle.wait(task_id)
        kapelle.post(f"/tasks/{task_id}/retry")
        kapelle.post(f"/tasks/{task_id}/cancel")
        kapelle.wait(task_id)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_work_goes_on_after_the_name_of_the_home_was_lost(
    kapelle: Instance, tmp_path: Path
) -> None:
    task_id = kapelle.play('[[do]]\nsleep = 3\n[[do]]\nresult = "done"', tmp_path)
    _live(kapelle, task_id)
    kapelle.kill()
    kapelle.home.identity.unlink()
    kapelle.start()
    task = kapelle.wait(task_id)
    assert (task["status"], len(task["attempts"])) == ("completed", 1)


def test_of_twenty_daemons_started_at_once_one_stays(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home")
    instance.home.root.mkdir()
    logs = [tmp_path / f"{number}.log" for number in range(20)]
    daemons = [daemon_factory().start_daemon(instance.env, log) for log in logs]
    try:
        deadline = time.monotonic() + 90
        while sum(daemon.poll() is None for daemon in daemons) > 1:
            assert time.monotonic() < deadline, "more than one daemon is still there"
            time.sleep(0.1)
        (winner,) = [daemon for daemon in daemons if daemon.poll() is None]
        instance.await_ready()
        assert instance.get("/daemon")["pid"] == winner.pid
        for daemon, log in zip(daemons, logs, strict=True):
            if daemon is not winner:
                assert daemon.returncode == 2
                assert f"(process {winner.pid})" in log.read_text(encoding="utf-8")
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.wait()
        instance.destroy()


def _no_agents_left(instance: Instance) -> None:
    deadline = time.monotonic() + 10
    mark = "KAPELLE_RUN_DIR"
    while [p for p in instance.processes() if mark in p.environ()]:
        assert time.monotonic() < deadline, "a process of an agent is still there"
        time.sleep(0.05)


def test_an_unfinished_token_file_opens_nothing(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home")
    instance.home.root.mkdir()
    instance.home.token.touch(mode=0o600)
    instance.start()
    try:
        assert len(instance.home.token.read_text(encoding="ascii")) > 40
        assert instance.home.token.stat().st_mode & 0o777 == 0o600
    finally:
        instance.destroy()
