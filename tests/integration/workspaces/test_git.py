"""The one caller of git: time limits, locks, bounded output, and nothing left running."""

import asyncio
import os
from pathlib import Path

import pytest

from kapelle.domain.errors import GitError, UnreadableFile, WorkspaceError
from kapelle.workspaces.git import Git, GitLocation, LockBusy, is_result_needed
from kapelle.workspaces.refs import Refs

from .sandbox import Sandbox


def fake(root: Path, body: str) -> Git:
    script = root / "fake-git"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return Git(str(script), root, "K", "k@localhost")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0] != b"Z"
    except FileNotFoundError:
        return False


async def test_a_time_limit_kills_the_whole_group(tmp_path: Path) -> None:
    git = fake(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(GitError, match="did not finish"):
        await GitLocation(git, tmp_path).run("status", timeout_s=0.5)
    await asyncio.sleep(0.05)
    assert not alive(int((tmp_path / "child").read_text()))


async def test_cancelling_kills_it_too(tmp_path: Path) -> None:
    git = fake(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    running = asyncio.create_task(GitLocation(git, tmp_path).run("status"))
    for _ in range(500):
        await asyncio.sleep(0.01)
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_output_is_bounded(tmp_path: Path) -> None:
    git = fake(tmp_path, "yes")
    output = await GitLocation(git, tmp_path).run("diff", max_output=100_000)
    assert output.is_truncated
    assert len(output.stdout) == 100_000


async def test_errors_are_a_sentence_with_the_last_line_of_git(tmp_path: Path) -> None:
    git = fake(
        tmp_path, "yes warning: noise | head -100000 >&2; echo 'fatal: it broke' >&2; exit 128"
    )
    with pytest.raises(GitError, match="git status failed: fatal: it broke"):
        await GitLocation(git, tmp_path).run("status")


async def test_input_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    git = fake(tmp_path, "exit 0")
    await GitLocation(git, tmp_path).run("update-index", stdin=b"x" * 1_000_000)


async def test_no_git_at_all(tmp_path: Path) -> None:
    git = Git("/nowhere/git", tmp_path, "K", "k@localhost")
    with pytest.raises(WorkspaceError, match="could not be started") as refused:
        await GitLocation(git, tmp_path).run("status")
    assert refused.value.hint


async def test_the_environment_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/evil")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/evil")
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("LD_PRELOAD", "")
    git = fake(tmp_path, "env")
    text = (await GitLocation(git, tmp_path).run("status")).line
    assert "evil" not in text
    assert "s3cret" not in text
    assert "GIT_CONFIG_GLOBAL=/dev/null" in text


async def test_a_held_lock_is_waited_for(box: Sandbox) -> None:
    git = Git("git", box.root, "K", "k@localhost")
    refs = Refs.of(git, box.repo / ".git")
    lock = box.write(".git/refs/heads/x.lock", "")
    asyncio.get_running_loop().call_later(0.2, os.unlink, lock)
    await refs.move("refs/heads/x", box.commit_of("main"), None, "test")
    assert box.commit_of("x") == box.commit_of("main")


async def test_a_lock_that_stays_is_reported(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kapelle.workspaces.git._LOCK_PATIENCE_S", (0.01, 0.01))
    git = Git("git", box.root, "K", "k@localhost")
    box.write(".git/refs/heads/x.lock", "")
    refs = Refs.of(git, box.repo / ".git")
    with pytest.raises(LockBusy):
        await refs.move("refs/heads/x", box.commit_of("main"), None, "test")


async def test_a_git_that_hangs_ends_when_its_work_is_stopped(tmp_path: Path) -> None:
    async def is_wanted() -> bool:
        return False

    git = fake(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    token = is_result_needed.set(is_wanted)
    try:
        with pytest.raises(WorkspaceError, match="its task was stopped"):
            await GitLocation(git, tmp_path).run("status")
    finally:
        is_result_needed.reset(token)
    assert not alive(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("name", ["config", "packed-refs", "info/exclude"])
async def test_a_pipe_that_git_would_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "info").mkdir()
    os.mkfifo(tmp_path / name)
    git = fake(tmp_path, f"touch {tmp_path}/ran")
    with pytest.raises(UnreadableFile, match=name):
        await GitLocation(git, tmp_path, {"GIT_DIR": str(tmp_path)}).run("status")
    assert not (tmp_path / "ran").exists()


async def test_what_people_link_to_the_null_device_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "config").symlink_to(os.devnull)
    await GitLocation(fake(tmp_path, ""), tmp_path, {"GIT_DIR": str(tmp_path)}).run("status")
