"""After a crash in the middle of a merge, the daemon's start leaves no checkout in between."""

import random
import time
from pathlib import Path

import pytest

from kapelle.domain.errors import Conflict
from kapelle.workspaces import Workspaces

from .sandbox import Sandbox
from .test_crash import MERGE, kill_at, kill_during


async def work(box: Sandbox, task_id: str = "task_1", text: str = "new\n") -> None:
    _, path = await box.create(task_id)
    for name in ("a.txt", "src/b.txt", "new.txt", *(f"many/f{number}" for number in range(60))):
        box.write(name, text * 50, path)
    await box.workspaces.commit(task_id, "work")


def survivor(box: Sandbox) -> Workspaces:
    return Workspaces(box.home, "K", "k@localhost")


def assert_untorn(box: Sandbox) -> None:
    assert box.status() == ""
    assert not list((box.repo / ".git").glob("**/*.lock"))
    assert not list((box.home / "merges").glob("*.json"))


async def test_killed_at_any_moment_the_base_is_the_old_or_the_new(box: Sandbox) -> None:
    chance = random.Random(time.time_ns())
    for number in range(8):
        task_id, text = f"task_{number}", f"{number}\n"
        old = box.commit_of("main")
        await work(box, task_id, text)
        await kill_during(MERGE, box, task_id, chance.uniform(0, 0.12))
        assert await survivor(box).finish_merges() in ([], [task_id])
        assert_untorn(box)
        merged = box.is_merged(task_id, "main")
        assert (box.commit_of("main") == old) is not merged
        assert ((box.repo / "a.txt").read_text() == text * 50) is merged


@pytest.mark.parametrize(
    ("when", "step", "merged"),
    [
        ("before", "update-index", False),
        ("before", "read-tree -n -m -u", False),
        ("before", "update-ref", False),
        ("after", "update-ref", True),
        ("before", "read-tree -m -u", True),
        ("after", "read-tree -m -u", True),
    ],
)
async def test_killed_at_each_step(box: Sandbox, when: str, step: str, merged: bool) -> None:
    await work(box)
    await kill_at(MERGE, box, "task_1", step, when)
    assert (box.repo / ".git/index.lock").exists()
    assert await survivor(box).finish_merges() == ["task_1"]
    assert_untorn(box)
    assert box.is_merged("task_1", "main") is merged
    assert await survivor(box).finish_merges() == []


async def test_the_lock_that_a_killed_git_left_on_the_branch_is_removed(box: Sandbox) -> None:
    await work(box)
    await kill_at(MERGE, box, "task_1", "update-ref", "before")
    journal = next((box.home / "merges").glob("*.json")).read_text()
    new = journal.split('"new": "')[1].split('"')[0]
    box.write(".git/refs/heads/main.lock", new + "\n")
    box.write(".git/HEAD.lock", "")
    await survivor(box).finish_merges()
    assert_untorn(box)


async def test_locks_of_somebody_else_stay(box: Sandbox) -> None:
    await work(box)
    await kill_at(MERGE, box, "task_1", "update-ref", "before")
    locks = [box.write(f".git/{name}.lock", "") for name in ("index", "HEAD", "refs/heads/main")]
    await survivor(box).finish_merges()
    assert all(lock.exists() for lock in locks)


async def test_one_that_cannot_be_finished_does_not_hinder_the_others(box: Sandbox) -> None:
    await work(box)
    await kill_at(MERGE, box, "task_1", "read-tree -m -u", "before")
    damaged = box.write("merges/0.json", "{", box.home)
    with pytest.raises(Conflict, match="damaged"):
        await survivor(box).finish_merges()
    damaged.unlink()
    assert_untorn(box)
    assert box.is_merged("task_1", "main")


async def test_edits_since_then_are_left_alone_and_told(box: Sandbox) -> None:
    await work(box)
    await kill_at(MERGE, box, "task_1", "read-tree -m -u", "after")
    box.write("a.txt", "an edit of the user\n")
    with pytest.raises(Conflict, match=r"a\.txt changed since"):
        await survivor(box).finish_merges()
    assert (box.repo / "a.txt").read_text() == "an edit of the user\n"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_was_dirty_and_is_not_of_the_merge_stays_as_it_was(
    box: Sandbox, when: str
) -> None:
    for name in ("edited", "staged", "deleted"):
        box.write(name, "old\n")
    box.save("more")
    await work(box)
    box.write("staged", "mine\n")
    box.git("add", "staged")
    box.write("edited", "mine\n")
    (box.repo / "deleted").unlink()
    before = box.status()
    await kill_at(MERGE, box, "task_1", "read-tree -m -u", when)
    assert await survivor(box).finish_merges() == ["task_1"]
    assert box.status() == before
    assert box.git("show", ":staged") == "mine"
    assert (box.repo / "many/f7").exists()
    assert box.is_merged("task_1", "main")


async def test_a_repository_that_is_not_there_is_asked_for_again(box: Sandbox) -> None:
    await work(box)
    await kill_at(MERGE, box, "task_1", "read-tree -m -u", "before")
    away = box.repo.rename(Path(box.root, "away"))
    with pytest.raises(Conflict, match="is gone"):
        await survivor(box).finish_merges()
    away.rename(box.repo)
    assert await survivor(box).finish_merges() == ["task_1"]
    assert_untorn(box)
