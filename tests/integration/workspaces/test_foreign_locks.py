"""The lock files of a home in the hands of another process, as an agent may have it."""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kapelle.domain.errors import Conflict
from kapelle.workspaces import Workspaces, locks

from .sandbox import Sandbox


@pytest.fixture
def _held(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All lock files are held by somebody else."""
    monkeypatch.setattr(locks, "_STRIPES", 4)
    folder = box.home / "locks"
    folder.mkdir()
    held = []
    for kind in ("task", "merge", "copy"):
        for number in range(4):
            path = folder / f"{kind}-{number:03}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            held.append(descriptor)
    yield
    for descriptor in held:
        os.close(descriptor)


def use(home: Path, *, is_alone: bool) -> Workspaces:
    return Workspaces(home, "K", "k@localhost", is_alone=is_alone)


@pytest.mark.usefixtures("_held")
async def test_the_only_process_of_a_home_waits_for_its_predecessor_alone(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.3)
    workspaces = use(box.home, is_alone=True)
    made = asyncio.create_task(workspaces.create("task_1", box.repo, None))
    await asyncio.sleep(0.1)
    assert not made.done()
    workspace = await made
    box.write("new.txt", "n\n", Path(workspace.path))
    monkeypatch.setattr(locks, "_PATIENCE_S", 60.0)
    async with asyncio.timeout(20):
        assert await workspaces.commit("task_1", "work")
        assert (await workspaces.merge("task_1", None, "m")).checkout_updated == box.repo
    workspaces.close()


@pytest.mark.usefixtures("_held")
async def test_several_processes_of_a_home_respect_each_other(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.1)
    workspaces = use(box.home, is_alone=False)
    with pytest.raises(Conflict, match="still working on task_1"):
        await workspaces.create("task_1", box.repo, None)
    workspaces.close()


async def test_the_only_process_of_a_home_needs_no_lock_files(box: Sandbox) -> None:
    """A file in the place of their directory, as an agent may make it, stops no work."""
    (box.home / "locks").write_text("")
    workspaces = use(box.home, is_alone=True)
    workspace = await workspaces.create("task_1", box.repo, None)
    box.write("new.txt", "n\n", Path(workspace.path))
    assert await workspaces.commit("task_1", "work")
    assert (await workspaces.merge("task_1", None, "m")).checkout_updated == box.repo
    workspaces.close()
