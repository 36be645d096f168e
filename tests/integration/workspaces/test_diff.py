"""Diffs: of a worktree under work, of a branch, and since a snapshot."""

import asyncio
import os
from pathlib import Path

import pytest

from kapelle.domain.errors import InvalidInput, WorkspaceError

from .sandbox import Sandbox

ODD_NAMES = [
    "-x",
    "--output=owned",
    "$(touch canary)",
    "new\nline",
    "über",
    'quo"te',
    "back\\slash",
    " ",
    "*",
]


async def test_the_patch_applies_and_gives_the_same_content(box: Sandbox) -> None:
    _, path = await box.create()
    for name in ODD_NAMES:
        box.write(name, f"{name}\n", path)
    box.write("binary", bytes(range(256)) * 50, path)
    (path / "src/b.txt").rename(path / "moved.txt")
    diff = await box.workspaces.diff("task_1")
    assert set(diff.files) == {*ODD_NAMES, "binary", "moved.txt", "src/b.txt"}
    assert "über" in diff.stat
    assert not diff.is_truncated
    await box.workspaces.commit("task_1", "work")
    other = box.root / "other"
    box.git("worktree", "add", "-q", "--detach", str(other), "main")
    box.write("patch", diff.patch, box.root)
    box.git("apply", "--index", "--whitespace=nowarn", str(box.root / "patch"), cwd=other)
    assert box.git("write-tree", cwd=other) == box.commit_of("kapelle/task_1^{tree}")


async def test_names_that_are_not_utf8_survive(box: Sandbox) -> None:
    _, path = await box.create()
    Path(os.fsdecode(os.fsencode(path) + b"/\xff\xfe")).write_bytes(b"x")
    assert (await box.workspaces.diff("task_1")).files == ["\\xff\\xfe"]
    commit = await box.workspaces.commit("task_1", "work")
    assert os.fsdecode(b"\xff\xfe") in box.files_of(commit or "")


async def test_the_history_of_a_commit_tells_what_was_taken_back_and_what_merges_add(
    box: Sandbox,
) -> None:
    _, path = await box.create()
    box.write(".env", "taken-back\n", path)
    box.git("add", ".env", cwd=path)
    box.git("commit", "-qm", "in-a-message", cwd=path)
    box.git("rm", "-q", ".env", cwd=path)
    box.git("commit", "-qm", "two", cwd=path)
    side = box.git("commit-tree", "HEAD^{tree}", "-p", "main", "-m", "side", cwd=path)
    box.git("merge", "-q", "--no-commit", "-s", "ours", side, cwd=path)
    box.write("evil.txt", "by-the-merge\n", path)
    box.git("add", "evil.txt", cwd=path)
    box.git("commit", "-qm", "three", cwd=path)
    box.write("later.txt", "not-pushed\n", path)
    commit = box.git("rev-parse", "HEAD", cwd=path)
    told, made = await box.workspaces.search_history("task_1", commit)
    assert b"in-a-message" in told
    assert b".env" in told
    assert b"+taken-back" in made.patch
    assert b"+by-the-merge" in made.patch
    assert b"not-pushed" not in made.patch
    assert not made.is_truncated


async def test_a_diff_does_not_disturb_the_agent(box: Sandbox) -> None:
    _, path = await box.create()
    gitdir = box.gitdir()
    box.write("staged.txt", "s", path)
    box.git("add", "staged.txt", cwd=path)
    box.write("new.txt", "n", path)
    (gitdir / "index.lock").write_bytes(b"held")
    before = (gitdir / "index").read_bytes()
    objects = set((box.repo / ".git/objects").rglob("*"))
    assert (await box.workspaces.diff("task_1")).files == ["new.txt", "staged.txt"]
    assert (await box.workspaces.diff("task_1")).files
    assert (gitdir / "index").read_bytes() == before
    assert (gitdir / "index.lock").read_bytes() == b"held"
    assert set((box.repo / ".git/objects").rglob("*")) == objects
    assert list((box.home / "tmp").iterdir()) == []


async def test_diffs_while_files_come_and_go(box: Sandbox) -> None:
    _, path = await box.create()
    stop = asyncio.Event()

    async def agent() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            box.write(f"f{number % 5}", "x" * number, path)
            (path / f"f{(number + 2) % 5}").unlink(missing_ok=True)
            await asyncio.sleep(0)

    working = asyncio.create_task(agent())
    for _ in range(10):
        await box.workspaces.diff("task_1")
    stop.set()
    await working


async def test_the_branch_is_shown_when_the_worktree_is_gone(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("new.txt", "n", path)
    await box.workspaces.commit("task_1", "work")
    before = await box.workspaces.diff("task_1")
    await box.workspaces.remove("task_1")
    assert await box.workspaces.diff("task_1") == before
    assert (await box.workspaces.diff("task_1")).files


async def test_snapshots_leave_the_repository_alone(box: Sandbox) -> None:
    box.write("untracked.txt", "u")
    box.write("a.txt", "dirty\n")
    objects = set((box.repo / ".git/objects").rglob("*"))
    index = (box.repo / ".git/index").read_bytes()
    tree = await box.workspaces.snapshot(box.repo / "src")
    assert (await box.workspaces.diff_since(box.repo, tree)).files == []
    box.write("a.txt", "dirtier\n")
    box.write("src/new.txt", "n")
    (box.repo / "untracked.txt").unlink()
    diff = await box.workspaces.diff_since(box.repo / "src", tree)
    assert diff.files == ["a.txt", "src/new.txt", "untracked.txt"]
    assert b"-dirty\n+dirtier" in diff.patch
    assert set((box.repo / ".git/objects").rglob("*")) == objects
    assert (box.repo / ".git/index").read_bytes() == index
    await box.workspaces.tidy()
    assert (await box.workspaces.diff_since(box.repo, tree)).files == diff.files


async def test_snapshots_of_an_empty_repository_and_of_none(box: Sandbox) -> None:
    empty = box.root / "empty"
    box.git("init", "-q", str(empty))
    tree = await box.workspaces.snapshot(empty)
    box.write("first", "f", empty)
    assert (await box.workspaces.diff_since(empty, tree)).files == ["first"]
    with pytest.raises(WorkspaceError):
        await box.workspaces.snapshot(box.root)
    for bad in ("--output=x", "HEAD", "", "g" * 39):
        with pytest.raises(InvalidInput):
            await box.workspaces.diff_since(empty, bad)
