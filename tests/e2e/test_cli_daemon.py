"""The command line and the life of the daemon: started when needed, once, and stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance

COMMAND = [sys.executable, "-m", "kapelle"]


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Instance]:
    """A home in which no daemon runs yet."""
    instance = Instance(tmp_path / "home")
    yield instance
    instance.destroy()


def daemon_pid(kapelle: Instance) -> int:
    return int(kapelle.home.lock.read_text(encoding="ascii"))


def slow_lines(count: int) -> str:
    steps = "".join(f'[[do]]\nsay = "line {n}"\n[[do]]\nsleep = 0.3\n' for n in range(count))
    return f"Count.\n```rehearsal\n{steps}```"


def follower(kapelle: Instance, prompt: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*COMMAND, "run", "-f", "-a", "rehearsal", "--in-place", prompt],
        env=kapelle.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    assert process.stdout is not None
    return process


def test_the_first_command_starts_a_daemon_and_stop_ends_it(idle: Instance) -> None:
    nobody = idle.cli("stop")
    assert (nobody.returncode, nobody.stderr) == (0, "No daemon is running.\n")
    assert "not running" in idle.cli("doctor").stdout
    assert json.loads(idle.cli("list", "--json").stdout) == []
    pid = daemon_pid(idle)
    assert f"process {pid}" in idle.cli("doctor").stdout
    assert idle.cli("list").returncode == 0
    assert daemon_pid(idle) == pid
    assert idle.cli("stop").returncode == 0
    assert not idle.home.socket.exists()
    assert pid not in [process.pid for process in idle.processes()]
    # A copy of the file alone has everything.
    assert Path(f"{idle.home.database}-wal").stat().st_size == 0


def test_twenty_at_once_start_one(idle: Instance) -> None:
    commands = [
        subprocess.Popen(
            [*COMMAND, "list", "--json"],
            env=idle.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(20)
    ]
    answers = [command.communicate(timeout=90) for command in commands]
    assert [(out, err) for out, err in answers] == [(b"[]\n", b"")] * 20
    daemons = [p for p in idle.processes() if p.cmdline()[-1:] == ["kapelle.daemon"]]
    assert len(daemons) == 1


def test_a_daemon_that_cannot_start_says_why(idle: Instance) -> None:
    idle.home.root.mkdir(parents=True)
    idle.home.config.write_text("default_agent = \n", encoding="utf-8")
    done = idle.cli("list")
    assert done.returncode == 2
    assert "config.toml is not valid TOML" in done.stderr
    assert "Traceback" not in done.stderr
    assert idle.cli("doctor").returncode == 1


def test_following_and_waiting_survive_a_crash_of_the_daemon(idle: Instance) -> None:
    process = follower(idle, slow_lines(12))
    assert process.stdout is not None
    task_id = process.stdout.readline().strip()
    waiting = subprocess.Popen(
        [*COMMAND, "wait", task_id], env=idle.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == "line 0\n"
    os.kill(daemon_pid(idle), 9)
    rest, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert rest.splitlines()[:11] == [f"line {n}" for n in range(1, 12)]
    waiting.communicate(timeout=60)
    assert waiting.returncode == 0


def test_a_stopped_daemon_is_not_brought_back_by_who_watches(idle: Instance) -> None:
    process = follower(idle, slow_lines(20))
    assert process.stdout is not None
    task_id = process.stdout.readline().strip()
    process.stdout.readline()
    idle.cli("stop", check=True)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"kapelle logs -f {task_id}" in said
    assert not idle.home.socket.exists()
    assert idle.cli("wait", task_id).returncode == 0


def test_stop_leaves_agents_alone_unless_asked(idle: Instance) -> None:
    run = ["run", "-a", "rehearsal", "--in-place", "```rehearsal\n[[do]]\nhang = true\n```"]
    task_id = idle.cli(*run, check=True).stdout.strip()
    deadline = time.monotonic() + 30
    while "the agent is working" not in idle.cli("status", task_id, "--json").stdout:
        assert time.monotonic() < deadline
    told = idle.cli("stop", check=True).stderr
    assert "Still running: 1 agent; `kapelle stop --agents` ends them." in told
    assert '"running"' in idle.cli("status", task_id, "--json").stdout
    assert "at work" not in idle.cli("stop", "--agents", check=True).stderr
    assert '"cancelled"' in idle.cli("status", task_id, "--json").stdout


def test_a_url_and_its_token(idle: Instance) -> None:
    idle.cli("list", check=True)
    url = json.loads(idle.home.info.read_text(encoding="utf-8"))["url"]
    idle.env["KAPELLE_URL"] = url
    assert idle.cli("list", "--json").stdout == "[]\n"
    idle.env["KAPELLE_TOKEN"] = "wrong"
    refused = idle.cli("list", "--json")
    assert refused.returncode == 2
    assert json.loads(refused.stderr)["error"]["code"] == "unauthorized"
    assert "did not accept the token from KAPELLE_TOKEN" in refused.stderr
    idle.env["KAPELLE_URL"] = "http://127.0.0.1:1"
    assert "Nothing answers" in idle.cli("list").stderr
    del idle.env["KAPELLE_URL"], idle.env["KAPELLE_TOKEN"]


def test_backup_and_agents(idle: Instance) -> None:
    assert Path(idle.cli("backup", check=True).stdout.strip()).exists()
    names = [agent["name"] for agent in json.loads(idle.cli("agents", "--json").stdout)]
    assert "rehearsal" in names


def test_serve_runs_in_the_foreground(idle: Instance) -> None:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--json"],
        env=idle.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["pid"] == process.pid
    idle.await_ready()
    assert daemon_pid(idle) == process.pid
    idle.cli("stop", check=True)
    assert process.wait(30) == 0
    process.stdout.close()


def test_a_closed_pipe_is_no_error(idle: Instance) -> None:
    idle.cli("config", "set", "agents.sh.command", '["sh", "-c", "{prompt}"]', check=True)
    run = ["run", "-a", "sh", "--in-place", "seq 1 100000"]
    task_id = idle.cli(*run, check=True).stdout.strip()
    idle.cli("wait", task_id, check=True)
    shell = f"{sys.executable} -m kapelle logs {task_id} | head -n 1"
    done = subprocess.run(
        ["sh", "-c", shell], env=idle.env, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_damaged_database_is_no_secret_of_the_log(idle: Instance) -> None:
    idle.cli("list", check=True)
    idle.cli("stop", check=True)
    for path in idle.home.root.glob("kapelle.db*"):
        path.unlink()
    idle.home.database.write_bytes(b"SQLite format 3\0" + b"x" * 8000)
    assert idle.cli("list").returncode == 2
    done = idle.cli("doctor")
    assert done.returncode == 1
    assert "✗ daemon: could not start the last time" in done.stdout


def test_a_database_that_is_gone_is_broken_whether_the_daemon_runs_or_not(idle: Instance) -> None:
    idle.cli("config", "set", "agents.sh.command", '["sh", "-c", "{prompt}"]', check=True)
    idle.cli("run", "-a", "sh", "--in-place", "-f", "true", check=True)
    assert "nothing is started" not in idle.cli("doctor").stdout
    for path in idle.home.root.glob("kapelle.db*"):
        path.unlink()
    done = idle.cli("doctor")
    assert (done.returncode, "✗ queue: nothing is started" in done.stdout) == (1, True), done.stdout
    idle.cli("stop")
    assert idle.cli("list").returncode == 2
    done = idle.cli("doctor")
    assert done.returncode == 1
    assert "✗ daemon: could not start the last time" in done.stdout


def test_the_doctor_looks_at_another_directory(idle: Instance, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    (place / ".git").mkdir(parents=True)
    (place / ".kapelle").mkdir()
    (place / ".kapelle" / "config.toml").write_text("a = = 1\n", encoding="utf-8")
    assert idle.cli("doctor", str(place)).returncode == 1
    assert "✗ config" not in idle.cli("doctor").stdout
    assert "is not a directory" in idle.cli("doctor", str(tmp_path / "gone")).stderr


def test_a_broken_config_does_not_make_a_running_daemon_silent(idle: Instance) -> None:
    idle.cli("list", check=True)
    idle.home.config.write_text("a = = 1\n", encoding="utf-8")
    said = idle.cli("doctor").stdout
    idle.home.config.unlink()
    assert f"Edit {idle.home.config}." in said
    assert "does not answer" not in said


def test_a_daemon_of_another_version_or_one_that_hangs_is_told_of(idle: Instance) -> None:
    idle.cli("list", check=True)
    info = json.loads(idle.home.info.read_bytes())
    idle.home.info.write_text(json.dumps({**info, "version": "0.0.1"}))
    assert "The daemon is Kapelle 0.0.1" in idle.cli("list", check=True).stderr
    pid = daemon_pid(idle)
    os.kill(pid, signal.SIGSTOP)
    try:
        command = subprocess.Popen(
            [*COMMAND, "list"], env=idle.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert command.stderr is not None
        lines = [command.stderr.readline().decode() for _ in range(2)]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "has not answered for 5 s" in "".join(lines)
    assert command.wait(30) == 0
    command.communicate()


def test_a_home_that_cannot_be_written_is_named_by_every_command(idle: Instance) -> None:
    (idle.home.root / "start.lock").mkdir(parents=True)
    for command in (["list"], ["run", "x"], ["status"]):
        refused = idle.cli(*command)
        assert refused.returncode == 2
        assert "start.lock: Is a directory" in refused.stderr


def test_the_log_holds_what_its_level_lets_through(idle: Instance) -> None:
    idle.cli("config", "set", "log.level", "warning", check=True)
    idle.cli("list", check=True)
    assert " INFO " not in idle.home.log.read_text()


def test_the_log_at_debug_has_the_decisions_and_no_text_of_agents(
    idle: Instance, repository: Path
) -> None:
    idle.cli("config", "set", "log.level", "debug", check=True)
    idle.start()
    retry = {"policy": "same", "max_attempts": 2, "delay_s": 0.1}
    steps = '[[do]]\nsay = "hush-hush"\n[[do]]\nexit = 3'
    task = idle.wait(idle.play(steps, repository, retry=retry, title="whisper"))
    first, second = (attempt["id"] for attempt in task["attempts"])
    log = idle.home.log.read_text()
    assert f"DEBUG kapelle.queue {first} is begun" in log
    assert f"{first} ended failed (crash); {task['id']} is queued next" in log
    assert f"{second} ended failed (crash); {task['id']} is failed next" in log
    assert "hush-hush" not in log
    assert "whisper" not in log
