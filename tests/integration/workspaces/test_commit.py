"""Committing what an agent left, in whatever state it left its worktree."""

import os
import shutil
from pathlib import Path

import pytest

from kapelle.domain.errors import Conflict, WorkspaceError
from kapelle.runner.command import RunningCommand

from .sandbox import Sandbox


def gitdir(box: Sandbox) -> Path:
    return box.gitdir()


async def test_nothing_done_is_none(box: Sandbox) -> None:
    await box.create()
    assert await box.workspaces.commit("task_1", "work") is None
    assert (await box.workspaces.diff("task_1")).files == []


async def test_changed_new_and_deleted_files(box: Sandbox) -> None:
    workspace, path = await box.create()
    box.write("a.txt", "changed\n", path)
    box.write("new/run.sh", "#!/bin/sh\n", path).chmod(0o755)
    (path / "src/b.txt").unlink()
    (path / "link").symlink_to("a.txt")
    commit = await box.workspaces.commit("task_1", "The work\n\nwith a body")
    assert commit == box.commit_of("kapelle/task_1")
    assert box.files_of("kapelle/task_1") == ["a.txt", "link", "new/run.sh", "src/deep/c.txt"]
    assert box.git("ls-tree", "kapelle/task_1", "new/").startswith("100755")
    assert box.git("ls-tree", "kapelle/task_1", "link").startswith("120000")
    assert box.git("log", "-1", "--format=%an <%ae>|%P|%B", "kapelle/task_1") == (
        f"Kapelle <kapelle@localhost>|{workspace.base_commit}|The work\n\nwith a body"
    )
    assert box.status(path) == ""
    assert await box.workspaces.commit("task_1", "again") == commit


async def test_a_directory_replaced_by_a_link_to_its_copy(box: Sandbox) -> None:
    _, path = await box.create()
    shutil.copytree(path / "src", box.root / "copy")
    shutil.rmtree(path / "src")
    (path / "src").symlink_to(box.root / "copy")
    assert await box.workspaces.commit("task_1", "work")
    assert box.files_of("kapelle/task_1") == ["a.txt", "src"]
    assert box.git("ls-tree", "kapelle/task_1", "src").startswith("120000")


async def test_an_ignored_link_in_the_place_of_a_directory_is_seen(box: Sandbox) -> None:
    _, path = await box.create()
    # Moved and not copied: the files that are seen through the link are the very same.
    (path / "src").rename(box.root / "moved")
    (path / "src").symlink_to(box.root / "moved")
    box.write(".gitignore", "src\n.gitignore\n", path)
    assert await box.workspaces.commit("task_1", "work")
    assert box.files_of("kapelle/task_1") == ["a.txt"]
    assert "src/b.txt" in (await box.workspaces.diff("task_1")).files


async def test_an_unchanged_worktree_costs_one_git(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = await box.create()
    box.write("a.txt", "changed\n", path)
    commit = await box.workspaces.commit("task_1", "work")
    assert commit is not None
    calls, run = [], RunningCommand.run

    def counted(running: RunningCommand) -> object:
        calls.append(running)
        return run(running)

    monkeypatch.setattr(RunningCommand, "run", counted)
    assert await box.workspaces.commit("task_1", "again") == commit
    await box.workspaces.restore("task_1", commit, "one")
    assert await box.workspaces.list_uncommitted("task_1") == []
    assert len(calls) == 3 + 1  # the last one compares as well


async def test_commits_of_the_agent_count(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("a.txt", "by the agent\n", path)
    own = box.save("by the agent", path)
    assert await box.workspaces.commit("task_1", "ours") == own
    box.write("more.txt", "m", path)
    commit = await box.workspaces.commit("task_1", "ours")
    assert box.commit_of(f"{commit}^") == own


@pytest.mark.parametrize("how", ["branch", "detached", "orphan", "renamed"])
async def test_work_elsewhere_still_lands_on_our_branch(box: Sandbox, how: str) -> None:
    _, path = await box.create()
    command = {
        "branch": ("switch", "-q", "-c", "mine"),
        "detached": ("switch", "-q", "--detach"),
        "orphan": ("switch", "-q", "--orphan", "mine"),
        "renamed": ("branch", "-m", "mine"),
    }[how]
    box.git(*command, cwd=path)
    box.write("new.txt", "n", path)
    mine = box.git("rev-parse", "-q", "--verify", "refs/heads/mine", check=False)
    commit = await box.workspaces.commit("task_1", "work")
    assert commit == box.commit_of("kapelle/task_1")
    assert "new.txt" in box.files_of("kapelle/task_1")
    assert box.git("rev-parse", "-q", "--verify", "refs/heads/mine", check=False) == mine
    assert box.status(path) == ""
    assert box.git("symbolic-ref", "--short", "HEAD", cwd=path) == "kapelle/task_1"


async def test_stepping_back_to_look_loses_nothing(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("new.txt", "n", path)
    own = box.save("work", path)
    box.git("switch", "-q", "--detach", "HEAD^", cwd=path)
    assert await box.workspaces.commit("task_1", "nothing") == own
    box.write("other.txt", "o", path)
    commit = await box.workspaces.commit("task_1", "from the old commit")
    assert box.commit_of(f"{commit}^") == box.commit_of("main")
    kept = box.refs("refs/kapelle/archive/task_1/")
    assert [box.commit_of(ref) for ref in kept] == [own]


async def test_a_branch_turned_symbolic_does_not_move_the_user_s_branch(box: Sandbox) -> None:
    _, path = await box.create()
    main = box.commit_of("main")
    box.git("symbolic-ref", "refs/heads/kapelle/task_1", "refs/heads/main")
    box.write("new.txt", "n", path)
    assert await box.workspaces.commit("task_1", "work")
    assert box.commit_of("main") == main


async def test_stale_locks_of_a_killed_git(box: Sandbox) -> None:
    _, path = await box.create()
    (gitdir(box) / "index.lock").write_bytes(b"")
    (gitdir(box) / "HEAD.lock").write_bytes(b"")
    (gitdir(box) / "refs/heads/kapelle/task_1.lock").write_bytes(b"")
    locked = box.repo / ".git/refs/heads/kapelle/task_1.lock"
    locked.parent.mkdir()
    locked.write_bytes(b"")
    box.write("new.txt", "n", path)
    assert await box.workspaces.commit("task_1", "work")
    assert box.status(path) == ""
    box.git("commit", "-q", "--allow-empty", "-m", "git works again", cwd=path)


@pytest.mark.parametrize("damage", ["deleted", "garbage", "link", "split"])
async def test_an_unusable_index(box: Sandbox, damage: str) -> None:
    _, path = await box.create()
    index = gitdir(box) / "index"
    main_index = (box.repo / ".git/index").read_bytes()
    if damage == "split":
        box.git("update-index", "--split-index", cwd=path)
    else:
        index.unlink()
        if damage == "garbage":
            index.write_bytes(os.urandom(500))
        elif damage == "link":
            index.symlink_to(box.repo / ".git/index")
    box.write("new.txt", "n", path)
    (path / "a.txt").unlink()
    assert await box.workspaces.commit("task_1", "work")
    assert box.files_of("kapelle/task_1") == ["new.txt", "src/b.txt", "src/deep/c.txt"]
    assert box.status(path) == ""
    assert (box.repo / ".git/index").read_bytes() == main_index


@pytest.mark.parametrize("damage", ["removed", "redirected"])
async def test_without_its_repository_the_content_is_kept_and_the_loss_is_told(
    box: Sandbox, damage: str
) -> None:
    _, path = await box.create()
    box.write("new.txt", "n", path)
    shutil.rmtree(path / ".git")
    if damage == "redirected":
        (path / ".git").write_text(f"gitdir: {box.repo}/.git\n")
    with pytest.raises(WorkspaceError, match=r"\.git was removed or replaced"):
        await box.workspaces.commit("task_1", "work")
    assert "new.txt" in box.files_of("kapelle/task_1")
    assert await box.workspaces.commit("task_1", "again") == box.commit_of("kapelle/task_1")
    assert box.status(path) == ""


async def test_a_repository_in_place_of_our_own(box: Sandbox) -> None:
    _, path = await box.create()
    shutil.rmtree(path / ".git")
    box.git("init", "-q", cwd=path)
    box.write("new.txt", "n", path)
    with pytest.raises(WorkspaceError, match="another repository"):
        await box.workspaces.commit("task_1", "work")
    assert "new.txt" in box.files_of("kapelle/task_1")
    with pytest.raises(WorkspaceError, match="another repository"):
        await box.workspaces.remove("task_1")
    assert (path / "new.txt").exists()


async def test_nested_repositories_give_their_files(box: Sandbox) -> None:
    _, path = await box.create()
    nested = path / "nested"
    box.git("init", "-q", str(nested))
    box.write("x.txt", "x", nested)
    box.write("ignored.log", "x", nested)
    box.write(".gitignore", "*.log\n", nested)
    box.save("inside", nested)
    box.git("init", "-q", str(nested / "deeper"))
    box.write("deeper/y.txt", "y", nested)
    await box.workspaces.commit("task_1", "work")
    names = set(box.files_of("kapelle/task_1"))
    assert {"nested/x.txt", "nested/.gitignore", "nested/deeper/y.txt"} <= names
    assert "nested/ignored.log" not in names
    assert not any(".git/" in name for name in names)
    box.write("x.txt", "changed", nested)
    await box.workspaces.commit("task_1", "more")
    assert box.show("kapelle/task_1:nested/x.txt") == "changed"


async def test_files_become_directories_and_the_other_way_round(box: Sandbox) -> None:
    _, path = await box.create()
    (path / "a.txt").unlink()
    box.write("a.txt/inner", "i", path)
    shutil.rmtree(path / "src")
    (path / "src").symlink_to("a.txt")
    os.mkfifo(path / "pipe")
    await box.workspaces.commit("task_1", "work")
    assert box.files_of("kapelle/task_1") == ["a.txt/inner", "src"]
    shutil.rmtree(path / "a.txt")
    os.mkfifo(path / "a.txt")
    await box.workspaces.commit("task_1", "a pipe is not content")
    assert box.files_of("kapelle/task_1") == ["src"]


async def test_an_unfinished_merge_of_the_agent(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("a.txt", "theirs\n", path)
    box.save("theirs", path)
    box.write("a.txt", "ours\n")
    box.save("ours")
    box.git("merge", box.commit_of("main"), cwd=path, check=False)
    assert "UU a.txt" in box.status(path)
    assert await box.workspaces.commit("task_1", "as it is")
    assert "<<<<<<<" in box.show("kapelle/task_1:a.txt")


async def test_ignored_files_stay_out_and_large_ones_go_in(box: Sandbox) -> None:
    _, path = await box.create()
    box.write(".gitignore", "build/\n", path)
    box.write("build/x", "x", path)
    with (path / "huge").open("wb") as stream:
        stream.truncate(80_000_000)
    await box.workspaces.commit("task_1", "work")
    assert "build/x" not in box.files_of("kapelle/task_1")
    assert box.git("cat-file", "-s", "kapelle/task_1:huge") == "80000000"


async def test_a_change_within_the_same_instant_is_seen(box: Sandbox) -> None:
    _, path = await box.create()
    for number in range(10):
        box.write("a.txt", f"{number:03}\n", path)
        await box.workspaces.commit("task_1", f"number {number}")
        assert box.show("kapelle/task_1:a.txt") == f"{number:03}"


async def test_a_removed_worktree_cannot_be_committed(box: Sandbox) -> None:
    await box.create()
    await box.workspaces.remove("task_1")
    with pytest.raises(Conflict):
        await box.workspaces.commit("task_1", "work")
    with pytest.raises(WorkspaceError, match="no worktree"):
        await box.workspaces.commit("task_2", "work")


@pytest.mark.parametrize("option", ["--assume-unchanged", "--skip-worktree"])
async def test_what_the_index_is_told_to_overlook_is_committed_too(
    box: Sandbox, option: str
) -> None:
    _, path = await box.create()
    box.git("update-index", option, "a.txt", "src/b.txt", cwd=path)
    box.write("a.txt", "changed\n", path)
    assert await box.workspaces.commit("task_1", "work")
    assert box.show("kapelle/task_1:a.txt") == "changed"


async def test_a_deleted_file_that_is_assumed_unchanged_is_gone(box: Sandbox) -> None:
    _, path = await box.create()
    box.git("update-index", "--assume-unchanged", "a.txt", cwd=path)
    (path / "a.txt").unlink()
    assert await box.workspaces.commit("task_1", "work")
    assert box.files_of("kapelle/task_1") == ["src/b.txt", "src/deep/c.txt"]


async def test_files_that_a_sparse_checkout_leaves_out_stay(box: Sandbox) -> None:
    _, path = await box.create()
    box.git("update-index", "--skip-worktree", "a.txt", cwd=path)
    (path / "a.txt").unlink()
    box.write("new.txt", "new\n", path)
    assert await box.workspaces.commit("task_1", "work")
    assert box.files_of("kapelle/task_1") == ["a.txt", "new.txt", "src/b.txt", "src/deep/c.txt"]


async def test_files_amid_a_conflict_are_committed_as_they_are(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("a.txt", "ours\n", path)
    box.write("src/b.txt", "ours\n", path)
    box.save("ours", path)
    box.write("a.txt", "theirs\n")
    (box.repo / "src/b.txt").unlink()
    theirs = box.save("theirs")
    box.git("merge", theirs, cwd=path, check=False)
    # It takes the other side of both, and leaves it at that.
    box.write("a.txt", "theirs\n", path)
    (path / "src/b.txt").unlink()
    assert box.status(path) == "UU a.txt\nUD src/b.txt"
    assert await box.workspaces.commit("task_1", "work")
    assert box.show("kapelle/task_1:a.txt") == "theirs"
    assert box.files_of("kapelle/task_1") == ["a.txt", "src/deep/c.txt"]
