"""What passes by itself is Unavailable, so that it is waited for; what does not is a GitError."""

import asyncio
import errno
import os
import time
from pathlib import Path

import pytest

from kapelle.domain.errors import GitError, Unavailable
from kapelle.engine.background import TRANSIENT_ERRORS, with_retries
from kapelle.runner.command import RunningCommand
from kapelle.workspaces import git as git_module
from kapelle.workspaces.git import Git, GitLocation, LockBusy
from kapelle.workspaces.refs import Refs

from .sandbox import Sandbox

# As git 2.39 words it on a full file system, one for each way of writing.
FULL = [
    "fatal: unable to write loose object file: No space left on device",
    "fatal: sha1 file '/x/.git/index.lock' write error. Out of diskspace",
    "fatal: cannot update ref 'refs/heads/x': couldn't write '/x/.git/refs/heads/x.lock'",
    "error: unable to write file small",
    "fatal: Unable to create '/x/.git/index.lock': Disk quota exceeded",
    'error: open("a"): Too many open files',
    "error: cannot fork() for x: Resource temporarily unavailable",
]


def fake(root: Path, body: str) -> Git:
    script = root / "fake-git"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return Git(str(script), root, "K", "k@localhost")


def saying(root: Path, words: str) -> Git:
    (root / "words").write_text(f"{words}\nerror: could not do it\n")
    return fake(root, f"cat {root}/words >&2; exit 128")


@pytest.mark.parametrize("words", FULL)
async def test_a_full_machine_passes(tmp_path: Path, words: str) -> None:
    git = saying(tmp_path, words)
    with pytest.raises(Unavailable, match="git write-tree failed"):
        await GitLocation(git, tmp_path).run("write-tree")
    # Else a reference that could not be read would be one that is not there.
    with pytest.raises(Unavailable):
        await Refs.of(git, tmp_path).read("refs/heads/x")


@pytest.mark.parametrize(
    "words", ["error: no such file: No space left on device.txt", "fatal: it broke"]
)
async def test_anything_else_stays(tmp_path: Path, words: str) -> None:
    with pytest.raises(GitError):
        await GitLocation(saying(tmp_path, words), tmp_path).run("write-tree")


@pytest.mark.parametrize("number", sorted(TRANSIENT_ERRORS))
async def test_a_git_that_the_machine_cannot_start_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_self: RunningCommand) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(RunningCommand, "run", refuse)
    git = Git("git", tmp_path, "K", "k@localhost")
    with pytest.raises(Unavailable, match="could not be started") as refused:
        await GitLocation(git, tmp_path).run("status")
    assert "Install" not in (refused.value.hint or "")
    assert git_module._PASSING == TRANSIENT_ERRORS


async def test_what_could_not_be_started_is_done_later(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, run = [], RunningCommand.run

    def second_time(self: RunningCommand) -> object:
        started.append(self)
        if len(started) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return run(self)

    monkeypatch.setattr(RunningCommand, "run", second_time)
    monkeypatch.setattr("kapelle.engine.background._PAUSE_S", 0.01)
    git = Git("git", box.root, "K", "k@localhost")
    found = await with_retries(Refs.of(git, box.repo / ".git").read)("refs/heads/main")
    assert found == box.commit_of("main")


async def test_a_lock_passes_while_it_is_new(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kapelle.workspaces.git._LOCK_PATIENCE_S", (0.01, 0.01))
    monkeypatch.setattr("kapelle.engine.background._PAUSE_S", 0.01)
    refs = Refs.of(Git("git", box.root, "K", "k@localhost"), box.repo / ".git")
    main = box.commit_of("main")
    lock = box.write(".git/refs/heads/x.lock", "")
    with pytest.raises(Unavailable) as refused:
        await refs.move("refs/heads/x", main, None, "test")
    assert isinstance(refused.value, LockBusy)
    asyncio.get_running_loop().call_later(0.3, os.unlink, lock)
    await with_retries(refs.move)("refs/heads/x", main, None, "test")
    assert box.commit_of("x") == main


async def test_a_lock_that_was_left_does_not_pass(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kapelle.workspaces.git._LOCK_PATIENCE_S", (0.01, 0.01))
    refs = Refs.of(Git("git", box.root, "K", "k@localhost"), box.repo / ".git")
    lock = box.write(".git/refs/heads/x.lock", "")
    old = time.time() - 120
    os.utime(lock, (old, old))
    with pytest.raises(GitError, match="File exists") as refused:
        await refs.move("refs/heads/x", box.commit_of("main"), None, "test")
    assert str(lock) in (refused.value.hint or "")


async def test_a_checkout_that_cannot_be_moved_now_goes_back(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    worktree = await box.workspaces.create("task_1", box.repo, None)
    box.write("new.txt", "new\n", Path(str(worktree.path)))
    await box.workspaces.commit("task_1", "m")
    main, run = box.commit_of("main"), RunningCommand.run

    def full(self: RunningCommand) -> object:
        words = list(self._command.argv)
        if words[-5:-2] == ["read-tree", "-m", "-u"]:
            raise OSError(errno.EMFILE, "Too many open files")
        return run(self)

    monkeypatch.setattr(RunningCommand, "run", full)
    with pytest.raises(Unavailable, match="could not be started"):
        await box.workspaces.merge("task_1", None, "m")
    assert (box.commit_of("main"), box.status()) == (main, "")
    assert not (box.repo / ".git/index.lock").exists()
