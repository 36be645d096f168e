"""kill -9 at any moment of create and merge: the next call makes it good."""

import asyncio
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from kapelle.domain.errors import Conflict
from kapelle.workspaces import Workspaces

from .sandbox import Sandbox

_CREATE = """
import asyncio, sys
from pathlib import Path
from kapelle.workspaces import Workspaces
async def main():
    workspaces = Workspaces(Path(sys.argv[1]), "K", "k@localhost")
    print("ready", flush=True)
    for number in range(100):
        await workspaces.create(f"task_{sys.argv[3]}x{number}", Path(sys.argv[2]), None, ["copied"])
        print(number, flush=True)
asyncio.run(main())
"""

MERGE = """
import asyncio, sys
from pathlib import Path
from kapelle.workspaces import Workspaces
async def main():
    workspaces = Workspaces(Path(sys.argv[1]), "K", "k@localhost")
    print("ready", flush=True)
    await workspaces.merge(sys.argv[3], None, "m")
asyncio.run(main())
"""


# A git that kills whoever started it, once, before or after the command that it is waiting for.
_DEADLY = """#!/bin/sh
case "$*" in
  *' {step} '*) [ {when} = after ] && {git} "$@"; kill -9 $PPID; exit 1;;
esac
exec {git} "$@"
"""


async def kill_at(script: str, box: Sandbox, argument: str, step: str, when: str) -> None:
    text = _DEADLY.replace("{git}", shutil.which("git") or "")
    git = box.write("bin/git", text.replace("{step}", step).replace("{when}", when), box.root)
    git.chmod(0o755)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(box.home), str(box.repo), argument),
        env={**os.environ, "PATH": f"{git.parent}:{os.environ['PATH']}"},
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await child.wait() == -signal.SIGKILL


async def kill_during(script: str, box: Sandbox, argument: str, delay_s: float) -> list[str]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(box.home), str(box.repo), argument),
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"ready\n"
    await asyncio.sleep(delay_s)
    if child.returncode is None:
        child.send_signal(signal.SIGKILL)
    rest = await child.stdout.read()
    await child.wait()
    return rest.decode().split()


async def test_killed_while_creating(box: Sandbox) -> None:
    for number in range(40):
        box.write(f"many/f{number}", "x" * 1000)
    box.save("more files")
    box.write("copied/x", "copied")
    chance = random.Random(time.time_ns())
    for number in range(5):
        done = await kill_during(_CREATE, box, str(number), chance.uniform(0, 0.25))
        cut = f"task_{number}x{len(done)}"
        survivor = Workspaces(box.home, "K", "k@localhost")
        workspace = await survivor.create(cut, box.repo, None, ["copied"])
        path = Path(workspace.path)
        assert box.status(path) == "?? copied/"
        assert (path / "copied/x").read_text() == "copied"
        assert (path / "many/f39").exists()
        assert box.git("symbolic-ref", "--short", "HEAD", cwd=path) == workspace.branch
        assert await survivor.commit(cut, "nothing") is None
    traces = await box.workspaces.traces()
    entries = {entry.name for entry in (box.home / "worktrees").iterdir()}
    assert entries == traces | {f"{name}.json" for name in traces}
    assert box.refs("refs/kapelle/") == [f"refs/kapelle/base/{name}" for name in sorted(traces)]
    assert box.refs("refs/heads/") == ["refs/heads/main"]


async def test_killed_while_merging(box: Sandbox) -> None:
    for number in range(60):
        box.write(f"many/f{number}", "old\n" * 50)
    box.save("more files")
    chance = random.Random(time.time_ns())
    for number in range(5):
        task_id = f"task_{number}"
        _, path = await box.create(task_id)
        for other in range(60):
            box.write(f"many/f{other}", f"{number}\n" * 50, path)
        box.write(f"new{number}", "n", path)
        await box.workspaces.commit(task_id, "work")
        await kill_during(MERGE, box, task_id, chance.uniform(0, 0.12))
        survivor = Workspaces(box.home, "K", "k@localhost")
        await survivor.merge(task_id, None, "m")
        assert box.is_merged(task_id, "main")
        assert box.status() == ""
        assert (box.repo / "many/f59").read_text() == f"{number}\n" * 50
        assert not (box.repo / ".git/index.lock").exists()
        await box.workspaces.remove(task_id)


@pytest.mark.parametrize(
    ("when", "step"),
    [
        ("before", "update-ref"),
        ("before", "for-each-ref"),
        ("after", "for-each-ref"),
        ("before", "read-tree"),
        ("after", "read-tree"),
    ],
)
async def test_killed_at_each_step_of_create(box: Sandbox, step: str, when: str) -> None:
    box.write("copied/x", "copied")
    await kill_at(_CREATE, box, "1", step, when)
    workspace = await box.workspaces.create("task_1x0", box.repo, None, ["copied"])
    assert box.status(Path(workspace.path)) == "?? copied/"
    assert await box.workspaces.traces() == {"task_1x0"}
    assert box.refs("refs/kapelle/") == ["refs/kapelle/base/task_1x0"]


@pytest.mark.parametrize(
    ("when", "step"),
    [
        ("before", "merge-tree"),
        ("before", "update-index"),
        ("before", "read-tree -n -m -u"),
        ("before", "update-ref"),
        ("before", "read-tree -m -u"),
        ("after", "read-tree -m -u"),
    ],
)
async def test_killed_at_each_step_of_merge(box: Sandbox, step: str, when: str) -> None:
    await _work(box)
    await kill_at(MERGE, box, "task_1", step, when)
    await box.workspaces.merge("task_1", None, "m")
    assert box.is_merged("task_1", "main")
    assert _state(box) == ("", "new a", "new b", False)


async def test_a_half_written_checkout_is_completed(box: Sandbox) -> None:
    await _work(box)
    await kill_at(MERGE, box, "task_1", "read-tree -m -u", "after")
    box.write("a.txt", "one\n")
    (box.repo / "new.txt").unlink()
    box.write("src/deep/c.txt", "an edit of the user elsewhere\n")
    merge = await box.workspaces.merge("task_1", None, "m")
    assert (merge.already, merge.checkout_updated) == (True, box.repo)
    assert _state(box) == ("M src/deep/c.txt", "new a", "new b", False)


async def test_a_half_written_checkout_with_foreign_edits_is_left_alone(box: Sandbox) -> None:
    await _work(box)
    await kill_at(MERGE, box, "task_1", "read-tree -m -u", "after")
    box.write("a.txt", "an edit of the user\n")
    with pytest.raises(Conflict, match=r"a\.txt changed since") as refused:
        await box.workspaces.merge("task_1", None, "m")
    assert "index.lock" in (refused.value.hint or "")
    assert (box.repo / "a.txt").read_text() == "an edit of the user\n"


async def _work(box: Sandbox) -> None:
    _, path = await box.create()
    for name, text in {"a.txt": "new a", "src/b.txt": "new b", "new.txt": "n"}.items():
        box.write(name, text, path)
    await box.workspaces.commit("task_1", "work")


def _state(box: Sandbox) -> tuple[str, str, str, bool]:
    texts = [(box.repo / name).read_text() for name in ("a.txt", "src/b.txt")]
    return (box.status(), texts[0], texts[1], (box.repo / ".git/index.lock").exists())


async def test_cancelled_while_creating(box: Sandbox) -> None:
    chance = random.Random(time.time_ns())
    for number in range(6):
        names = [f"task_{number}x{other}" for other in range(4)]
        tasks = [asyncio.create_task(box.create(name)) for name in names]
        await asyncio.sleep(chance.uniform(0, 0.1))
        for task in tasks:
            task.cancel()
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks, return_exceptions=True)
            for name in names:
                _, path = await box.create(name)
                assert box.status(path) == ""
