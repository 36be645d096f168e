"""kill -9 of the daemon, of a shim, of the spawner, at random and at every failpoint."""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kapelle.domain.task import Exit
from kapelle.runner import identity
from kapelle.runner import runner as runner_module
from kapelle.runner.runner import Runner
from kapelle.runner.shim import failpoints
from kapelle.runner.shim.failpoints import ALL_FAILPOINTS
from kapelle.runner.spawner_client import install

from .harness import is_alive, launch, noted_pids, shell, stubborn, until
from .test_forgery import owner_of

REPOSITORY = Path(__file__).parents[3]
SHIM = Path(failpoints.__file__).parent
# Each agent notes that it ran, under its own name, and has something to say and to return.
SCRIPT = 'echo "$KAPELLE_RUN_DIR" >> ran; sleep 0.2; echo said; exit 7'
LOST, DONE = Exit(kind="lost"), Exit(kind="exited", code=7)
# What becomes of a run that dies there, and how often its command was executed.
AFTERMATH = {
    "shim_before_claim@1": (DONE, 1),
    "shim_before_claim": (Exit(kind="not_started"), 0),
    "shim_after_claim": (LOST, 0),
    "shim_after_fork": (LOST, 0),
    "shim_after_run_json": (LOST, 0),
    "shim_before_exit_json": (LOST, 1),
    "shim_after_exit_json": (DONE, 1),
    "runner_after_intent": (DONE, 1),
    "runner_after_spawn": (DONE, 1),
    "runner_before_return": (DONE, 1),
}


@contextmanager
def daemon(home: Path, *process_dirs: Path, point: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Another process that is the daemon of these runs."""
    command = [sys.executable, "-m", "tests.integration.runner.mortal", str(home), SCRIPT, "1"]
    env = {**os.environ, failpoints.VARIABLE: point} if point else dict(os.environ)
    process = subprocess.Popen(
        [*command, *map(str, process_dirs)], cwd=REPOSITORY, env=env, stdout=subprocess.PIPE
    )
    with process:
        yield process
        process.kill()


def test_every_failpoint_is_in_the_source_and_tested() -> None:
    sources = [*SHIM.glob("*.py"), SHIM.parent / "runner.py"]
    text = "".join(path.read_text("utf-8") for path in sources)
    assert sorted(re.findall(r'failpoint\("(\w+)"\)', text)) == sorted(ALL_FAILPOINTS)
    assert {point.partition("@")[0] for point in AFTERMATH} == set(ALL_FAILPOINTS)


@pytest.mark.parametrize("point", AFTERMATH)
async def test_failpoint(any_runner: Runner, tmp_path: Path, point: str) -> None:
    process_dir = tmp_path / "run"
    with daemon(tmp_path / "home", process_dir, point=point) as process:
        await asyncio.to_thread(process.wait, 30)
        assert (process.returncode == -signal.SIGKILL) == point.startswith("runner_")
    expected, times = AFTERMATH[point]
    job = shell(process_dir, SCRIPT)
    ended = await asyncio.wait_for(any_runner.execute(job), 5)
    assert ended.exit == expected
    assert _ran(tmp_path) == [str(process_dir)] * times
    assert await any_runner.execute(job) == ended
    if expected == DONE:
        assert (process_dir / "out.log").read_bytes() == b"said\n"


async def test_daemons_killed_at_random(any_runner: Runner, tmp_path: Path) -> None:
    process_dirs = [tmp_path / f"run{number}" for number in range(30)]
    chance = random.Random(20)
    for _ in range(5):
        with daemon(tmp_path / "home", *process_dirs) as process:
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            await asyncio.sleep(chance.uniform(0, 0.15))
            process.kill()
    jobs = [shell(process_dir, SCRIPT) for process_dir in process_dirs]
    ended = await asyncio.gather(*(any_runner.execute(job) for job in jobs))
    assert [one.exit for one in ended] == [DONE] * 30
    assert sorted(_ran(tmp_path)) == sorted(map(str, process_dirs))
    assert {(process_dir / "out.log").read_bytes() for process_dir in process_dirs} == {b"said\n"}


async def test_a_killed_shim_takes_its_tree_along(runner: Runner, tmp_path: Path) -> None:
    job = stubborn(tmp_path / "run", tmp_path / "pids", "print('said', flush=True); time.sleep(99)")
    task = asyncio.create_task(runner.execute(job))
    await until(lambda: len(noted_pids(tmp_path / "pids")) == 2)
    await until(lambda: (tmp_path / "run/out.log").stat().st_size > 0)
    killed_at = time.monotonic()
    os.kill(owner_of(tmp_path / "run").pid, signal.SIGKILL)
    ended = await task
    assert time.monotonic() - killed_at < 5
    assert (ended.exit, ended.detail) == (LOST, "the supervisor was killed")
    assert (ended.out_bytes, ended.leftovers) == (5, 0)
    assert ended.started_at is not None
    assert not any(is_alive(pid) for pid in noted_pids(tmp_path / "pids"))
    assert await runner.execute(job) == ended


async def test_a_shim_killed_while_nobody_watched(runner: Runner, tmp_path: Path) -> None:
    job = stubborn(tmp_path / "run", tmp_path / "pids", "time.sleep(99)")
    task = asyncio.create_task(runner.execute(job))
    await until(lambda: len(noted_pids(tmp_path / "pids")) == 2)
    task.cancel()
    await asyncio.wait({task})
    os.kill(owner_of(tmp_path / "run").pid, signal.SIGKILL)
    assert (await runner.execute(job)).exit == LOST
    assert not any(is_alive(pid) for pid in noted_pids(tmp_path / "pids"))


async def test_a_shim_that_stands_still_is_killed_after_a_stop(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_STUCK_S", 0.3)
    job = stubborn(tmp_path / "run", tmp_path / "pids", "time.sleep(99)", grace_s=0.2)
    task = asyncio.create_task(runner.execute(job))
    await until(lambda: len(noted_pids(tmp_path / "pids")) == 2)
    os.kill(owner_of(tmp_path / "run").pid, signal.SIGSTOP)
    runner.stop(tmp_path / "run", "enough")
    ended = await asyncio.wait_for(task, 5)
    assert (ended.exit, ended.ended_by, ended.stop_reason) == (LOST, "stop", "enough")
    assert ended.detail == "the supervisor did not answer and was killed"
    assert not any(is_alive(pid) for pid in noted_pids(tmp_path / "pids"))


async def test_a_stop_survives_the_daemon_that_noted_it(runner: Runner, tmp_path: Path) -> None:
    job = launch(tmp_path / "run", ["sleep", "60"])
    task = asyncio.create_task(runner.execute(job))
    await until((tmp_path / "run/run.json").exists)
    task.cancel()
    await asyncio.wait({task})
    (tmp_path / "run/stop").write_text("noted, then crashed")
    ended = await asyncio.wait_for(runner.execute(job), 5)
    assert (ended.ended_by, ended.stop_reason) == ("stop", "noted, then crashed")


async def test_an_error_of_the_shim_itself_is_told(any_runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "run/out.log").mkdir(parents=True)
    ended = await any_runner.execute(shell(tmp_path / "run", SCRIPT))
    assert ended.exit == LOST
    assert ended.detail is not None
    assert ended.detail.startswith("the supervisor failed: IsADirectoryError")
    assert "_open_logs" in (tmp_path / "run/shim.log").read_text()
    assert _ran(tmp_path) == []


async def test_the_spawner_is_disposable(any_runner: Runner, tmp_path: Path) -> None:
    first = asyncio.create_task(any_runner.execute(shell(tmp_path / "run", "sleep 0.5; exit 3")))
    await until((tmp_path / "run/run.json").exists)
    for number in range(5):
        spawner = any_runner.spawner_pid
        assert spawner is not None
        os.kill(spawner, signal.SIGKILL)
        ended = await any_runner.execute(launch(tmp_path / f"run{number}", ["true"]))
        assert ended.exit.code == 0
        assert any_runner.spawner_pid != spawner
    assert (await first).exit.code == 3


async def test_the_spawner_may_die_at_any_moment(any_runner: Runner, tmp_path: Path) -> None:
    script = 'echo "$KAPELLE_RUN_DIR" >> ran'
    process_dirs = [tmp_path / f"run{number}" for number in range(60)]
    running = asyncio.gather(
        *(any_runner.execute(shell(process_dir, script)) for process_dir in process_dirs)
    )
    for pause_s in (0.01, 0.1, 0.05, 0.12, 0.02):
        await asyncio.sleep(pause_s)
        assert any_runner.spawner_pid is not None
        os.kill(any_runner.spawner_pid, signal.SIGKILL)
    assert {ended.exit.code for ended in await running} == {0}
    assert sorted(_ran(tmp_path)) == sorted(map(str, process_dirs))


async def test_closing_leaves_the_agents_alone(tmp_path: Path) -> None:
    first, second = Runner(tmp_path / "home"), Runner(tmp_path / "home")
    await first.start()
    job = shell(tmp_path / "run", SCRIPT)
    task = asyncio.create_task(first.execute(job))
    await until((tmp_path / "ran").exists)
    spawner = first.spawner_pid
    await first.close()
    assert spawner is not None
    assert not is_alive(spawner)
    await second.start()
    assert (await second.execute(job)).exit == (await task).exit == DONE
    await second.close()
    assert len(_ran(tmp_path)) == 1


async def test_a_reboot(
    any_runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = launch(tmp_path / "run", ["sleep", "60"])
    task = asyncio.create_task(any_runner.execute(job))
    await until((tmp_path / "run/run.json").exists)
    task.cancel()
    await asyncio.wait({task})
    shim = owner_of(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(identity, "boot_id", lambda: "another boot")
        ended = await any_runner.execute(job)
    assert (ended.exit, ended.detail) == (LOST, "the machine was rebooted")
    shim.send(signal.SIGTERM)
    await until(lambda: not shim.is_alive())
    assert await any_runner.execute(job) == ended


async def test_a_power_cut_that_took_the_claim(any_runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/intent.json").write_text('{"boot_id": "another boot"}')
    ended = await any_runner.execute(shell(tmp_path / "run", SCRIPT))
    assert (ended.exit, ended.detail) == (LOST, "the machine was rebooted")
    assert _ran(tmp_path) == []


async def test_two_runners_race(tmp_path: Path) -> None:
    runners = [Runner(tmp_path / "home"), Runner(tmp_path / "home")]
    for runner in runners:
        await runner.start()
    script = 'echo "$KAPELLE_RUN_DIR" >> ran; exit 7'
    process_dirs = [tmp_path / f"run{number}" for number in range(20)]
    jobs = [shell(process_dir, script) for process_dir in process_dirs]
    both = [runner.execute(job) for job in jobs for runner in (*runners, *runners)]
    ended = await asyncio.gather(*both)
    assert {one.exit for one in ended} == {DONE}
    assert sorted(_ran(tmp_path)) == sorted(map(str, process_dirs))
    for runner in runners:
        await runner.close()


def test_the_copies_need_nothing_but_the_standard_library(tmp_path: Path) -> None:
    copies = list(install(tmp_path).parent.iterdir())
    assert {copy.name for copy in copies} == {source.name for source in SHIM.glob("*.py")}
    text = "\n".join(copy.read_text("utf-8") for copy in copies)
    imports = set(re.findall(r"^(?:import|from) ([\w]+)", text, re.M))
    assert imports <= set(sys.stdlib_module_names)
    used = set(re.findall(r"^from \.(\w+) import", text, re.M))
    used |= {
        name
        for line in re.findall(r"^from \. import (.+)$", text, re.M)
        for name in line.split(", ")
    }
    assert {f"{name}.py" for name in used} <= {copy.name for copy in copies}


def _ran(tmp_path: Path) -> list[str]:
    return (tmp_path / "ran").read_text("utf-8").split() if (tmp_path / "ran").exists() else []
