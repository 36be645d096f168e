"""Taking a branch into a worktree: clean, or with conflicts that are resolved in ordinary files."""

import os
import random
import time
from pathlib import Path

import pytest

from kapelle.domain.errors import Conflict, GitError, InvalidInput, MergeConflict
from kapelle.workspaces import Workspaces

from .sandbox import Sandbox
from .test_crash import MERGE, kill_at, kill_during

TAKE_IN = """
import asyncio, sys
from pathlib import Path
from kapelle.workspaces import Workspaces
async def main():
    workspaces = Workspaces(Path(sys.argv[1]), "K", "k@localhost")
    print("ready", flush=True)
    await workspaces.take_in("task_1", sys.argv[3], "Take in")
asyncio.run(main())
"""


async def both(box: Sandbox, theirs: str = "theirs\n") -> Path:
    """A run's branch and a task made from it, which both changed a.txt."""
    _, run = await box.create("run_1")
    _, path = await box.create("task_1", "kapelle/run_1")
    box.write("a.txt", theirs, run)
    box.write("run.txt", "r\n", run)
    await box.workspaces.commit("run_1", "theirs")
    return path


def assert_stands_on(box: Sandbox, path: Path, *parents: str) -> None:
    tip = box.commit_of("kapelle/task_1")
    assert box.git("log", "-1", "--format=%P", tip) == " ".join(parents)
    assert box.status(path) == ""
    assert box.git("symbolic-ref", "--short", "HEAD", cwd=path) == "kapelle/task_1"
    assert not list((box.repo / ".git").glob("**/*.lock"))


async def test_a_clean_merge_brings_the_files_and_keeps_the_work(box: Sandbox) -> None:
    path = await both(box)
    box.write("own.txt", "uncommitted\n", path)
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == []
    assert (path / "a.txt").read_text() == "theirs\n"
    assert (path / "own.txt").read_text() == "uncommitted\n"
    log = await box.workspaces.log("task_1")
    assert [commit.subject for commit in log] == [
        "Take in",
        "Work before kapelle/run_1 was taken in",
    ]
    assert_stands_on(box, path, log[1].id, box.commit_of("kapelle/run_1"))
    refs = box.git("for-each-ref")
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == []
    assert box.git("for-each-ref") == refs
    assert (await box.workspaces.merge("task_1", None, "m")).base == "kapelle/run_1"


async def test_a_conflict_is_given_as_files_and_its_resolution_merges_cleanly(
    box: Sandbox,
) -> None:
    path = await both(box)
    box.write("a.txt", "ours\n", path)
    ours = await box.workspaces.commit("task_1", "ours")
    with pytest.raises(MergeConflict):
        await box.workspaces.merge("task_1", None, "m")
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == ["a.txt"]
    assert_stands_on(box, path, ours or "", box.commit_of("kapelle/run_1"))
    text = (path / "a.txt").read_text()
    assert text.startswith("<<<<<<< ")
    assert "\nours\n=======\ntheirs\n>>>>>>> " in text
    assert (path / "run.txt").read_text() == "r\n"
    assert await box.workspaces.find_conflicted("task_1", ["a.txt", "run.txt"]) == ["a.txt"]
    box.write("a.txt", "both\n", path)
    assert await box.workspaces.find_conflicted("task_1", ["a.txt"]) == []
    await box.workspaces.commit("task_1", "resolved")
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == []
    await box.workspaces.merge("task_1", None, "m")
    assert (box.home / "worktrees/run_1/a.txt").read_text() == "both\n"


async def test_an_untouched_conflict_is_told_again_and_nothing_comes_on_top(box: Sandbox) -> None:
    path = await both(box)
    box.write("a.txt", "ours\n", path)
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == ["a.txt"]
    tip = box.commit_of("kapelle/task_1")
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == ["a.txt"]
    box.write("a.txt", "theirs, later\n", box.home / "worktrees/run_1")
    await box.workspaces.commit("run_1", "later")
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == ["a.txt"]
    assert box.commit_of("kapelle/task_1") == tip
    box.write("a.txt", "resolved\n", path)
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == ["a.txt"]
    assert "theirs, later" in (path / "a.txt").read_text()


async def test_what_is_resolved_in_part_is_told_in_part(box: Sandbox) -> None:
    path = await both(box)
    run = box.home / "worktrees/run_1"
    for top, text in ((run, "theirs\n"), (path, "ours\n")):
        for name in ("a.txt", "src/b.txt"):
            box.write(name, text, top)
    await box.workspaces.commit("run_1", "both files")
    conflicts = ["a.txt", "src/b.txt"]
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == conflicts
    box.write("a.txt", "resolved\n", path)
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == ["src/b.txt"]
    box.write("later.txt", "l", run)
    await box.workspaces.commit("run_1", "later")
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == ["src/b.txt"]
    assert not (path / "later.txt").exists()
    box.write("src/b.txt", "resolved\n", path)
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == []
    assert (path / "later.txt").exists()


async def test_a_file_changed_here_and_deleted_there(box: Sandbox) -> None:
    path = await both(box)
    run = box.home / "worktrees/run_1"
    (run / "src/b.txt").unlink()
    await box.workspaces.commit("run_1", "deleted")
    box.write("src/b.txt", "changed\n", path)
    for _ in range(2):
        assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == ["src/b.txt"]
    assert (path / "src/b.txt").read_text() == "changed\n"
    assert await box.workspaces.find_conflicted("task_1", ["src/b.txt"]) == []
    # To leave it as it is was the resolution, so that the next commits are taken in.
    box.write("more.txt", "m\n", run)
    await box.workspaces.commit("run_1", "more")
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == []
    assert (path / "more.txt").exists()


async def test_binary_files_and_odd_names_in_conflict(box: Sandbox) -> None:
    _, run = await box.create("run_1")
    _, path = await box.create("task_1", "kapelle/run_1")
    odd = Path(os.fsdecode(os.fsencode(path) + b"/\xff x"))
    for top, text in ((run, b"theirs\n"), (path, b"ours\n")):
        box.write("bin", b"\0" + text, top)
        box.write("über\n", text, top)
        Path(os.fsdecode(os.fsencode(top) + b"/\xff x")).write_bytes(text)
    await box.workspaces.commit("run_1", "theirs")
    conflicts = await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in")
    assert sorted(conflicts) == ["\\xff x", "bin", "über\n"]
    assert (path / "bin").read_bytes() == b"\0ours\n"
    assert sorted(await box.workspaces.find_conflicted("task_1", conflicts)) == [
        "\\xff x",
        "über\n",
    ]
    odd.write_bytes(b"resolved\n")
    assert await box.workspaces.find_conflicted("task_1", conflicts) == ["über\n"]


@pytest.mark.parametrize("amid", ["merge", "rebase", "detached", "elsewhere"])
async def test_whatever_the_agent_was_amid(box: Sandbox, amid: str) -> None:
    path = await both(box)
    box.write("a.txt", "ours\n", path)
    ours = box.save("ours", path)
    if amid in ("merge", "rebase"):
        box.git(amid, box.commit_of("kapelle/run_1"), cwd=path, check=False)
        box.write("a.txt", "resolved by hand\n", path)
    elif amid == "detached":
        box.git("switch", "-q", "--detach", "HEAD^", cwd=path)
    else:
        box.git("switch", "-q", "-c", "elsewhere", cwd=path)
    await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in")
    assert box.status(path) == ""
    assert box.git("symbolic-ref", "--short", "HEAD", cwd=path) == "kapelle/task_1"
    held = box.commit_of("kapelle/run_1")
    box.git("merge-base", "--is-ancestor", held, "kapelle/task_1")
    refs = ["kapelle/task_1", *box.refs("refs/kapelle/archive/task_1")]
    assert ours in box.git("log", "--format=%H", *refs).split()


async def test_ignored_files_make_way_and_are_archived(box: Sandbox) -> None:
    path = await both(box)
    run = box.home / "worktrees/run_1"
    box.write("cache/x.bin", "theirs", run)
    box.write("out", "theirs", run)
    await box.workspaces.commit("run_1", "what should be ignored")
    box.write(".gitignore", "cache/\nout\n", path)
    box.write("cache/x.bin", "mine", path)
    box.write("cache/y.bin", "mine", path)
    box.write("out/deep/z", "mine", path)
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == []
    assert (path / "cache/x.bin").read_text() == "theirs"
    assert (path / "out").read_text() == "theirs"
    assert (path / "cache/y.bin").read_text() == "mine"
    kept = "refs/kapelle/archive/task_1/in-the-way"
    assert box.show(f"{kept}:cache/x.bin") == box.show(f"{kept}:out/deep/z") == "mine"
    assert box.status(path) == ""


async def test_a_copied_file_in_the_way_is_refused_and_stays(box: Sandbox) -> None:
    box.write(".env", "SECRET=1")
    _, run = await box.create("run_1")
    await box.workspaces.create("task_1", box.repo, "kapelle/run_1", [".env"])
    path = box.home / "worktrees/task_1"
    box.write(".env", "theirs", run)
    await box.workspaces.commit("run_1", "theirs")
    tip = box.tip("task_1")
    with pytest.raises(Conflict, match="overwrite") as refused:
        await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in")
    assert refused.value.hint
    assert (path / ".env").read_text() == "SECRET=1"
    assert box.tip("task_1") == tip


@pytest.mark.parametrize("branch", ["missing", "", "-x", "HEAD", "main~0", "a b", "\udcff", "x\0"])
async def test_only_a_branch_can_be_taken_in(box: Sandbox, branch: str) -> None:
    path = await both(box)
    box.write("own.txt", "o", path)
    with pytest.raises(InvalidInput):
        await box.workspaces.take_in("task_1", branch, "Take in")
    assert box.status(path) == "?? own.txt"


async def test_histories_without_a_common_beginning_are_refused(box: Sandbox) -> None:
    path = await both(box)
    tree = box.commit_of("main^{tree}")
    alien = box.git("commit-tree", "-m", "alien", tree)
    box.git("branch", "alien", alien)
    tip = box.tip("task_1")
    with pytest.raises(GitError, match="unrelated"):
        await box.workspaces.take_in("task_1", "alien", "Take in")
    assert box.tip("task_1") == tip
    # Somebody may have merged such a one by hand.
    box.git(
        "merge", "-q", "-s", "ours", "--allow-unrelated-histories", box.commit_of("alien"), cwd=path
    )
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == []


async def test_a_removed_worktree_takes_nothing_in(box: Sandbox) -> None:
    await both(box)
    await box.workspaces.remove("task_1")
    for act in (
        box.workspaces.take_in("task_1", "kapelle/run_1", "m"),
        box.workspaces.find_conflicted("task_1", ["a.txt"]),
    ):
        with pytest.raises(Conflict, match="was removed"):
            await act


@pytest.mark.parametrize("text", ["uncommitted\n", "theirs\n"])
@pytest.mark.parametrize(
    ("when", "step"),
    [
        ("before", "commit-tree"),
        ("after", "update-ref"),
        ("before", "merge-tree"),
        ("after", "merge-tree"),
        ("before", "read-tree -n -m -u"),
        ("before", "read-tree -m -u"),
        ("after", "read-tree -m -u"),
    ],
)
async def test_killed_at_each_step(box: Sandbox, when: str, step: str, text: str) -> None:
    path = await both(box)
    box.write("a.txt", text, path)
    await kill_at(TAKE_IN, box, "kapelle/run_1", step, when)
    expected = [] if text == "theirs\n" else ["a.txt"]
    survivor = Workspaces(box.home, "K", "k@localhost")
    assert await survivor.take_in("task_1", "kapelle/run_1", "Take in") == expected
    _assert_taken_once(box, path)


async def test_killed_at_any_moment(box: Sandbox) -> None:
    path = await both(box)
    base = box.commit_of("main")
    chance = random.Random(time.time_ns())
    for number in range(6):
        await box.workspaces.restore("task_1", base, f"round-{number}")
        box.write("a.txt", f"ours {number}\n", path)
        await kill_during(TAKE_IN, box, "kapelle/run_1", chance.uniform(0, 0.25))
        survivor = Workspaces(box.home, "K", "k@localhost")
        assert await survivor.take_in("task_1", "kapelle/run_1", "Take in") == ["a.txt"]
        _assert_taken_once(box, path)
        assert f"ours {number}\n=======\ntheirs\n" in (path / "a.txt").read_text()


async def test_after_a_kill_any_other_operation_finds_it_whole(box: Sandbox) -> None:
    path = await both(box)
    box.write("a.txt", "ours\n", path)
    await kill_at(TAKE_IN, box, "kapelle/run_1", "read-tree -m -u", "before")
    assert (path / "a.txt").read_text() == "ours\n"  # the branch moved, the files did not
    survivor = Workspaces(box.home, "K", "k@localhost")
    tip = box.tip("task_1")
    assert await survivor.commit("task_1", "nothing") == tip
    assert await survivor.find_conflicted("task_1", ["a.txt"]) == ["a.txt"]
    _assert_taken_once(box, path)


async def test_a_merge_of_others_that_was_cut_short_is_finished_first(box: Sandbox) -> None:
    path = await both(box)
    _, other = await box.create("task_2")
    box.write("other.txt", "o", other)
    await box.workspaces.commit("task_2", "work")
    await kill_at(MERGE, box, "task_2", "read-tree -m -u", "before")
    assert not (box.repo / "other.txt").exists()
    assert await box.workspaces.take_in("task_1", "kapelle/run_1", "Take in") == []
    assert (box.repo / "other.txt").exists()
    assert box.status() == ""
    _assert_taken_once(box, path)


def _assert_taken_once(box: Sandbox, path: Path) -> None:
    parents = box.git("log", "-1", "--format=%P", "kapelle/task_1").split()
    assert_stands_on(box, path, parents[0], box.commit_of("kapelle/run_1"))
    assert box.git("rev-list", "--count", f"kapelle/run_1~..{parents[0]}") in ("0", "1")
    assert (path / "run.txt").read_text() == "r\n"
    assert not list((box.home / "merges").glob("*.json"))
