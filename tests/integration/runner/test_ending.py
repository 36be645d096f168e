"""Every way to an end: timeout, stop, leftovers; and nobody is left alive."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from kapelle.domain.task import Exit
from kapelle.runner.runner import Runner

from .harness import is_alive, launch, noted_pids, python, shell, stubborn, until

KILLED = Exit(kind="signaled", signal=signal.SIGKILL)
TERMINATED = Exit(kind="signaled", signal=signal.SIGTERM)


async def test_timeout(runner: Runner, tmp_path: Path) -> None:
    ended = await runner.execute(launch(tmp_path / "run", ["sleep", "60"], timeout_s=0.2))
    assert (ended.exit, ended.ended_by) == (TERMINATED, "timeout")
    assert 0.2 <= ended.duration_s < 1


async def test_timeout_with_a_chance_to_finish(runner: Runner, tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 5' TERM; while true; do sleep 0.05; done"
    ended = await runner.execute(shell(tmp_path / "run", script, timeout_s=0.3, grace_s=5))
    assert (ended.exit, ended.ended_by) == (Exit(kind="exited", code=5), "timeout")
    assert (tmp_path / "run/out.log").read_bytes() == b"saved\n"


async def test_timeout_of_a_deaf_tree(runner: Runner, tmp_path: Path) -> None:
    job = stubborn(tmp_path / "run", tmp_path / "pids", "time.sleep(1000)", timeout_s=0.5)
    ended = await runner.execute(job)
    assert (ended.exit, ended.ended_by) == (KILLED, "timeout")
    assert 1.5 <= ended.duration_s < 3
    assert len(noted_pids(tmp_path / "pids")) == 2
    assert not any(is_alive(pid) for pid in noted_pids(tmp_path / "pids"))


async def test_stop_of_a_deaf_tree(runner: Runner, tmp_path: Path) -> None:
    job = stubborn(tmp_path / "run", tmp_path / "pids", "time.sleep(1000)", grace_s=0.3)
    task = asyncio.create_task(runner.execute(job))
    await until(lambda: len(noted_pids(tmp_path / "pids")) == 2)
    runner.stop(tmp_path / "run", "the user said so")
    runner.stop(tmp_path / "run", "another reason")
    ended = await task
    assert (ended.exit, ended.ended_by, ended.stop_reason) == (KILLED, "stop", "the user said so")
    assert not any(is_alive(pid) for pid in noted_pids(tmp_path / "pids"))
    runner.stop(tmp_path / "run", "too late")
    assert await runner.execute(job) == ended


async def test_stop_wakes_a_stopped_agent(runner: Runner, tmp_path: Path) -> None:
    script = "trap 'exit 5' TERM; echo $$; while true; do sleep 0.05; done"
    task = asyncio.create_task(runner.execute(shell(tmp_path / "run", script, grace_s=20)))
    await until(lambda: _bytes(tmp_path / "run/out.log").endswith(b"\n"))
    os.kill(int(_bytes(tmp_path / "run/out.log")), signal.SIGSTOP)
    runner.stop(tmp_path / "run", "stop")
    assert (await task).exit == Exit(kind="exited", code=5)


async def test_stop_before_anything_began(any_runner: Runner, tmp_path: Path) -> None:
    any_runner.stop(tmp_path / "run", "never mind")
    ended = await any_runner.execute(shell(tmp_path / "run", "echo ran >> ran"))
    assert ended.exit == Exit(kind="not_started")
    assert (ended.ended_by, ended.stop_reason) == ("stop", "never mind")
    assert not (tmp_path / "ran").exists()


async def test_a_shim_honours_a_stop_that_was_there_first(
    any_runner: Runner, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run/stop").write_text("earlier")
    ended = await any_runner.execute(shell(tmp_path / "run", "echo ran >> ran"))
    assert ended.exit == Exit(kind="not_started")
    assert (ended.ended_by, ended.stop_reason) == ("stop", "earlier")
    assert not (tmp_path / "ran").exists()


async def test_stops_at_any_moment(runner: Runner, tmp_path: Path) -> None:
    async def run_and_stop(number: int) -> None:
        process_dir = tmp_path / f"run{number}"
        task = asyncio.create_task(
            runner.execute(launch(process_dir, ["sleep", "60"], grace_s=0.5))
        )
        await asyncio.sleep(number * 0.001)
        runner.stop(process_dir, "stop")
        ended = await task
        assert ended.ended_by == "stop"
        assert ended.exit.kind in {"not_started", "signaled"}

    for number in range(0, 40, 2):
        await run_and_stop(number)


async def test_leftovers_do_not_hold_the_run(runner: Runner, tmp_path: Path) -> None:
    job = stubborn(tmp_path / "run", tmp_path / "pids", "time.sleep(0.2); sys.exit(4)", grace_s=0.3)
    ended = await runner.execute(job)
    assert (ended.exit, ended.ended_by) == (Exit(kind="exited", code=4), None)
    assert ended.leftovers == 2
    assert not any(is_alive(pid) for pid in noted_pids(tmp_path / "pids"))


async def test_the_last_words_of_a_child_are_kept(runner: Runner, tmp_path: Path) -> None:
    script = "(sleep 0.1; echo late) & echo early"
    ended = await runner.execute(shell(tmp_path / "run", script))
    assert (tmp_path / "run/out.log").read_bytes() == b"early\nlate\n"
    assert (ended.exit.code, ended.leftovers) == (0, 0)


async def test_fast_forkers_die(runner: Runner, tmp_path: Path) -> None:
    script = """
import os, time
for chain in range(8):
    if os.fork() == 0:
        while True:
            os.setsid() if os.getsid(0) != os.getpid() else None
            if os.fork():
                os._exit(0)
            time.sleep(0.002)
time.sleep(1000)
"""
    job = python(tmp_path / "run", script, timeout_s=0.3, grace_s=0.1)
    ended = await runner.execute(job)
    assert ended.ended_by == "timeout"
    assert ended.detail is None


async def test_an_outsider_with_our_stdout_does_not_hold_the_run(
    any_runner: Runner, tmp_path: Path
) -> None:
    script = "echo said; exec sleep 60"
    task = asyncio.create_task(any_runner.execute(shell(tmp_path / "run", script, timeout_s=1)))
    await until(lambda: _bytes(tmp_path / "run/out.log") == b"said\n")
    pid = int((tmp_path / "run/run.json").read_text().split('"agent": {"pid": ')[1].split(",")[0])
    outsider = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
    try:
        ended = await asyncio.wait_for(task, 10)
    finally:
        os.close(outsider)
    assert ended.ended_by == "timeout"
    assert ended.out_bytes == 5


async def test_cancelling_only_ends_the_watching(runner: Runner, tmp_path: Path) -> None:
    job = shell(tmp_path / "run", "echo ran >> ran; sleep 0.5; exit 6")
    task = asyncio.create_task(runner.execute(job))
    await until((tmp_path / "ran").exists)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert (await runner.execute(job)).exit.code == 6
    assert (tmp_path / "ran").read_text() == "ran\n"


async def test_the_end_is_seen_at_once(any_runner: Runner, tmp_path: Path) -> None:
    began = time.monotonic()
    for number in range(10):
        await any_runner.execute(launch(tmp_path / f"run{number}", ["true"]))
    assert time.monotonic() - began < 2, "something polls or lingers"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
async def test_a_shim_ignores_the_terminal(
    any_runner: Runner, tmp_path: Path, number: signal.Signals
) -> None:
    task = asyncio.create_task(any_runner.execute(shell(tmp_path / "run", "sleep 0.3; echo done")))
    await until((tmp_path / "run/run.json").exists)
    shim = int((tmp_path / "run/run.json").read_text().split('"shim": {"pid": ')[1].split(",")[0])
    os.kill(shim, number)
    assert (await task).exit.code == 0


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
