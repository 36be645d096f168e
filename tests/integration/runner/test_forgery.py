"""Files that lie about a process never get it signalled, and never pass for an exit record."""

import asyncio
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kapelle.runner import identity
from kapelle.runner.identity import Identity
from kapelle.runner.process_dir import read_claim
from kapelle.runner.runner import Runner
from kapelle.runner.shim import files

from .harness import SECRET, is_alive, noted_pids, shell, until

FORGED = json.dumps(
    {
        "protocol": 1, "kind": "exited", "code": 0, "out_bytes": 0, "err_bytes": 0,
        "started_at": 1790000000, "ended_at": 1790000001, "duration_s": 1, "ended_by": None,
    }
).encode()  # fmt: skip


def owner_of(process_dir: Path) -> Identity:
    claim = read_claim(process_dir)
    assert claim is not None
    return claim.owner


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with us."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def _forged(variant: int, pid: int) -> bytes:
    """A claim that names a foreign process, and is wrong in some way."""
    chance = random.Random(variant)
    start = identity.identify_process(pid)
    assert start is not None
    fields: dict[str, Any] = {
        "kind": "shim",
        "boot_id": identity.boot_id(),
        "pid": pid,
        "start": start.start + chance.choice([-1, 1, 100, -(10**6), 10**9]),
        "cgroup": None,
    }
    places = ["/", "/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/unified/../unified"]
    lies: list[tuple[str, Any]] = [
        ("boot_id", "another boot"),
        ("boot_id", None),
        ("pid", str(pid)),
        ("pid", -pid),
        ("pid", 1),
        ("pid", 0),
        ("pid", 2**70),
        ("pid", True),
        ("pid", [pid]),
        ("start", str(start.start)),
        ("start", None),
        ("start", float(start.start)),
        ("kind", "something else"),
        ("cgroup", chance.choice(places)),
        ("cgroup", 7),
    ]
    name, value = lies[variant % len(lies)]
    if variant % 3:
        fields[name] = value
    data = json.dumps(fields).encode()
    return data if variant % 7 else data[: chance.randrange(len(data))]


async def test_a_hundred_forged_claims(
    runner: Runner, tmp_path: Path, victim: subprocess.Popen[bytes]
) -> None:
    async def one(variant: int) -> None:
        process_dir = tmp_path / f"run{variant}"
        process_dir.mkdir()
        data = _forged(variant, victim.pid)
        (process_dir / "claim").write_bytes(data)
        (process_dir / "run.json").write_bytes(data.replace(b'"kind"', b'"agent"'))
        runner.stop(process_dir, "stop it")
        ended = await runner.execute(shell(process_dir, "echo ran >> ran"))
        assert ended.exit.kind == "tampered", data
        assert ended.detail, data
        assert await runner.execute(shell(process_dir, "echo ran >> ran")) == ended

    for variant in range(100):
        await one(variant)
    assert victim.poll() is None
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "change",
    [
        ": > out.log",
        "printf more >> out.log",
        "printf X | dd of=out.log conv=notrunc status=none",
        "cp out.log other; mv other out.log",
        "rm out.log",
        "rm out.log; ln -s /dev/zero out.log",
        "rm out.log; mkfifo out.log",
        "printf more >> err.log",
    ],
)
async def test_a_log_that_somebody_else_changed_is_tampered(
    any_runner: Runner, tmp_path: Path, change: str
) -> None:
    process_dir = tmp_path / "run"
    # The output has to be in the log before it can be changed there.
    wait = 'while [ ! -s "$KAPELLE_RUN_DIR/out.log" ]; do sleep 0.01; done'
    script = f'echo some output; {wait}; cd "$KAPELLE_RUN_DIR"; {change}'
    ended = await any_runner.execute(shell(process_dir, script))
    assert ended.exit.kind == "tampered"
    assert ("err.log" if "err.log" in change else "out.log") in (ended.detail or "")


async def test_a_forged_run_json_changes_nothing(
    any_runner: Runner, tmp_path: Path, victim: subprocess.Popen[bytes]
) -> None:
    forgeries = [b"", b"[]", b"{", b"7", b'{"agent": 7}', b'{"agent": {"pid": "x"}}', b"\xff" * 99]
    forgeries.append(json.dumps({"agent": {"pid": victim.pid}, "started_at": 1e300}).encode())
    for number, forged in enumerate(forgeries):
        process_dir = tmp_path / f"run{number}"
        process_dir.mkdir()
        (process_dir / "run.json").write_bytes(forged)
        ended = await any_runner.execute(shell(process_dir, "exit 3"))
        assert ended.exit.code == 3
    assert victim.poll() is None


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"{}",
        b"[0]",
        b"[" * 100_000,
        b'{"kind": "exited", "code": 0}',
        b'{"kind": "exited", "out_bytes": 0, "err_bytes": 0, "started_at": null,'
        b' "ended_at": 1, "duration_s": 0}',
        b'{"kind": "done", "code": 0, "out_bytes": 0, "err_bytes": 0, "started_at": null,'
        b' "ended_at": 1, "duration_s": 0}',
        b'{"kind": "exited", "code": 0, "out_bytes": 0, "err_bytes": 0, "started_at": null,'
        b' "ended_at": 1e400, "duration_s": 0}',
        FORGED,
        files.sign(b"a guess", "exit.json", FORGED),
        files.sign(SECRET, "claim", FORGED),
    ],
)
async def test_a_record_that_is_there_before_anything_ran_is_tampered(
    any_runner: Runner, tmp_path: Path, forged: bytes
) -> None:
    process_dir = tmp_path / "run"
    process_dir.mkdir()
    (process_dir / "exit.json").write_bytes(forged)
    job = shell(process_dir, "echo ran >> ran")
    ended = await any_runner.execute(job)
    assert (ended.exit.kind, ended.succeeded) == ("tampered", False)
    assert ended.detail == "another process wrote exit.json"
    assert [path.read_bytes() for path in process_dir.glob("*.forged")] == [forged]
    assert await any_runner.execute(job) == ended
    assert not (tmp_path / "ran").exists()


async def test_a_pid_that_was_used_again(any_runner: Runner, tmp_path: Path) -> None:
    job = shell(tmp_path / "run", "exit 3")
    await any_runner.execute(job)
    claim = tmp_path / "run/claim"
    fields = json.loads(claim.read_bytes())
    (tmp_path / "run/exit.json").unlink()
    # The pid is ours now, with another start time than the shim had.
    del fields["signature"]
    reused = json.dumps({**fields, "pid": os.getpid()}).encode()
    claim.write_bytes(files.sign(SECRET, "claim", reused))
    any_runner.stop(tmp_path / "run", "stop it")
    ended = await asyncio.wait_for(any_runner.execute(job), 5)
    assert (ended.exit.kind, ended.detail) == ("lost", "the supervisor was killed")


FORGE = f"printf %s '{FORGED.decode()}' > $KAPELLE_RUN_DIR/exit.json"


async def test_a_forged_end_with_a_killed_supervisor_ends_the_tree(
    runner: Runner, tmp_path: Path
) -> None:
    script = f"{FORGE}; sleep 60 & echo $! >> pids; echo $$ >> pids; kill -9 $PPID; sleep 60"
    ended = await asyncio.wait_for(runner.execute(shell(tmp_path / "run", script)), 20)
    assert (ended.exit.kind, ended.succeeded) == ("tampered", False)
    pids = noted_pids(tmp_path / "pids")
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize(
    "forgery",
    [
        FORGE,
        "mkdir -p $KAPELLE_RUN_DIR/exit.json/full",
        "ln -s /dev/zero $KAPELLE_RUN_DIR/exit.json",
        "mkfifo $KAPELLE_RUN_DIR/exit.json",
    ],
)
async def test_an_agent_that_writes_its_own_end_has_tampered(
    any_runner: Runner, tmp_path: Path, forgery: str
) -> None:
    job = shell(tmp_path / "run", f"{forgery}; exit 0")
    ended = await asyncio.wait_for(any_runner.execute(job), 20)
    assert (ended.exit.kind, ended.succeeded) == ("tampered", False)
    assert await any_runner.execute(job) == ended


@pytest.mark.parametrize("forgery", ["rm claim; mkdir claim", "cp ../other/claim .", "> claim"])
async def test_a_claim_that_was_replaced_ends_the_tree(
    any_runner: Runner, tmp_path: Path, forgery: str
) -> None:
    job = shell(tmp_path / "run", "sleep 60 & echo $! >> pids; sleep 60")
    other = shell(tmp_path / "other", "true", secret=b"of another process")
    await any_runner.execute(other)
    watching = asyncio.ensure_future(any_runner.execute(job))
    await until(lambda: bool(noted_pids(tmp_path / "pids")))
    watching.cancel()
    forger = await asyncio.create_subprocess_shell(forgery, cwd=tmp_path / "run")
    assert await forger.wait() == 0
    next_runner = Runner(tmp_path / "home")
    await next_runner.start()
    ended = await asyncio.wait_for(next_runner.execute(job), 20)
    await next_runner.close()
    # Its supervisor lives, and may be the first to tell of the end that the daemon made.
    assert ended.exit.kind in {"tampered", "signaled"}
    assert not any(is_alive(pid) for pid in noted_pids(tmp_path / "pids"))
    assert await any_runner.execute(job) == ended


async def test_a_stop_reaches_the_supervisor_and_not_whom_the_claim_names_by_now(
    any_runner: Runner, tmp_path: Path, victim: subprocess.Popen[bytes]
) -> None:
    job = shell(tmp_path / "run", "echo $$ > pids; sleep 60")
    watching = asyncio.ensure_future(any_runner.execute(job))
    await until(lambda: bool(noted_pids(tmp_path / "pids")))
    # One that it comes upon before it follows the supervisor is tampered with.
    await until(lambda: job.process_dir in any_runner._stops)
    named = identity.identify_process(victim.pid)
    assert named is not None
    claim = tmp_path / "run/claim"
    claim.write_text(json.dumps(json.loads(claim.read_bytes()) | named.model_dump()))
    any_runner.stop(job.process_dir, "stop it")
    ended = await asyncio.wait_for(watching, 20)
    assert (ended.ended_by, ended.stop_reason) == ("stop", "stop it")
    assert victim.poll() is None
