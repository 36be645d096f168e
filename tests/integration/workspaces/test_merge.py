"""Merging: always a merge commit, never a half-moved base, never a lost change."""

import asyncio
import os
from pathlib import Path

import pytest

from kapelle.domain.errors import Conflict, InvalidInput, MergeConflict, UnreadableFile

from .sandbox import Sandbox


async def work(
    box: Sandbox, task_id: str = "task_1", name: str = "new.txt", text: str = "n\n"
) -> str:
    _, path = await box.create(task_id)
    box.write(name, text, path)
    commit = await box.workspaces.commit(task_id, "work")
    assert commit is not None
    return commit


async def test_a_clean_checkout_moves_along(box: Sandbox) -> None:
    commit = await work(box)
    base = box.commit_of("main")
    assert not box.is_merged("task_1", "main")
    merge = await box.workspaces.merge("task_1", None, "Merge it")
    assert (merge.base, merge.already, merge.checkout_updated) == ("main", False, box.repo)
    assert box.git("log", "-1", "--format=%P|%s", "main") == f"{base} {commit}|Merge it"
    assert (box.repo / "new.txt").read_text() == "n\n"
    assert box.status() == ""
    assert not (box.repo / ".git/index.lock").exists()
    assert box.is_merged("task_1", "main")
    again = await box.workspaces.merge("task_1", None, "Merge it")
    assert (again.already, again.commit) == (True, merge.commit)


async def test_nothing_done_is_nothing_to_merge(box: Sandbox) -> None:
    await box.create()
    assert (await box.workspaces.merge("task_1", None, "m")).already


async def test_into_a_branch_that_nobody_has_checked_out(box: Sandbox) -> None:
    box.git("branch", "release")
    await work(box)
    main = box.commit_of("main")
    merge = await box.workspaces.merge("task_1", "release", "m")
    assert merge.checkout_updated is None
    assert box.commit_of("release") == merge.commit
    assert box.commit_of("main") == main
    assert not (box.repo / "new.txt").exists()


async def test_into_a_branch_of_another_worktree(box: Sandbox) -> None:
    other = box.root / "other"
    box.git("worktree", "add", "-q", "-b", "dev", str(other))
    await work(box)
    merge = await box.workspaces.merge("task_1", "dev", "m")
    assert merge.checkout_updated == other
    assert (other / "new.txt").exists()
    assert box.status(other) == ""


async def test_both_sides_changed(box: Sandbox) -> None:
    await work(box)
    box.write("a.txt", "meanwhile\n")
    box.save("meanwhile")
    await box.workspaces.merge("task_1", None, "m")
    assert (box.repo / "a.txt").read_text() == "meanwhile\n"
    assert (box.repo / "new.txt").exists()
    assert box.status() == ""


async def test_a_conflict_names_the_files_and_changes_nothing(box: Sandbox) -> None:
    await work(box, name="a.txt", text="theirs\n")
    box.write("a.txt", "ours\n")
    main = box.save("ours")
    with pytest.raises(MergeConflict, match=r"a\.txt") as refused:
        await box.workspaces.merge("task_1", None, "m")
    assert refused.value.hint
    assert box.commit_of("main") == main
    assert box.status() == ""
    assert not box.is_merged("task_1", "main")


def soil(box: Sandbox, dirt: str) -> None:
    """Leave something uncommitted in the user's checkout."""
    if dirt == "edited":
        box.write("a.txt", "mine\n")
    elif dirt == "staged":
        box.write("src/b.txt", "mine\n")
        box.git("add", "-A")
    elif dirt == "deleted":
        (box.repo / "a.txt").unlink()
    elif dirt == "merging":
        box.write(".git/MERGE_HEAD", box.commit_of("main") + "\n")
    else:
        box.write("new.txt", "precious")
        if dirt == "ignored":
            box.write(".git/info/exclude", "new.txt\n")


@pytest.mark.parametrize("dirt", ["edited", "staged", "deleted", "untracked", "ignored", "merging"])
async def test_a_checkout_that_is_dirty_where_the_merge_changes_it_is_left_alone(
    box: Sandbox, dirt: str
) -> None:
    _, path = await box.create()
    for name in ("a.txt", "src/b.txt", "new.txt"):
        box.write(name, "theirs\n", path)
    await box.workspaces.commit("task_1", "work")
    main = box.commit_of("main")
    soil(box, dirt)
    before = box.status()
    with pytest.raises(Conflict, match=str(box.repo)) as refused:
        await box.workspaces.merge("task_1", None, "m")
    assert refused.value.hint
    assert box.commit_of("main") == main
    assert box.status() == before
    assert not (box.repo / ".git/index.lock").exists()


@pytest.mark.parametrize("dirt", ["edited", "staged", "deleted"])
async def test_what_is_dirty_elsewhere_stays_as_it_is(box: Sandbox, dirt: str) -> None:
    await work(box)
    soil(box, dirt)
    before = box.status()
    merge = await box.workspaces.merge("task_1", None, "m")
    assert merge.checkout_updated == box.repo
    assert box.status() == before
    assert (box.repo / "new.txt").read_text() == "n\n"


async def test_unrelated_untracked_files_do_not_matter(box: Sandbox) -> None:
    await work(box)
    box.write("notes.txt", "mine")
    await box.workspaces.merge("task_1", None, "m")
    assert box.status() == "?? notes.txt"


async def test_a_held_lock_of_the_user_is_respected(box: Sandbox) -> None:
    await work(box)
    main = box.commit_of("main")
    lock = box.write(".git/index.lock", "of a running git")
    with pytest.raises(Conflict, match="Another git"):
        await box.workspaces.merge("task_1", None, "m")
    assert lock.read_text() == "of a running git"
    assert box.commit_of("main") == main


async def test_a_branch_being_rebased_is_refused(box: Sandbox) -> None:
    await work(box)
    box.git("switch", "-q", "--detach")
    box.write(".git/rebase-merge/head-name", "refs/heads/main\n")
    with pytest.raises(Conflict, match="rebased"):
        await box.workspaces.merge("task_1", "main", "m")


async def test_a_branch_being_rebased_in_a_worktree_on_another_one_is_refused(box: Sandbox) -> None:
    await work(box)
    box.git("worktree", "add", "-q", "-b", "other", "../rebasing")
    box.write(".git/worktrees/rebasing/rebase-merge/head-name", "refs/heads/main\n")
    with pytest.raises(Conflict, match="rebased"):
        await box.workspaces.merge("task_1", "main", "m")


async def test_a_sparse_checkout_is_refused(box: Sandbox) -> None:
    await work(box)
    box.git("sparse-checkout", "set", "--no-cone", "/a.txt")
    with pytest.raises(Conflict, match="sparse"):
        await box.workspaces.merge("task_1", None, "m")


@pytest.mark.parametrize(
    "into", ["missing", "main~0", "", "-x", "HEAD", "ma in", "a\nb", "\udcff", "x\0"]
)
async def test_into_must_be_a_branch(box: Sandbox, into: str) -> None:
    await work(box)
    with pytest.raises(InvalidInput):
        await box.workspaces.merge("task_1", into, "m")


async def test_a_symbolic_branch_is_refused(box: Sandbox) -> None:
    await work(box)
    box.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    with pytest.raises(InvalidInput):
        await box.workspaces.merge("task_1", "alias", "m")


async def test_a_planted_worktree_entry_leads_nowhere(box: Sandbox) -> None:
    await work(box)
    victim = box.root / "victim"
    box.write("keep", "k", victim)
    box.write(".git/worktrees/evil/gitdir", f"{victim}/.git\n")
    box.write(".git/worktrees/evil/HEAD", "ref: refs/heads/main\n")
    box.write(".git/worktrees/evil/commondir", "../..\n")
    await box.workspaces.merge("task_1", None, "m")
    assert [entry.name for entry in victim.iterdir()] == ["keep"]


async def test_many_tasks_at_once_all_arrive(box: Sandbox) -> None:
    for number in range(6):
        await work(box, f"task_{number}", f"n{number}.txt")
    tasks = [f"task_{number}" for number in range(6)]
    await asyncio.gather(*(box.workspaces.merge(task, None, f"Merge {task}") for task in tasks))
    for number, task in enumerate(tasks):
        assert box.is_merged(task, "main")
        assert (box.repo / f"n{number}.txt").exists()
    assert box.status() == ""
    assert box.git("rev-list", "--count", "--merges", "main") == "6"


async def test_a_base_that_moves_all_the_time(box: Sandbox) -> None:
    box.git("branch", "busy")
    for number in range(5):
        await work(box, f"task_{number}", f"n{number}.txt")
    begun = box.commit_of("busy")
    racing = await asyncio.create_subprocess_exec(
        "sh", "-c", _RACER, cwd=box.repo, env=box.environment()
    )
    try:
        while box.commit_of("busy") == begun:  # noqa: ASYNC110  the racer is a process
            await asyncio.sleep(0.01)
        for number in range(5):
            await box.workspaces.merge(f"task_{number}", "busy", "m")
    finally:
        box.write("stop", "")
        await racing.wait()
    for number in range(5):
        assert box.is_merged(f"task_{number}", "busy")
    raced = int(box.git("rev-list", "--count", "--grep=race", "busy"))
    assert raced == int((box.repo / "raced").read_text())
    assert raced > 0


# A committer that loses no commit itself: it too compares and swaps, and counts what it got in.
_RACER = """
count=0
while [ ! -e stop ]; do
  old=$(git rev-parse refs/heads/busy)
  tree=$(git rev-parse "$old^{tree}")
  new=$(git commit-tree -p "$old" -m race "$tree")
  git update-ref refs/heads/busy "$new" "$old" 2>/dev/null && count=$((count + 1))
  sleep 0.03
done
echo $count > raced
"""


async def test_merged_from_a_subdirectory_and_after_removal(box: Sandbox) -> None:
    workspace = await box.workspaces.create("task_1", box.repo / "src", None)
    box.write("src/new.txt", "n", Path(workspace.path))
    await box.workspaces.commit("task_1", "work")
    await box.workspaces.remove("task_1")
    await box.workspaces.merge("task_1", None, "m")
    assert (box.repo / "src/new.txt").exists()


async def test_commits_that_nobody_verified_are_not_merged(box: Sandbox) -> None:
    verified = await work(box)
    path = box.home / "worktrees/task_1"
    box.write("late.txt", "l", path)
    late = box.save("after the checks", path)
    main = box.commit_of("main")
    with pytest.raises(Conflict, match="kapelle/task_1 has unverified commits") as refused:
        await box.workspaces.merge("task_1", None, "m", expected_tip=verified)
    for advice in ("kapelle merge --force", "kapelle resume"):
        assert advice in (refused.value.hint or "")
    assert box.commit_of("main") == main
    merge = await box.workspaces.merge("task_1", None, "m", expected_tip=late)
    assert box.commit_of("main") == merge.commit
    assert (await box.workspaces.merge("task_1", None, "m", expected_tip=late)).already


async def test_squashed_and_rebased_by_the_person_whose_repository_it_is(box: Sandbox) -> None:
    box.git("config", "user.name", "Ada")
    box.git("config", "user.email", "ada@example.org")
    await work(box)
    path = box.home / "worktrees/task_1"
    box.write("more.txt", "m\n", path)
    tip = await box.workspaces.commit("task_1", "more\n\nwith a body")
    for name in ("squash", "rebase"):
        box.git("branch", name)
    box.write("a.txt", "meanwhile\n")
    main = box.save("meanwhile")
    for style in ("squash", "rebase"):
        box.git("branch", "--force", style, main)
        merge = await box.workspaces.merge(
            "task_1", style, "All of it", style=style, by_person=True, expected_tip=tip
        )
        assert box.git("diff", "--stat", "main", style).endswith("2 insertions(+)")
        assert box.commit_of(style) == merge.commit
        again = await box.workspaces.merge("task_1", style, "All of it", style=style)
        assert (again.already, again.commit) == (True, merge.commit)
    told = "--format=%an <%ae> %cn: %s"
    assert box.git("log", told, "main..squash") == "Ada <ada@example.org> Ada: All of it"
    rebased = box.git("log", told, "main..rebase").splitlines()
    assert [line.partition("> ")[2] for line in rebased] == ["Ada: more", "Ada: work"]
    assert "Ada" not in rebased[0].partition(">")[0]
    assert box.git("log", "-1", "--format=%b", "rebase") == "with a body"
    assert box.git("rev-list", "--count", "--merges", "main..rebase") == "0"
    # Where nothing moved, the commits are those of the branch.
    box.git("branch", "still", "main~1")
    await box.workspaces.merge("task_1", "still", "m", style="rebase", by_person=True)
    assert box.commit_of("still") == tip
    merge = await box.workspaces.merge("task_1", None, "By me", by_person=True)
    assert box.git("log", "-1", told, "main") == "Ada <ada@example.org> Ada: By me"


async def test_a_rebase_that_conflicts_changes_nothing(box: Sandbox) -> None:
    await work(box, name="a.txt", text="theirs\n")
    box.write("a.txt", "ours\n")
    main = box.save("ours")
    with pytest.raises(MergeConflict, match=r"a\.txt"):
        await box.workspaces.merge("task_1", None, "m", style="rebase")
    assert box.commit_of("main") == main


async def test_ignored_files_of_the_person_are_not_overwritten(box: Sandbox) -> None:
    box.write(".gitignore", ".env\nsame\nbuild\n")
    box.save("ignore")
    _, path = await box.create()
    for name in (".env", "same", "build/out"):
        box.write(name, "agent\n", path)
    box.git("add", "-f", ".env", "same", "build/out", cwd=path)
    assert await box.workspaces.commit("task_1", "work")
    box.write(".env", "mine\n")
    box.write("same", "agent\n")
    box.write("build", "a file in the place of a directory\n")
    main = box.commit_of("main")
    assert ".env, build" in str((await box.workspaces.preview_merge("task_1", None)).problem)
    with pytest.raises(Conflict, match=r"would overwrite: \.env, build\."):
        await box.workspaces.merge("task_1", None, "m")
    assert box.commit_of("main") == main
    assert (box.repo / ".env").read_text() == "mine\n"
    assert not (box.repo / ".git/index.lock").exists()
    (box.repo / ".env").unlink()
    (box.repo / "build").unlink()
    await box.workspaces.merge("task_1", None, "m")
    assert (box.repo / ".env").read_text() == "agent\n"


async def test_a_person_may_have_checked_out_the_branch_of_a_task(box: Sandbox) -> None:
    box.write(".gitignore", ".env\n")
    box.save("ignore")
    box.git("checkout", "--quiet", "-b", "kapelle/task_2")
    _, path = await box.create(base="kapelle/task_2")
    box.write(".env", "agent\n", path)
    box.git("add", "-f", ".env", cwd=path)
    assert await box.workspaces.commit("task_1", "work")
    box.write(".env", "mine\n")
    assert ".env" in str((await box.workspaces.preview_merge("task_1", None)).problem)
    with pytest.raises(Conflict, match=r"would overwrite: \.env\."):
        await box.workspaces.merge("task_1", None, "m")
    assert (box.repo / ".env").read_text() == "mine\n"


async def test_a_tracked_file_may_become_a_directory_and_back(box: Sandbox) -> None:
    _, path = await box.create()
    (path / "a.txt").unlink()
    box.write("a.txt/inside", "i\n", path)
    (path / "src/b.txt").unlink()
    (path / "src/deep/c.txt").unlink()
    (path / "src/deep").rmdir()
    (path / "src").rmdir()
    box.write("src", "s\n", path)
    await box.workspaces.commit("task_1", "work")
    await box.workspaces.merge("task_1", None, "m")
    assert (box.repo / "src").read_text() == "s\n"
    assert box.status() == ""


async def test_a_pipe_for_the_own_configuration_of_git_is_refused_at_once(box: Sandbox) -> None:
    await work(box)
    home = Path(os.environ["HOME"])
    home.mkdir()
    os.mkfifo(home / ".gitconfig")
    async with asyncio.timeout(5):
        with pytest.raises(UnreadableFile, match=r"\.gitconfig"):
            await box.workspaces.merge("task_1", None, "m")
