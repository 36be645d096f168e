"""Making worktrees: where they start, what they hold, and what is refused."""

import asyncio
from pathlib import Path

import pytest

from kapelle.domain.errors import InvalidInput, WorkspaceError
from kapelle.domain.specs import WorkspaceKind
from kapelle.workspaces import Workspaces, is_git_directory, working_directory

from .sandbox import Sandbox


async def test_a_worktree_of_the_current_branch(box: Sandbox) -> None:
    workspace, path = await box.create()
    assert workspace.kind is WorkspaceKind.WORKTREE
    assert path == box.home / "worktrees" / "task_1"
    assert (workspace.branch, workspace.base) == ("kapelle/task_1", "main")
    assert workspace.base_commit == box.commit_of("main")
    assert workspace.commit is None
    assert (path / "src/deep/c.txt").read_text() == "three\n"
    assert box.status(path) == ""
    assert box.git("symbolic-ref", "HEAD", cwd=path) == "refs/heads/kapelle/task_1"
    assert box.status() == ""


async def test_it_is_idempotent(box: Sandbox) -> None:
    first, path = await box.create()
    box.write("work.txt", "of the agent", path)
    again = Workspaces(box.home, "Kapelle", "kapelle@localhost")
    assert await again.create("task_1", box.repo, None) == first
    assert (path / "work.txt").read_text() == "of the agent"


async def test_bases_by_branch_tag_commit_and_detached_head(box: Sandbox) -> None:
    start = box.commit_of("HEAD")
    box.git("tag", "v1")
    box.git("switch", "-q", "-c", "feature/x")
    box.write("x.txt", "x")
    feature = box.save("x")
    cases = {"feature/x": feature, "v1": start, start[:10]: start, "main": start, None: feature}
    for number, (base, commit) in enumerate(cases.items()):
        workspace, _ = await box.create(f"task_{number}", base)
        assert workspace.base_commit == commit
    box.git("switch", "-q", "--detach", start)
    workspace, _ = await box.create("task_detached")
    assert (workspace.base, workspace.base_commit) == (start, start)


async def test_a_branch_wins_over_a_tag_of_the_same_name(box: Sandbox) -> None:
    box.git("tag", "twin")
    box.git("switch", "-q", "-c", "twin")
    box.write("x.txt", "x")
    commit = box.save("x")
    workspace, _ = await box.create(base="twin")
    assert (workspace.base, workspace.base_commit) == ("twin", commit)


async def test_a_subdirectory_is_found_again_in_the_worktree(box: Sandbox) -> None:
    workspace = await box.workspaces.create("task_1", box.repo / "src/deep", None)
    assert working_directory(workspace, box.repo / "src/deep") == Path(workspace.path) / "src/deep"
    assert working_directory(workspace, box.repo) == Path(workspace.path)
    (box.repo / "untracked").mkdir()
    assert working_directory(workspace, box.repo / "untracked") == Path(workspace.path)


async def test_what_cannot_be_a_base_is_refused_with_advice(box: Sandbox) -> None:
    with pytest.raises(InvalidInput) as refused:
        await box.create(base="no-such-branch")
    assert refused.value.hint
    outside = box.root / "plain"
    outside.mkdir()
    with pytest.raises(WorkspaceError, match="not in a git repository"):
        await box.workspaces.create("task_2", outside, None)
    box.git("init", "-q", str(outside))
    with pytest.raises(WorkspaceError, match="no commit yet"):
        await box.workspaces.create("task_2", outside, None)
    assert await box.workspaces.traces() == set()


@pytest.mark.parametrize("task_id", ["../x", "-x", "a/b", "", "x.lock", "a b", "a\n", "x" * 200])
async def test_odd_task_ids_are_refused(box: Sandbox, task_id: str) -> None:
    with pytest.raises(InvalidInput):
        await box.workspaces.create(task_id, box.repo, None)


async def test_locate(box: Sandbox) -> None:
    found = await box.workspaces.locate(box.repo / "src")
    assert found is not None
    assert (found.toplevel, found.common_dir) == (box.repo, box.repo / ".git")
    assert found.head_commit == box.commit_of("HEAD")
    _, path = await box.create()
    inner = await box.workspaces.locate(path)
    assert inner is not None
    assert (inner.toplevel, inner.common_dir) == (path, box.repo / ".git")
    for outside in (box.root, box.repo / ".git", box.repo / ".git/refs", box.root / "missing"):
        assert await box.workspaces.locate(outside) is None


async def test_core_worktree_cannot_lead_elsewhere(box: Sandbox) -> None:
    elsewhere = box.root / "elsewhere"
    elsewhere.mkdir()
    box.git("config", "core.worktree", str(elsewhere))
    found = await box.workspaces.locate(box.repo)
    assert found is not None
    assert found.toplevel == box.repo
    await box.create()
    assert list(elsewhere.iterdir()) == []


async def test_many_at_once_in_one_repository(box: Sandbox) -> None:
    made = await asyncio.gather(*(box.create(f"task_{number}") for number in range(12)))
    for workspace, path in made:
        assert box.git("symbolic-ref", "--short", "HEAD", cwd=path) == workspace.branch
        assert (path / "a.txt").read_text() == "one\n"
        box.write("new.txt", "n", path)
        await box.workspaces.commit(workspace.branch.removeprefix("kapelle/"), "work")
    assert len(box.git("worktree", "list").splitlines()) == 1
    assert len(box.refs("refs/heads/kapelle/")) == 12


async def test_a_half_made_one_is_made_anew(box: Sandbox) -> None:
    _, path = await box.create()
    marker = box.home / "worktrees/task_1.json"
    marker.rename(box.home / "worktrees/task_1.making")
    (box.home / "worktrees/task_1.making").write_text(str(box.repo / ".git"))
    (path / "a.txt").unlink()
    (path / "junk").write_text("junk")
    box.git("commit", "-q", "--allow-empty", "-m", "moved on")
    workspace, path = await box.create()
    assert workspace.base_commit == box.commit_of("main")
    assert box.status(path) == ""
    assert (path / "a.txt").exists()


async def test_a_directory_of_somebody_else_is_not_taken(box: Sandbox) -> None:
    box.write("worktrees/task_1/precious", "x", box.home)
    with pytest.raises(WorkspaceError, match="was not made by Kapelle"):
        await box.create()
    assert (box.home / "worktrees/task_1/precious").exists()


async def test_a_branch_found_on_the_way_is_kept(box: Sandbox) -> None:
    box.git("switch", "-q", "-c", "kapelle/task_1")
    box.write("old.txt", "old")
    old = box.save("old")
    box.git("switch", "-q", "main")
    workspace, _ = await box.create()
    assert workspace.base_commit == box.commit_of("main") == box.commit_of("kapelle/task_1")
    assert box.commit_of("refs/kapelle/archive/task_1/found") == old


async def test_a_removed_worktree_comes_back_on_its_branch(box: Sandbox) -> None:
    workspace, path = await box.create()
    box.write("new.txt", "n", path)
    commit = await box.workspaces.commit("task_1", "work")
    await box.workspaces.remove("task_1")
    box.git("commit", "-q", "--allow-empty", "-m", "moved on")
    again, path = await box.create()
    assert again.base_commit == workspace.base_commit
    assert again.commit == commit
    assert (path / "new.txt").read_text() == "n"
    assert box.status(path) == ""


async def test_a_shallow_clone(box: Sandbox) -> None:
    box.write("a.txt", "later\n")
    box.save("later")
    clone = box.root / "clone"
    box.git("clone", "-q", "--depth=1", f"file://{box.repo}", str(clone), cwd=box.root)
    workspace = await box.workspaces.create("task_1", clone, None)
    box.write("new.txt", "n", Path(workspace.path))
    assert (await box.workspaces.diff("task_1")).files == ["new.txt"]
    await box.workspaces.commit("task_1", "work")
    merged = await box.workspaces.merge("task_1", None, "merge")
    assert (clone / "new.txt").exists()
    assert box.commit_of("main", clone) == merged.commit
    await box.workspaces.remove("task_1")


async def test_a_sha256_repository(tmp_path: Path) -> None:
    box = Sandbox(tmp_path)
    box.make_repository("--object-format=sha256")
    found = await box.workspaces.locate(box.repo)
    assert found is not None
    workspace, path = await box.create()
    assert len(workspace.base_commit or "") == 64
    tree = await box.workspaces.snapshot(box.repo)
    box.write("new.txt", "n", path)
    (path / "a.txt").unlink()
    assert (await box.workspaces.diff("task_1")).files == ["a.txt", "new.txt"]
    await box.workspaces.commit("task_1", "work")
    await box.workspaces.merge("task_1", None, "merge")
    assert (await box.workspaces.diff_since(box.repo, tree)).files == ["a.txt", "new.txt"]
    await box.workspaces.reset("task_1", "one")
    await box.workspaces.remove("task_1")


async def test_attributes_of_a_filter_that_is_not_there_are_harmless(box: Sandbox) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    box.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    box.write("big.bin", pointer)
    box.save("lfs")
    _, path = await box.create()
    assert (path / "big.bin").read_text() == pointer
    assert await box.workspaces.commit("task_1", "nothing") is None


async def test_line_ending_settings_are_respected(box: Sandbox) -> None:
    box.git("config", "core.autocrlf", "true")
    _, path = await box.create()
    assert (path / "a.txt").read_bytes() == b"one\r\n"
    assert (await box.workspaces.diff("task_1")).files == []
    assert await box.workspaces.commit("task_1", "nothing") is None


async def test_a_base_can_be_checked_beforehand(box: Sandbox) -> None:
    box.git("tag", "v1")
    for base in ("main", "v1", "HEAD", box.commit_of("main")):
        await box.workspaces.check_base(box.repo / "src", base)
    for base in ("no-such-branch", "", "-x", "a\0b"):
        with pytest.raises(InvalidInput):
            await box.workspaces.check_base(box.repo, base)
    await box.workspaces.check_base(box.root, "no-such-branch")
    assert box.refs("refs/heads/kapelle/") == []


def test_directories_of_git_itself_are_known(box: Sandbox) -> None:
    bare = box.root / "bare.git"
    box.git("clone", "-q", "--bare", str(box.repo), str(bare))
    box.git("worktree", "add", "-q", str(bare / "work"), "main", cwd=bare)
    for inside in (bare, bare / "refs", box.repo / ".git", box.repo / ".git/objects/info"):
        assert is_git_directory(inside)
    for outside in (box.root, box.repo, box.repo / "src", bare / "work", box.root / "missing"):
        assert not is_git_directory(outside)


async def test_a_branch_that_leaves_no_room_for_ours_is_named(box: Sandbox) -> None:
    box.git("branch", "kapelle")
    with pytest.raises(WorkspaceError, match="has a branch named kapelle") as refused:
        await box.create()
    assert refused.value.hint == "Rename it: git branch -m kapelle kapelle-old"
    box.git("branch", "-m", "kapelle", "kapelle-old")
    await box.create()
