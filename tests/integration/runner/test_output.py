"""Any output is survived, byte for byte, in little memory; and a full disk only makes it wait."""

import asyncio
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kapelle.domain.task import Exit
from kapelle.runner.process_dir import Launch, ProcessEnd
from kapelle.runner.redaction import spell_secrets
from kapelle.runner.runner import Runner

from .harness import launch, python, shell, until

MAX_RSS = 20_000_000
SECRETS = ["sk-ant-api03-abcDEF123456", "ghp_0123456789abcdefABCDEF", 'pa ss/w+ord$"x<&>']


async def watched(runner: Runner, job: Launch) -> tuple[ProcessEnd, int]:
    """The end of a run, and the most memory that its shim had meanwhile."""
    task = asyncio.create_task(runner.execute(job))
    run_json = job.process_dir / "run.json"
    await until(lambda: run_json.exists() or task.done())
    shim = psutil.Process(json.loads(run_json.read_bytes())["shim"]["pid"])
    most = 0
    while not task.done():
        try:
            most = max(most, shim.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        await asyncio.sleep(0.02)
    return await task, most


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def test_any_byte(any_runner: Runner, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000 + b"\0\xff\xfe\n\r\n" + os.urandom(100_001)
    (tmp_path / "data").write_bytes(data)
    ended = await any_runner.execute(shell(tmp_path / "run", "cat data; cat data >&2"))
    assert (tmp_path / "run/out.log").read_bytes() == data
    assert (tmp_path / "run/err.log").read_bytes() == data
    assert (ended.out_bytes, ended.err_bytes) == (len(data), len(data))


async def test_one_line_of_100_megabytes(any_runner: Runner, tmp_path: Path) -> None:
    job = shell(tmp_path / "run", "head -c 100000000 /dev/zero | tr '\\0' x")
    ended, most = await watched(any_runner, job)
    assert ended.out_bytes == 100_000_000
    assert digest(tmp_path / "run/out.log") == hashlib.sha256(b"x" * 100_000_000).hexdigest()
    assert most <= MAX_RSS


async def test_a_gibibyte_with_secrets_to_look_for(
    any_runner: Runner, tmp_path: Path, exhaustive: bool
) -> None:
    size = 1 << (30 if exhaustive else 28)
    block = bytes(range(32, 127)) + b" and some words of an agent\n"
    (tmp_path / "block").write_bytes(block * (1 << 14))
    script = f"while cat block; do :; done | head -c {size}"
    job = shell(tmp_path / "run", script, redact=spell_secrets(SECRETS))
    ended, most = await watched(any_runner, job)
    log = tmp_path / "run/out.log"
    assert (ended.exit.code, ended.out_bytes) == (0, size)
    assert most <= MAX_RSS
    expected = hashlib.sha256()
    piece = (tmp_path / "block").read_bytes()
    for _ in range(size // len(piece)):
        expected.update(piece)
    expected.update(piece[: size % len(piece)])
    assert digest(log) == expected.hexdigest()
    log.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def grow(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)


async def test_a_full_disk_makes_the_agent_wait(
    any_runner: Runner, tmp_path: Path, small_disk: Path
) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "data").write_bytes(data)
    job = shell(small_disk / "run", f"cat {tmp_path}/data; echo done > {tmp_path}/done")
    task = asyncio.create_task(any_runner.execute(job))
    log = small_disk / "run/out.log"
    await until(lambda: log.exists() and log.stat().st_size > 900_000)
    await asyncio.sleep(0.7)
    assert not task.done()
    assert not (tmp_path / "done").exists()
    grow(small_disk)
    ended = await asyncio.wait_for(task, 10)
    assert (ended.exit.code, ended.out_bytes) == (0, len(data))
    assert log.read_bytes() == data


async def test_a_timeout_is_kept_while_the_disk_is_full(
    any_runner: Runner, small_disk: Path
) -> None:
    job = shell(small_disk / "run", "cat /dev/zero", timeout_s=0.5)
    task = asyncio.create_task(any_runner.execute(job))
    await until((small_disk / "run/run.json").exists)
    agent = json.loads((small_disk / "run/run.json").read_bytes())["agent"]["pid"]
    await until(lambda: not psutil.pid_exists(agent), 5)
    assert not task.done()
    grow(small_disk)
    ended = await asyncio.wait_for(task, 10)
    assert (ended.exit, ended.ended_by) == (Exit(kind="signaled", signal=15), "timeout")
    assert ended.out_bytes == (small_disk / "run/out.log").stat().st_size


async def test_a_disk_that_is_full_from_the_beginning(
    any_runner: Runner, small_disk: Path, tmp_path: Path
) -> None:
    (small_disk / "run").mkdir(mode=0o700)
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(bytes(2_000_000))
    with pytest.raises(OSError, match="No space left"):
        await any_runner.execute(shell(small_disk / "run", f"echo ran >> {tmp_path}/ran"))
    assert not (tmp_path / "ran").exists()
    grow(small_disk)
    await any_runner.execute(shell(small_disk / "run", f"echo ran >> {tmp_path}/ran"))
    assert (tmp_path / "ran").read_text() == "ran\n"


async def test_secrets_never_reach_the_disk(any_runner: Runner, tmp_path: Path) -> None:
    spellings = spell_secrets(SECRETS)
    assert len(spellings) >= 14
    (tmp_path / "said").write_bytes(b"\n".join(spellings) + b"\nlast words " + spellings[0][:-1])
    script = "import os\nfor b in open('said', 'rb').read(): os.write(1, bytes([b]))"
    await any_runner.execute(python(tmp_path / "run", script, redact=spellings))
    expected = b"[redacted]\n" * len(spellings) + b"last words "
    found = (tmp_path / "run/out.log").read_bytes()
    assert found.startswith(expected)
    assert not any(spelling in found for spelling in spellings)


async def test_the_output_of_a_hundred_agents(any_runner: Runner, tmp_path: Path) -> None:
    jobs = [launch(tmp_path / f"run{n}", ["seq", str(n), "20000"]) for n in range(100)]
    ended = await asyncio.gather(*(any_runner.execute(job) for job in jobs))
    assert all(one.exit.code == 0 for one in ended)
    for number, job in enumerate(jobs):
        lines = (job.process_dir / "out.log").read_text().split()
        assert lines == [str(n) for n in range(number, 20001)]
