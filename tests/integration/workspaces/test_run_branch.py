"""Tasks merged into the branch of a run, which is checked out in the run's own worktree."""

import asyncio
import shutil
from pathlib import Path

import pytest

from kapelle.domain.errors import Conflict, MergeConflict
from kapelle.workspaces import Workspaces

from .sandbox import Sandbox
from .test_crash import MERGE, kill_at

RUN = "kapelle/run_1"


async def task(box: Sandbox, owner: str = "task_1", name: str = "new.txt", text: str = "n") -> str:
    _, path = await box.create(owner, RUN)
    box.write(name, text, path)
    return await box.workspaces.commit(owner, "work") or ""


async def run(box: Sandbox) -> Path:
    _, path = await box.create("run_1")
    return path


def survivor(box: Sandbox) -> Workspaces:
    return Workspaces(box.home, "K", "k@localhost")


def assert_whole(box: Sandbox, path: Path) -> None:
    assert box.status(path) == ""
    assert not list((box.repo / ".git").glob("**/*.lock"))
    assert not list((box.home / "merges").glob("*.json"))


async def test_a_clean_worktree_of_the_run_moves_along(box: Sandbox) -> None:
    path, main = await run(box), box.commit_of("main")
    commit = await task(box)
    box.write("notes.txt", "untracked and unrelated", path)
    merge = await box.workspaces.merge("task_1", RUN, "Merge it", expected_tip=commit)
    assert (merge.base, merge.already, merge.checkout_updated) == (RUN, False, path)
    assert box.git("log", "-1", "--format=%P", RUN) == f"{main} {commit}"
    assert (path / "new.txt").read_text() == "n"
    assert box.status(path) == "?? notes.txt"
    assert box.commit_of("main") == main
    assert box.status() == ""
    assert box.is_merged("task_1", RUN)
    assert (await box.workspaces.merge("task_1", None, "Merge it")).already
    assert await box.workspaces.commit("run_1", "notes")
    assert (await box.workspaces.diff("run_1")).files == ["new.txt", "notes.txt"]


async def test_a_diamond_ends_in_one_branch_and_then_in_main(box: Sandbox) -> None:
    path = await run(box)
    await task(box, "task_1", "one.txt")
    await box.workspaces.merge("task_1", RUN, "m")
    for owner in ("task_2", "task_3"):
        await task(box, owner, f"{owner}.txt")
        assert (box.home / f"worktrees/{owner}/one.txt").exists()
    await asyncio.gather(*(box.workspaces.merge(f"task_{n}", RUN, "m") for n in (2, 3)))
    await task(box, "task_4", "four.txt")
    assert (box.home / "worktrees/task_4/task_3.txt").exists()
    await box.workspaces.merge("task_4", RUN, "m")
    assert_whole(box, path)
    await box.workspaces.merge("run_1", None, "The run")
    names = {"one.txt", "task_2.txt", "task_3.txt", "four.txt"}
    assert names <= {entry.name for entry in box.repo.iterdir()}
    assert box.status() == ""


@pytest.mark.parametrize("dirt", ["edited", "staged", "deleted"])
async def test_what_the_merge_does_not_touch_stays_as_it_is(box: Sandbox, dirt: str) -> None:
    path = await run(box)
    await task(box)
    box.write("a.txt", "work of the run\n", path)
    if dirt == "staged":
        box.git("add", "-A", cwd=path)
    elif dirt == "deleted":
        (path / "a.txt").unlink()
    before = box.status(path)
    await box.workspaces.merge("task_1", RUN, "m")
    assert (path / "new.txt").read_text() == "n"
    assert box.status(path) == before


@pytest.mark.parametrize("dirt", ["untracked", "merging", "locked"])
async def test_a_dirty_worktree_of_the_run_is_left_alone(box: Sandbox, dirt: str) -> None:
    path, main = await run(box), box.commit_of("main")
    await task(box)
    if dirt == "untracked":
        box.write("new.txt", "precious", path)
    elif dirt == "merging":
        box.write("MERGE_HEAD", main + "\n", box.gitdir("run_1"))
    lock = box.gitdir("run_1") / "index.lock"
    before = box.status(path)
    if dirt == "locked":
        lock.write_text("of a running git")
    with pytest.raises(Conflict, match=str(path)) as refused:
        await box.workspaces.merge("task_1", RUN, "m")
    assert refused.value.hint
    assert box.tip("run_1") == main
    assert lock.exists() is (dirt == "locked")
    assert not list((box.home / "merges").glob("*.json"))
    if dirt != "locked":
        assert box.status(path) == before
        await box.workspaces.commit("run_1", "its own work")
        await box.workspaces.restore("run_1", await box.workspaces.tip("run_1"), "again")
        if dirt == "untracked":
            with pytest.raises(MergeConflict):
                await box.workspaces.merge("task_1", RUN, "m")
        else:
            await box.workspaces.merge("task_1", RUN, "m")
            assert_whole(box, path)


async def test_ignored_files_of_the_run_make_way_and_are_archived(box: Sandbox) -> None:
    box.write(".gitignore", "out/\n")
    box.save("ignore")
    path = await run(box)
    _, other = await box.create("task_1", RUN)
    box.write("out/x", "tracked after all", other)
    box.git("add", "-f", "out/x", cwd=other)
    await box.workspaces.commit("task_1", "work")
    box.write("out/x", "built by the run", path)
    box.write("out/y", "built by the run", path)
    await box.workspaces.merge("task_1", RUN, "m")
    assert (path / "out/x").read_text() == "tracked after all"
    assert (path / "out/y").read_text() == "built by the run"
    assert box.show("refs/kapelle/archive/run_1/in-the-way:out/x") == "built by the run"
    assert_whole(box, path)


async def test_a_conflict_changes_nothing(box: Sandbox) -> None:
    path = await run(box)
    await task(box, "task_1", "a.txt", "first\n")
    await task(box, "task_2", "a.txt", "second\n")
    await box.workspaces.merge("task_1", RUN, "m")
    held = box.tip("run_1")
    with pytest.raises(MergeConflict, match=r"a\.txt") as refused:
        await box.workspaces.merge("task_2", RUN, "m")
    assert refused.value.hint
    assert box.tip("run_1") == held
    assert (path / "a.txt").read_text() == "first\n"
    assert_whole(box, path)


@pytest.mark.parametrize("away", ["detached", "switched", "rebasing", "no_repository", "replaced"])
async def test_a_run_that_stands_elsewhere_never_undoes_a_merge(box: Sandbox, away: str) -> None:
    path, main = await run(box), box.commit_of("main")
    await task(box)
    if away == "detached":
        box.git("switch", "-q", "--detach", cwd=path)
    elif away == "switched":
        box.git("switch", "-q", "-c", "elsewhere", cwd=path)
    elif away == "rebasing":
        gitdir = box.gitdir("run_1")
        box.write("rebase-merge/head-name", f"refs/heads/{RUN}\n", gitdir)
    else:
        shutil.rmtree(path / ".git")
    if away == "replaced":
        box.git("init", "-q", str(path))
    if away == "no_repository":
        await box.workspaces.merge("task_1", RUN, "m")
    else:
        with pytest.raises(Exception, match="run_1") as refused:
            await box.workspaces.merge("task_1", RUN, "m")
        assert getattr(refused.value, "hint", None)
        assert box.tip("run_1") == main
    if away != "replaced":
        await box.workspaces.commit("run_1", "nothing")
        await box.workspaces.restore("run_1", await box.workspaces.tip("run_1"), "again")
        await box.workspaces.merge("task_1", RUN, "m")
        assert (path / "new.txt").exists()
        assert box.is_merged("task_1", RUN)
        assert_whole(box, path)


@pytest.mark.parametrize(
    ("when", "step", "merged"),
    [
        ("before", "update-index", False),
        ("before", "update-ref", False),
        ("after", "update-ref", True),
        ("before", "read-tree -m -u", True),
        ("after", "read-tree -m -u", True),
    ],
)
@pytest.mark.parametrize("first", ["finish_merges", "commit", "create", "restore", "merge"])
async def test_killed_amid_a_merge_into_the_run(
    box: Sandbox, when: str, step: str, merged: bool, first: str
) -> None:
    path = await run(box)
    box.write("own.txt", "o", path)
    main = await box.workspaces.commit("run_1", "own")
    commit = await task(box)
    await kill_at(MERGE, box, "task_1", step, when)
    tip = box.tip("run_1")
    assert (tip != main) is merged
    again = survivor(box)
    if first == "finish_merges":
        assert await again.finish_merges() == ["task_1"]
    elif first == "commit":
        assert await again.commit("run_1", "nothing") == tip
    elif first == "create":
        await again.create("run_1", box.repo, None)
    elif first == "restore":
        await again.restore("run_1", tip, "same")
    else:
        assert (await again.merge("task_1", RUN, "m")).already is merged
    assert_whole(box, path)
    assert box.refs("refs/kapelle/archive/run_1") == []
    if first != "merge":
        assert box.tip("run_1") == tip
    await again.merge("task_1", RUN, "m", expected_tip=commit)
    assert (path / "new.txt").read_text() == "n"
    assert_whole(box, path)


async def test_edits_since_the_kill_bar_commits_but_not_a_restore(box: Sandbox) -> None:
    path = await run(box)
    await task(box, "task_1", "a.txt", "merged\n")
    await kill_at(MERGE, box, "task_1", "read-tree -m -u", "after")
    box.write("a.txt", "edited since\n", path)
    with pytest.raises(Conflict, match="changed since"):
        await survivor(box).commit("run_1", "work")
    tip = box.tip("run_1")
    await survivor(box).create("run_1", box.repo, None)
    await survivor(box).restore("run_1", tip, "again")
    assert (path / "a.txt").read_text() == "merged\n"
    assert box.show("refs/kapelle/archive/run_1/again:a.txt") == "edited since"
    assert await survivor(box).finish_merges() == ["task_1"]
    assert_whole(box, path)


async def test_merges_and_commits_of_the_run_do_not_disturb_each_other(box: Sandbox) -> None:
    path = await run(box)
    for number in range(4):
        _, other = await box.create(f"task_{number}", RUN)
        for file in range(150):
            box.write(f"n{number}/{file}.txt", f"{number}\n" * 200, other)
        await box.workspaces.commit(f"task_{number}", "work")
    merged = asyncio.Event()

    async def work() -> None:
        number = 0
        while not merged.is_set():
            box.write(f"own/{number}.txt", "o", path)
            await box.workspaces.commit("run_1", f"own {number}")
            number += 1

    working = asyncio.create_task(work())
    for number in range(4):
        await box.workspaces.merge(f"task_{number}", RUN, f"Merge {number}")
    merged.set()
    await working
    assert_whole(box, path)
    held = box.files_of(RUN)
    assert len([name for name in held if name.startswith("n")]) == 600
    subjects = [commit.subject for commit in await box.workspaces.log("run_1", None)]
    own = [subject for subject in reversed(subjects) if subject.startswith("own")]
    assert own == [f"own {number}" for number in range(len(own))]
    assert len([name for name in held if name.startswith("own/")]) == len(own) > 1
    assert len(subjects) == len(own) + 4


async def test_merged_removed_and_made_again_from_the_branch_of_a_run(box: Sandbox) -> None:
    await run(box)
    commit = await task(box)
    workspace, path = await box.create("task_1", RUN)
    await box.workspaces.merge("task_1", RUN, "m")
    before = await box.workspaces.diff("task_1")
    await box.workspaces.remove("task_1")
    assert await box.workspaces.diff("task_1") == before
    assert before.files == ["new.txt"]
    again, _ = await box.create("task_1", RUN)
    assert (again.base, again.base_commit) == (RUN, workspace.base_commit)
    assert again.commit == commit == box.commit_of("HEAD", path)
    assert box.status(path) == ""
    assert await box.workspaces.diff("task_1") == before
    box.write("more.txt", "m", path)
    await box.workspaces.commit("task_1", "more")
    assert not box.is_merged("task_1", RUN)
    await box.workspaces.merge("task_1", None, "m")
    assert (box.home / "worktrees/run_1/more.txt").exists()


async def test_made_again_although_the_branch_of_the_run_is_gone(box: Sandbox) -> None:
    path = await run(box)
    box.write("own.txt", "o", path)
    await box.workspaces.commit("run_1", "own")
    commit = await task(box)
    await box.workspaces.remove("task_1")
    await box.workspaces.remove("run_1")
    box.git("branch", "-D", RUN)
    again, path = await box.create("task_1", RUN)
    assert (again.base, again.commit) == (RUN, commit)
    assert (path / "new.txt").exists()


async def test_a_run_whose_worktree_was_removed_is_merged_into_all_the_same(box: Sandbox) -> None:
    path = await run(box)
    await task(box)
    await box.workspaces.remove("run_1")
    assert (await box.workspaces.merge("task_1", RUN, "m")).checkout_updated is None
    await run(box)
    assert (path / "new.txt").exists()
    assert box.status(path) == ""


async def test_a_task_made_from_inside_the_worktree_of_a_run(box: Sandbox) -> None:
    path = await run(box)
    box.write("own.txt", "committed by the run", path)
    await box.workspaces.commit("run_1", "own")
    workspace = await box.workspaces.create("task_1", path, None)
    assert (workspace.base, workspace.base_commit) == (RUN, box.tip("run_1"))
    box.write("new.txt", "n", Path(workspace.path))
    await box.workspaces.commit("task_1", "work")
    merge = await box.workspaces.merge("task_1", None, "m")
    assert (merge.base, merge.checkout_updated) == (RUN, path)
    assert_whole(box, path)
