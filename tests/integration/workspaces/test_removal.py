"""Archiving, resetting and removing: nothing an agent wrote is ever lost."""

import asyncio
import shutil
from pathlib import Path

import pytest

from kapelle.domain.errors import InvalidInput, WorkspaceError

from .sandbox import Sandbox


async def test_an_archive_holds_what_was_not_committed(box: Sandbox) -> None:
    _, path = await box.create()
    assert await box.archive("attempt-1") is None
    box.write("a.txt", "dirty\n", path)
    box.write("new.txt", "n", path)
    status = box.status(path)
    commit = await box.archive("attempt-1")
    assert box.commit_of("refs/kapelle/archive/task_1/attempt-1") == commit
    assert box.show(f"{commit}:a.txt") == "dirty"
    assert "new.txt" in box.files_of(commit or "")
    assert box.status(path) == status
    assert box.refs("refs/heads/") == ["refs/heads/main"]


async def test_an_archive_never_replaces_another(box: Sandbox) -> None:
    _, path = await box.create()
    kept = []
    for text in ("first", "second", "third"):
        box.write("new.txt", text, path)
        kept.append(await box.archive("same"))
    assert len(set(kept)) == 3
    assert {box.commit_of(ref) for ref in box.refs("refs/kapelle/archive/task_1/")} == set(kept)


async def test_an_archive_holds_head_and_branch(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("one.txt", "1", path)
    tip = box.save("on the branch", path)
    box.git("switch", "-q", "--detach", "HEAD^", cwd=path)
    box.write("two.txt", "2", path)
    head = box.save("detached", path)
    commit = await box.archive("both")
    for kept in (tip, head):
        box.git("merge-base", "--is-ancestor", kept, commit or "")


async def test_archive_names_are_plain(box: Sandbox) -> None:
    await box.create()
    for name in ("../x", "-d", "a b", "", "x.lock"):
        with pytest.raises(InvalidInput):
            await box.workspaces.reset("task_1", name)


async def test_reset_puts_everything_back_and_keeps_it(box: Sandbox) -> None:
    box.write(".gitignore", "build/\n")
    box.save("ignore")
    workspace, path = await box.create()
    box.write("committed.txt", "c", path)
    box.save("by the agent", path)
    box.git("switch", "-q", "-c", "elsewhere", cwd=path)
    box.write("a.txt", "dirty", path)
    box.write("new/deep.txt", "n", path)
    box.write("build/out", "o", path)
    (path / "src/b.txt").unlink()
    box.git("init", "-q", str(path / "nested"))
    box.write("nested/x.txt", "x", path)
    again = await box.workspaces.reset("task_1", "attempt-1")
    assert again.base_commit == workspace.base_commit == box.tip("task_1")
    assert box.status(path) == ""
    assert box.git("symbolic-ref", "--short", "HEAD", cwd=path) == "kapelle/task_1"
    assert not (path / "nested").exists()
    assert not (path / "new").exists()
    assert (path / "build/out").exists()
    kept = set(box.files_of("refs/kapelle/archive/task_1/attempt-1"))
    assert {"committed.txt", "new/deep.txt", "nested/x.txt"} <= kept
    assert await box.workspaces.commit("task_1", "nothing") is None


async def test_reset_to_the_present_commit_of_the_base(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("new.txt", "n", path)
    await box.workspaces.commit("task_1", "work")
    box.write("a.txt", "later\n")
    later = box.save("later")
    assert (await box.workspaces.reset("task_1", "one", "main")).base_commit == later
    assert (path / "a.txt").read_text() == "later\n"
    assert not (path / "new.txt").exists()
    assert (await box.workspaces.diff("task_1")).files == []
    with pytest.raises(InvalidInput):
        await box.workspaces.reset("task_1", "two", "no-such-base")


async def test_reset_ends_an_unfinished_merge(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("a.txt", "theirs\n", path)
    box.save("theirs", path)
    box.write("a.txt", "ours\n")
    box.save("ours")
    box.git("merge", box.commit_of("main"), cwd=path, check=False)
    assert "unmerged paths" in box.git("status", cwd=path)
    await box.workspaces.reset("task_1", "one")
    assert box.status(path) == ""
    assert "unmerged paths" not in box.git("status", cwd=path)
    assert not (path / ".git/MERGE_HEAD").exists()


async def test_remove_keeps_branch_and_content(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("new.txt", "n", path)
    commit = await box.workspaces.commit("task_1", "work")
    box.write("late.txt", "l", path)
    await box.workspaces.remove("task_1")
    assert [entry.name for entry in path.parent.iterdir()] == ["task_1.json"]
    assert box.commit_of("kapelle/task_1") == commit
    assert "late.txt" in box.files_of("refs/kapelle/archive/task_1/final")
    await box.workspaces.remove("task_1")


@pytest.mark.parametrize("damage", ["no_repository", "no_objects", "no_directory", "misled"])
async def test_remove_copes_with_damage(box: Sandbox, damage: str) -> None:
    _, path = await box.create()
    gitdir = path / ".git"
    victim = box.root / "victim"
    box.git("worktree", "add", "-q", "--detach", str(victim))
    box.write("new.txt", "n", path)
    if damage == "no_repository":
        shutil.rmtree(gitdir)
    elif damage == "no_objects":
        shutil.rmtree(gitdir / "objects")
    elif damage == "no_directory":
        shutil.rmtree(path)
    else:
        shutil.rmtree(gitdir)
        gitdir.write_bytes((victim / ".git").read_bytes())
    await box.workspaces.remove("task_1")
    assert not path.exists()
    assert len(box.git("worktree", "list").splitlines()) == 2
    assert (victim / "a.txt").exists()
    if damage != "no_directory":
        assert "new.txt" in box.files_of("refs/kapelle/archive/task_1/final")


async def test_uncommitted_work_in_a_submodule_is_archived(box: Sandbox) -> None:
    library = box.root / "library"
    box.git("init", "-q", "-b", "main", str(library))
    box.write("lib.txt", "l\n", library)
    box.save("lib", library)
    box.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "lib")
    box.save("with a submodule")
    _, path = await box.create()
    box.git("-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init", cwd=path)
    assert await box.workspaces.commit("task_1", "nothing") is None
    box.write("lib/lib.txt", "changed by the agent\n", path)
    await box.workspaces.remove("task_1")
    assert not path.exists()
    assert box.show("refs/kapelle/archive/task_1/final:lib/lib.txt") == "changed by the agent"


async def test_nothing_is_removed_while_something_still_writes(box: Sandbox) -> None:
    _, path = await box.create()
    script = "while [ ! -e ../stop ]; do echo more >> busy.txt || exit; done"
    writer = await asyncio.create_subprocess_exec("sh", "-c", script, cwd=path)
    for _ in range(500):
        await asyncio.sleep(0.01)
        if (path / "busy.txt").exists():
            break
    try:
        with pytest.raises(WorkspaceError):
            await box.workspaces.remove("task_1")
        assert (path / "a.txt").exists()
    finally:
        box.write("stop", "", path.parent)
        await writer.wait()
    (path.parent / "stop").unlink()
    await box.workspaces.remove("task_1")
    assert not path.exists()


async def test_discarding_leaves_nothing_but_refs(box: Sandbox) -> None:
    _, ready = await box.create("task_ready")
    await box.create("task_known")
    await box.create("task_removed")
    await box.workspaces.remove("task_removed")
    _, half = await box.create("task_half")
    _half_make(box, "task_half")
    made = {"task_half", "task_known", "task_ready"}
    assert await box.workspaces.traces() == made | {"task_removed"}
    box.write("new.txt", "n", ready)
    for task_id in ("task_half", "task_ready", "task_removed"):
        await box.workspaces.discard(task_id)
        await box.workspaces.discard(task_id)
    assert not ready.exists()
    assert not half.exists()
    kept = ["refs/kapelle/archive/task_ready/final", "refs/kapelle/base/task_known"]
    assert box.refs("refs/kapelle/") == kept
    assert await box.workspaces.traces() == {"task_known"}
    assert {entry.name for entry in ready.parent.iterdir()} == {"task_known", "task_known.json"}


async def test_a_damaged_marker_hides_no_other_worktree(box: Sandbox) -> None:
    await box.create("task_1")
    await box.create("task_2")
    box.write("worktrees/task_1.json", "{", box.home)
    assert await box.workspaces.traces() == {"task_1", "task_2"}
    with pytest.raises(WorkspaceError, match="damaged"):
        await box.workspaces.discard("task_1")
    await box.workspaces.discard("task_2")
    assert await box.workspaces.traces() == {"task_1"}


async def test_removing_what_was_only_half_made_clears_it(box: Sandbox) -> None:
    _, half = await box.create("task_half")
    _half_make(box, "task_half")
    await box.workspaces.remove("task_half")
    assert not half.exists()
    assert await box.workspaces.traces() == set()
    assert list(half.parent.iterdir()) == []


async def test_a_worktree_whose_repository_is_gone_is_left_as_it_is(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("new.txt", "n", path)
    shutil.rmtree(box.repo)
    for act in (
        lambda: box.workspaces.remove("task_1"),
        lambda: box.workspaces.discard("task_1"),
        lambda: box.workspaces.reset("task_1", "one"),
        lambda: box.workspaces.commit("task_1", "work"),
    ):
        with pytest.raises(WorkspaceError, match=r"repository .* is gone") as refused:
            await act()
        assert str(path) in (refused.value.hint or "")
    assert not box.repo.exists()
    assert (path / "new.txt").read_text() == "n"
    assert await box.workspaces.traces() == {"task_1"}


async def test_when_a_person_deleted_repository_and_worktree_it_counts_as_removed(
    box: Sandbox,
) -> None:
    _, path = await box.create()
    shutil.rmtree(box.repo)
    shutil.rmtree(path)
    await box.workspaces.remove("task_1")
    await box.workspaces.discard("task_1")
    assert not box.repo.exists()
    assert await box.workspaces.traces() == set()


def _half_make(box: Sandbox, task_id: str) -> None:
    Path(box.home, "worktrees", f"{task_id}.json").unlink()
    box.write(f"worktrees/{task_id}.making", str(box.repo / ".git"), box.home)
