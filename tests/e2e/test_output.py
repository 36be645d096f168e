"""Any output is survived and shown as it was; secrets are not."""

import base64
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from tests.e2e.support.instance import Instance

_MB = 1_000_000


def _digest_of_output(instance: Instance, task_id: str) -> tuple[str, int]:
    digest, offset = hashlib.sha256(), 0
    while True:
        path = f"/tasks/{task_id}/output?offset={offset}&limit=16000000"
        response, data = instance.request("GET", path)
        if not data:
            assert response.headers["X-Complete"] == "true"
            return digest.hexdigest(), offset
        digest.update(data)
        offset = int(response.headers["X-Next-Offset"])


@pytest.mark.timeout(300)
def test_a_gibibyte_of_output_is_kept_to_the_byte_in_bounded_memory(
    kapelle: Instance, tmp_path: Path, exhaustive: bool
) -> None:
    """A quarter of that, unless everything is tried."""
    megabytes = 1024 if exhaustive else 256
    kapelle.cli(
        "config", "set", "agents.flood.command", '["/bin/sh", "-c", "cat \\"$0\\"", "{prompt}"]'
    )
    block = bytes(range(256)) * 4096
    source = tmp_path / "source"
    digest = hashlib.sha256()
    with source.open("wb") as file:
        for _ in range(megabytes):
            file.write(block)
            digest.update(block)
    assert kapelle.process is not None
    daemon = psutil.Process(kapelle.process.pid)
    before = daemon.memory_info().rss
    task_id = kapelle.submit(str(source), tmp_path, agent="flood")
    most_daemon = most_shim = 0
    while (task := kapelle.task(task_id))["status"] in {"queued", "running"}:
        most_daemon = max(most_daemon, daemon.memory_info().rss)
        for process in kapelle.processes():
            with suppress(psutil.NoSuchProcess):
                if "spawner.py" in " ".join(process.cmdline()):
                    most_shim = max(most_shim, process.memory_info().rss)
        time.sleep(0.1)
    assert task["status"] == "completed", task["reason"]
    size = megabytes * len(block)
    assert task["attempts"][0]["output_bytes"] == size
    assert _digest_of_output(kapelle, task_id) == (digest.hexdigest(), size)
    assert most_shim <= 20 * _MB
    assert most_daemon - before <= 50 * _MB


def test_a_line_of_100_mb_is_kept_and_can_be_read(kapelle: Instance, tmp_path: Path) -> None:
    script = 'head -c 100000000 /dev/zero | tr "\\0" y; echo; echo the end'
    kapelle.cli("config", "set", "agents.sh.command", '["/bin/sh", "-c", "{prompt}"]')
    task_id = kapelle.submit(script, tmp_path, agent="sh")
    task = kapelle.wait(task_id, 120)
    assert task["status"] == "completed"
    assert task["attempts"][0]["output_bytes"] == 100_000_001 + len("the end\n")
    expected = hashlib.sha256(b"y" * 100_000_000 + b"\nthe end\n").hexdigest()
    assert _digest_of_output(kapelle, task_id)[0] == expected
    assert kapelle.cli("logs", task_id, "--tail", "1").stdout.strip() == "the end"


def test_nul_and_invalid_utf8_survive_and_reach_no_terminal(
    kapelle: Instance, tmp_path: Path
) -> None:
    kapelle.cli("config", "set", "agents.sh.command", '["/bin/sh", "-c", "{prompt}"]')
    script = r"printf 'a\0b\377\376c\033]52;c;ZXZpbA==\007d\n'"
    task_id = kapelle.submit(script, tmp_path, agent="sh")
    task = kapelle.wait(task_id)
    assert task["status"] == "completed"
    raw = b"a\0b\xff\xfec\x1b]52;c;ZXZpbA==\x07d\n"
    assert kapelle.output(task_id) == raw
    command = [sys.executable, "-m", "kapelle", "logs", task_id, "--raw"]
    assert subprocess.run(command, env=kapelle.env, capture_output=True, check=True).stdout == raw
    shown = kapelle.cli("logs", task_id).stdout
    assert "\x1b" not in shown
    assert "\0" not in shown


def test_a_secret_never_reaches_disk_database_or_api(tmp_path: Path) -> None:
    canary = "s3cr3t-C4nary/with+odd=chars&more"
    own = "task-own-pa55word-value"
    instance = Instance(tmp_path / "home", DEPLOY_TOKEN=canary)
    instance.env["KAPELLE_ENVIRONMENT__PASS"] = '["DEPLOY_TOKEN"]'
    instance.start()
    try:
        script = tmp_path / "leak.sh"
        encoded = base64.b64encode(canary.encode()).decode()
        script.write_text(
            'echo "plain $DEPLOY_TOKEN"; printf %s "$DEPLOY_TOKEN" | base64\n'
            'echo "$MY_PASSWORD" >&2\n'
            'for c in $(printf %s "$DEPLOY_TOKEN" | fold -w1); do printf %s "$c"; done; echo\n'
            f"echo '{quote(canary, safe='')}'; env\n",
            encoding="utf-8",
        )
        instance.cli("config", "set", "agents.sh.command", '["/bin/sh", "{prompt}"]', check=True)
        task_id = instance.submit(
            str(script),
            tmp_path,
            agent="sh",
            env={"MY_PASSWORD": own},
            checks=['echo "$DEPLOY_TOKEN $MY_PASSWORD"'],
        )
        task = instance.wait(task_id)
        assert task["status"] == "completed", task["reason"]
        assert task["env"] == ["MY_PASSWORD"]
        assert b"plain [redacted]" in instance.output(task_id)
        shown = str(task) + instance.output(task_id).decode("utf-8", "replace")
        shown += instance.output(task_id, "err").decode("utf-8", "replace")
        shown += instance.cli("status", task_id).stdout + instance.cli("logs", task_id).stdout
        shown += str(instance.get("/tasks")) + instance.cli("config", "show").stdout
        forms = (canary, encoded, quote(canary, safe=""), own)
        for form in forms:
            assert form not in shown
        instance.stop()
        kept = [path for path in instance.home.root.rglob("*") if path.is_file()]
        for path in kept:
            content = path.read_bytes()
            assert canary.encode() not in content, path
            assert encoded.encode() not in content, path
            if path.parent != instance.home.secrets:
                assert own.encode() not in content, path
        (secret_file,) = instance.home.secrets.iterdir()
        assert secret_file.stat().st_mode & 0o777 == 0o600
    finally:
        instance.destroy()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB; mounting one needs a user namespace or root."""
    path = tmp_path / "small"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("mounting a small disk needs root")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_makes_the_agent_wait_and_nothing_is_lost(
    small_disk: Path, tmp_path: Path
) -> None:
    instance = Instance(small_disk / "home", KAPELLE_LIMITS__MIN_FREE_DISK_MB="0")
    instance.start()
    try:
        instance.cli(
            "config", "set", "agents.sh.command", '["/bin/sh", "-c", "{prompt}"]', check=True
        )
        script = "yes 0123456789abcdef | head -c 40000000; echo; echo the end"
        task_id = instance.submit(script, tmp_path, agent="sh")
        later = instance.submit("echo later", tmp_path, agent="sh", depends_on=[task_id])
        deadline = time.monotonic() + 30
        while psutil.disk_usage(str(small_disk)).free > 64 * 1024:
            assert time.monotonic() < deadline, "the disk never filled"
            time.sleep(0.1)
        time.sleep(1.5)
        assert instance.task(task_id)["status"] == "running"
        subprocess.run(["mount", "-o", "remount,size=96m", str(small_disk)], check=True)
        task = instance.wait(task_id, 60)
        assert task["status"] == "completed", task["reason"]
        expected = (b"0123456789abcdef\n" * 2352942)[:40_000_000] + b"\nthe end\n"
        assert _digest_of_output(instance, task_id)[0] == hashlib.sha256(expected).hexdigest()
        assert instance.wait(later)["status"] == "completed"
    finally:
        instance.destroy()
