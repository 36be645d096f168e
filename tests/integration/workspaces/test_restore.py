"""Putting a worktree to a commit: branch, index and files, and nothing that was there is lost."""

import asyncio
import random
import shutil
import time
from pathlib import Path

import pytest

from kapelle.domain.errors import InvalidInput, WorkspaceError
from kapelle.workspaces import Workspaces

from .sandbox import Sandbox
from .test_crash import kill_at, kill_during

OWNER = "run_1"
ARCHIVE = f"refs/kapelle/archive/{OWNER}"

RESTORE = """
import asyncio, sys
from pathlib import Path
from kapelle.workspaces import Workspaces
async def main():
    workspaces = Workspaces(Path(sys.argv[1]), "K", "k@localhost")
    print("ready", flush=True)
    await workspaces.restore("run_1", sys.argv[3], "back")
asyncio.run(main())
"""


async def two_steps(box: Sandbox) -> tuple[Path, str, str]:
    _, path = await box.create(OWNER)
    box.write("a.txt", "first\n", path)
    first = await box.workspaces.commit(OWNER, "first")
    box.write("a.txt", "second\n", path)
    box.write("second.txt", "2\n", path)
    second = await box.workspaces.commit(OWNER, "second")
    return path, first or "", second or ""


def assert_at(box: Sandbox, path: Path, commit: str) -> None:
    assert box.commit_of("kapelle/run_1") == commit
    assert box.git("symbolic-ref", "--short", "HEAD", cwd=path) == "kapelle/run_1"
    assert box.status(path) == ""
    assert box.git("write-tree", cwd=path) == box.commit_of(f"{commit}^{{tree}}")


async def test_back_to_an_earlier_commit_and_forward_again(box: Sandbox) -> None:
    path, first, second = await two_steps(box)
    base = box.commit_of("main")
    await box.workspaces.restore(OWNER, first, "back")
    assert_at(box, path, first)
    assert not (path / "second.txt").exists()
    assert box.commit_of(f"{ARCHIVE}/back") == second
    await box.workspaces.restore(OWNER, second, "forward")
    assert_at(box, path, second)
    assert (path / "second.txt").read_text() == "2\n"
    assert box.refs(ARCHIVE) == [f"{ARCHIVE}/back"]
    again = await box.workspaces.create(OWNER, box.repo, None)
    assert (again.base, again.base_commit) == ("main", base)


async def test_what_is_dirty_untracked_staged_or_elsewhere_is_archived(box: Sandbox) -> None:
    box.write(".gitignore", "build/\n")
    box.save("ignore")
    path, first, second = await two_steps(box)
    box.git("switch", "-q", "-c", "elsewhere", first, cwd=path)
    box.write("elsewhere.txt", "e", path)
    head = box.save("elsewhere", path)
    box.write("a.txt", "dirty\n", path)
    box.write("new/deep.txt", "n", path)
    box.write("staged.txt", "s", path)
    box.git("add", "staged.txt", cwd=path)
    box.write("build/out", "o", path)
    box.git("init", "-q", str(path / "nested"))
    box.write("nested/x.txt", "x", path)
    await box.workspaces.restore(OWNER, first, "back")
    assert_at(box, path, first)
    assert (path / "build/out").read_text() == "o"
    for name in ("new", "nested", "staged.txt", "elsewhere.txt"):
        assert not (path / name).exists()
    kept = box.commit_of(f"{ARCHIVE}/back")
    assert box.show(f"{kept}:a.txt") == "dirty"
    assert {"new/deep.txt", "staged.txt", "nested/x.txt"} <= set(box.files_of(kept))
    for commit in (head, second):
        box.git("merge-base", "--is-ancestor", commit, kept)
    assert head in box.git("log", "--format=%H", f"{ARCHIVE}/back").split()
    assert box.commit_of("elsewhere", path) == head


async def test_where_it_stands_already_nothing_changes(box: Sandbox) -> None:
    path, _, second = await two_steps(box)
    box.write("a.txt", "dirty\n", path)
    await box.workspaces.restore(OWNER, second, "one")
    refs = box.git("for-each-ref")
    index = (box.gitdir("run_1") / "index").read_bytes()
    times = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}
    await box.workspaces.restore(OWNER, second, "two")
    assert box.git("for-each-ref") == refs
    assert (box.gitdir("run_1") / "index").read_bytes() == index
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()} == times


async def test_what_is_only_staged_does_not_stay_in_the_index(box: Sandbox) -> None:
    path, _, second = await two_steps(box)
    box.write("a.txt", "staged\n", path)
    box.git("add", "a.txt", cwd=path)
    box.write("a.txt", "second\n", path)
    await box.workspaces.restore(OWNER, second, "one")
    assert_at(box, path, second)


async def test_any_commit_of_the_repository_will_do(box: Sandbox) -> None:
    path, _, second = await two_steps(box)
    box.write("later.txt", "l")
    later = box.save("later")
    await box.workspaces.restore(OWNER, later, "over")
    assert_at(box, path, later)
    assert box.commit_of(f"{ARCHIVE}/over") == second
    diff = await box.workspaces.diff(OWNER)
    assert diff.files == ["later.txt"]


async def test_ignored_files_that_are_overwritten_are_archived(box: Sandbox) -> None:
    path, first, _ = await two_steps(box)
    for name in ("tracked.bin", "folder/x", "plain"):
        box.write(name, "tracked", path)
    tracked = await box.workspaces.commit(OWNER, "all tracked") or ""
    await box.workspaces.restore(OWNER, first, "back")
    box.write(".gitignore", "tracked.bin\nfolder\nplain\n.gitignore\n", path)
    box.write("tracked.bin", "ignored", path)
    box.write("folder", "a file now", path)
    box.write("plain/inside", "a directory now", path)
    box.write("plain/.git/config", "", path)
    (path / "plain/link").symlink_to("/etc/passwd")
    assert box.status(path) == ""
    await box.workspaces.restore(OWNER, tracked, "over")
    assert_at(box, path, tracked)
    kept = f"{ARCHIVE}/over"
    assert box.show(f"{kept}:tracked.bin") == "ignored"
    assert box.show(f"{kept}:folder") == "a file now"
    assert box.show(f"{kept}:plain/inside") == "a directory now"
    assert box.git("ls-tree", kept, "plain/link").startswith("120000")
    assert ".gitignore" not in box.files_of(kept)
    assert (path / ".gitignore").exists()


async def test_an_unfinished_rebase_ends_and_what_it_set_aside_is_kept(box: Sandbox) -> None:
    path, first, second = await two_steps(box)
    box.write("a.txt", "meanwhile\n")
    meanwhile = box.save("meanwhile")
    box.write("src/b.txt", "set aside by git\n", path)
    box.git("rebase", "--autostash", meanwhile, cwd=path, check=False)
    assert (box.gitdir("run_1") / "rebase-merge/autostash").exists()
    await box.workspaces.restore(OWNER, first, "back")
    assert_at(box, path, first)
    assert "rebas" not in box.git("status", cwd=path)
    kept = box.git("log", "--format=%H", f"{ARCHIVE}/back").split()
    assert second in kept
    assert any(box.show(f"{commit}:src/b.txt") == "set aside by git" for commit in kept)


async def test_files_copied_in_stay_out_of_the_archive(box: Sandbox) -> None:
    box.write(".env", "SECRET=1")
    await box.workspaces.create(OWNER, box.repo, None, [".env"])
    path = box.home / "worktrees" / OWNER
    box.write("new.txt", "n", path)
    await box.workspaces.restore(OWNER, box.commit_of("main"), "back")
    assert (path / ".env").read_text() == "SECRET=1"
    assert ".env" not in box.files_of(f"{ARCHIVE}/back")


@pytest.mark.parametrize("commit", ["", "main", "HEAD", "-x", "0" * 40, "A" * 40, "a" * 39, "é"])
async def test_only_the_full_id_of_a_commit_is_accepted(box: Sandbox, commit: str) -> None:
    path, _, second = await two_steps(box)
    with pytest.raises(InvalidInput) as refused:
        await box.workspaces.restore(OWNER, commit, "back")
    assert refused.value.hint
    with pytest.raises(InvalidInput):
        await box.workspaces.restore(OWNER, box.commit_of("HEAD^{tree}"), "back")
    with pytest.raises(InvalidInput):
        await box.workspaces.restore(OWNER, second, "no/name")
    assert_at(box, path, second)


async def test_a_worktree_that_is_gone_is_not_made_up(box: Sandbox) -> None:
    path, first, second = await two_steps(box)
    shutil.rmtree(path)
    with pytest.raises(WorkspaceError, match="removed or replaced"):
        await box.workspaces.restore(OWNER, first, "back")
    await box.workspaces.remove(OWNER)
    with pytest.raises(WorkspaceError):
        await box.workspaces.restore(OWNER, first, "back")
    assert box.commit_of("kapelle/run_1") == second


@pytest.mark.parametrize(
    ("when", "step"),
    [
        ("before", "commit-tree"),
        ("before", "update-ref"),
        ("after", "update-ref"),
        ("before", "read-tree"),
        ("after", "read-tree"),
    ],
)
async def test_killed_at_each_step(box: Sandbox, when: str, step: str) -> None:
    path, first, second = await two_steps(box)
    box.write("a.txt", "dirty\n", path)
    await kill_at(RESTORE, box, first, step, when)
    await Workspaces(box.home, "K", "k@localhost").restore(OWNER, first, "back")
    assert_at(box, path, first)
    kept = box.refs(ARCHIVE)
    assert any(box.show(f"{ref}:a.txt") == "dirty" for ref in kept)
    assert second in box.git("log", "--format=%H", *kept).split()


async def test_repeated_it_archives_once(box: Sandbox) -> None:
    path, first, _ = await two_steps(box)
    box.write("a.txt", "dirty\n", path)
    await kill_at(RESTORE, box, first, "read-tree", "before")
    assert box.refs(ARCHIVE) == [f"{ARCHIVE}/back"]
    await asyncio.sleep(1.1)  # or else the second commit has the time, and so the id, of the first
    await Workspaces(box.home, "K", "k@localhost").restore(OWNER, first, "back")
    assert_at(box, path, first)
    assert box.refs(ARCHIVE) == [f"{ARCHIVE}/back"]


async def test_a_commit_is_kept_itself_even_where_its_content_is_archived(box: Sandbox) -> None:
    path, first, _ = await two_steps(box)
    await box.workspaces.restore(OWNER, first, "other")
    box.write("a.txt", "work\n", path)
    await box.workspaces.restore(OWNER, first, "back")
    box.write("a.txt", "work\n", path)
    commit = await box.workspaces.commit(OWNER, "the same, committed")
    await box.workspaces.restore(OWNER, first, "back")
    assert commit in [box.commit_of(ref) for ref in box.refs(ARCHIVE)]


async def test_killed_at_any_moment(box: Sandbox) -> None:
    path, first, second = await two_steps(box)
    chance = random.Random(time.time_ns())
    for number in range(8):
        goal, text = (first, second)[number % 2], f"work {number}\n"
        box.write("work.txt", text, path)
        await kill_during(RESTORE, box, goal, chance.uniform(0, 0.15))
        await Workspaces(box.home, "K", "k@localhost").restore(OWNER, goal, "back")
        assert_at(box, path, goal)
        kept = box.git("log", "--format=%H", *box.refs(ARCHIVE), "--", "work.txt").split()
        assert any(box.show(f"{commit}:work.txt") == text.strip() for commit in kept)
