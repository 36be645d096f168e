"""What a branch holds, what it gained, and how two commits differ."""

import pytest

from kapelle.domain.errors import InvalidInput, WorkspaceError
from kapelle.workspaces import Commit

from .sandbox import Sandbox


async def test_the_tip_is_what_the_branch_holds(box: Sandbox) -> None:
    _, path = await box.create("run_1")
    base = box.commit_of("main")
    assert await box.workspaces.tip("run_1") == base
    box.write("a.txt", "changed\n", path)
    assert await box.workspaces.tip("run_1") == base
    commit = await box.workspaces.commit("run_1", "work")
    assert await box.workspaces.tip("run_1") == commit
    own = box.git("commit-tree", "-p", commit or "", "-m", "x", f"{commit}^{{tree}}")
    box.git("update-ref", "refs/heads/kapelle/run_1", own)
    assert await box.workspaces.tip("run_1") == own
    await box.workspaces.remove("run_1")
    assert await box.workspaces.tip("run_1") == own
    box.git("update-ref", "-d", "refs/heads/kapelle/run_1")
    assert await box.workspaces.tip("run_1") == base
    with pytest.raises(WorkspaceError):
        await box.workspaces.tip("run_2")


async def test_the_log_begins_at_the_base_and_is_bounded(box: Sandbox) -> None:
    _, path = await box.create("run_1")
    assert await box.workspaces.log("run_1") == []
    expected: list[Commit] = []
    for number in range(25):
        box.write("a.txt", f"{number}\n", path)
        subject = f"step {number} \N{BLACK STAR}"
        commit = await box.workspaces.commit("run_1", f"{subject}\n\nbody\n")
        expected.insert(0, Commit(commit or "", subject, "body"))
    assert await box.workspaces.log("run_1") == expected[:20]
    assert await box.workspaces.log("run_1", 2) == expected[:2]
    assert await box.workspaces.log("run_1", 0) == []
    assert await box.workspaces.log("run_1", None) == expected


async def test_odd_subjects(box: Sandbox) -> None:
    _, path = await box.create("run_1")
    expected: list[str] = []
    for subject in ("", "  spaces  ", "a\x1bb", "one\ntwo"):
        box.git("commit", "--allow-empty", "--allow-empty-message", "-q", "-m", subject, cwd=path)
        expected.insert(0, box.git("log", "-1", "--format=%H|%s", cwd=path))
    log = await box.workspaces.log("run_1")
    assert [f"{commit.id}|{commit.subject}".strip() for commit in log] == expected


async def test_a_branch_taken_in_counts_as_one(box: Sandbox) -> None:
    await box.create("run_1")
    box.write("a.txt", "later\n")
    box.save("later one")
    box.write("a.txt", "last\n")
    box.save("later two")
    await box.workspaces.take_in("run_1", "main", "Take in main")
    assert [commit.subject for commit in await box.workspaces.log("run_1")] == ["Take in main"]


async def test_candidates_are_compared(box: Sandbox) -> None:
    tips = []
    for owner, text in (("task_1", "one\ntwo\n"), ("task_2", "one\nthree\n")):
        _, path = await box.create(owner)
        box.write("a.txt", text, path)
        box.write(f"{owner}.txt", f"only {owner}\n" * 9, path)
        tips.append(await box.workspaces.commit(owner, "work") or "")
    diff = await box.workspaces.compare("task_1", *tips)
    assert diff.files == ["a.txt", "task_1.txt", "task_2.txt"]
    assert b"-two\n+three\n" in diff.patch
    assert "task_2.txt" in diff.stat
    back = await box.workspaces.compare("task_2", tips[1], tips[0])
    assert b"-three\n+two\n" in back.patch
    assert (await box.workspaces.compare("task_1", tips[0], tips[0])).files == []


@pytest.mark.parametrize("bad", ["", "main", "HEAD", "--output=x", "0" * 40, "f" * 64, "A" * 40])
async def test_only_commits_are_compared(box: Sandbox, bad: str) -> None:
    await box.create("task_1")
    good = box.commit_of("main")
    for pair in ((bad, good), (good, bad)):
        with pytest.raises(InvalidInput):
            await box.workspaces.compare("task_1", *pair)
    box.git("tag", "-a", "-m", "t", "tag")
    for other in ("main^{tree}", "main:a.txt", "tag"):
        with pytest.raises(InvalidInput):
            await box.workspaces.compare("task_1", good, box.commit_of(other))


async def test_in_a_sha256_repository(box: Sandbox) -> None:
    box.repo = box.root / "sha256"
    box.make_repository("--object-format=sha256")
    _, path = await box.create("run_1")
    base = box.commit_of("main")
    box.write("a.txt", "changed\n", path)
    commit = await box.workspaces.commit("run_1", "work") or ""
    assert (await box.workspaces.compare("run_1", base, commit)).files == ["a.txt"]
    await box.workspaces.restore("run_1", base, "back")
    assert box.status(path) == ""
    assert await box.workspaces.tip("run_1") == base
    with pytest.raises(InvalidInput):
        await box.workspaces.compare("run_1", base, "a" * 40)


async def test_a_diff_is_relative_to_its_own_base_however_that_moved(box: Sandbox) -> None:
    _, run = await box.create("run_1")
    workspace, path = await box.create("task_1", "kapelle/run_1")
    box.write("own.txt", "o", path)
    box.write("theirs.txt", "t", run)
    await box.workspaces.commit("run_1", "moved on")
    box.write("main.txt", "m")
    box.save("moved on")
    for owner, name in (("task_1", "own.txt"), ("run_1", "theirs.txt")):
        assert (await box.workspaces.diff(owner)).files == [name]
        assert (await box.workspaces.diff(owner)).files
    await box.workspaces.commit("task_1", "work")
    assert (await box.workspaces.diff("task_1")).files == ["own.txt"]
    assert [commit.subject for commit in await box.workspaces.log("task_1")] == ["work"]
    again, _ = await box.create("task_1", "kapelle/run_1")
    assert again.base_commit == workspace.base_commit == box.commit_of("main^")
