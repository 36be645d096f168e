"""The library's worktrees: no daemon, no async, and no work is lost."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kapelle.domain.errors import Conflict, InvalidInput, MergeConflict, WorkspaceError
from kapelle.library.worktree import Cleanup, Worktree, worktree

from .sandbox import Sandbox
from .test_crash import kill_at


@pytest.fixture(autouse=True)
def _state(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(box.root / "state"))
    monkeypatch.delenv("KAPELLE_HOME", raising=False)


@pytest.fixture(autouse=True)
def _no_thread_is_left(box: Sandbox) -> object:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def worktrees(box: Sandbox) -> int:
    assert len(box.git("worktree", "list").splitlines()) == 1
    homes = (box.root / "state/kapelle/library", box.root / "elsewhere", box.home)
    return sum(len(list((home / "worktrees").glob("*.json"))) for home in homes)


def test_untouched_it_leaves_nothing_behind(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(box.repo / "src")
    refs = box.git("for-each-ref")
    with worktree() as tree:
        assert tree.path.is_relative_to(box.root / "state/kapelle/library")
        assert (tree.path / "src/b.txt").read_text() == "two\n"
        assert box.git("branch", "--show-current", cwd=tree.path) == tree.branch
        assert tree.branch not in box.git("branch")
        assert tree.base_commit == box.commit_of("main")
        assert tree.changed_files() == []
        assert tree.commits() == []
        assert not tree.has_new_commits
        assert tree.commit("nothing") is None
    assert not tree.path.exists()
    assert worktrees(box) == 0
    assert box.git("for-each-ref") == refs
    assert list((box.root / "state/kapelle/library/worktrees").iterdir()) == []


def test_committed_work_stays_on_its_branch(box: Sandbox) -> None:
    with worktree(str(box.repo), home=box.root / "elsewhere") as tree:
        assert tree.path.is_relative_to(box.root / "elsewhere")
        box.write("a.txt", "changed\n", tree.path)
        box.write("new.txt", "n\n", tree.path)
        assert tree.changed_files() == ["a.txt", "new.txt"]
        assert "-one\n+changed\n" in tree.diff()
        assert not tree.has_new_commits
        commit = tree.commit("The work\n\nwith a body")
        assert [(item.id, item.subject) for item in tree.commits()] == [(commit, "The work")]
        assert tree.has_new_commits
        assert tree.changed_files() == ["a.txt", "new.txt"]
        assert tree.uncommitted_files() == []
    assert not tree.path.exists()
    assert box.commit_of(tree.branch) == commit
    assert (box.repo / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("work", ["edited", "untracked", "deleted", "on another branch"])
def test_uncommitted_work_is_kept_and_told(
    box: Sandbox, work: str, caplog: pytest.LogCaptureFixture
) -> None:
    with worktree(box.repo) as tree:
        if work == "edited":
            box.write("a.txt", "changed\n", tree.path)
        elif work == "deleted":
            (tree.path / "a.txt").unlink()
        else:
            box.write("new.txt", "n", tree.path)
        if work == "on another branch":
            box.git("switch", "-q", "-c", "mine", cwd=tree.path)
            box.save("mine", tree.path)
    assert tree.path.exists()
    assert str(tree.path) in caplog.text


@pytest.mark.parametrize("cleanup", ["auto", "always", "never"])
@pytest.mark.parametrize("error", [ValueError("of the caller"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_passes_and_loses_no_work(
    box: Sandbox, cleanup: Cleanup, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen: list[Worktree] = []

    def work() -> None:
        with worktree(box.repo, cleanup=cleanup) as tree:
            seen.append(tree)
            box.write("new.txt", "precious", tree.path)
            raise error

    with pytest.raises(type(error)) as raised:
        work()
    assert raised.value is error
    tree = seen[0]
    if cleanup == "always":
        assert not tree.path.exists()
        ref = box.refs("refs/kapelle/archive/")
        assert box.show(f"{ref[0]}:new.txt") == "precious"
        assert tree.branch not in box.git("branch")
    else:
        assert (tree.path / "new.txt").read_text() == "precious"
        assert str(tree.path) in caplog.text


def test_always_removes_and_archives(box: Sandbox) -> None:
    with worktree(box.repo, cleanup="always") as tree:
        box.write("one.txt", "1", tree.path)
        commit = tree.commit("one")
        box.write("two.txt", "2", tree.path)
    assert not tree.path.exists()
    assert box.commit_of(tree.branch) == commit
    kept = box.refs("refs/kapelle/archive/")
    assert len(kept) == 1
    assert {"one.txt", "two.txt"} <= set(box.files_of(kept[0]))


def test_it_can_be_removed_before_the_end_of_the_block(box: Sandbox) -> None:
    with worktree(box.repo) as tree:
        box.write("one.txt", "1", tree.path)
        commit = tree.commit("one")
        box.write("two.txt", "2", tree.path)
        tree.remove()
        assert not tree.path.exists()
    assert box.commit_of(tree.branch) == commit
    assert "two.txt" in box.files_of(box.refs("refs/kapelle/archive/")[0])


def test_never_keeps_even_what_is_untouched(box: Sandbox) -> None:
    with worktree(box.repo, cleanup="never") as tree:
        pass
    assert (tree.path / "a.txt").exists()
    assert worktrees(box) == 1


def test_a_failing_clean_up_does_not_hide_the_error(
    box: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Worktree] = []

    def work(error: Exception | None) -> None:
        with worktree(box.repo, cleanup="always") as tree:
            seen.append(tree)
            box.repo.rename(box.root / "away")
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="of the caller"):
        work(ValueError("of the caller"))
    assert (seen[0].path / "a.txt").exists()
    assert "is gone" in caplog.text
    (box.root / "away").rename(box.repo)
    with pytest.raises(WorkspaceError, match="is gone"):
        work(None)
    assert (seen[1].path / "a.txt").exists()


def test_merge_take_in_and_restore(box: Sandbox) -> None:
    with worktree(box.repo) as tree:
        box.write("a.txt", "ours\n", tree.path)
        with pytest.raises(Conflict, match=r"a\.txt") as refused:
            tree.merge()
        assert "commit()" in (refused.value.hint or "")
        first = tree.commit("ours") or ""
        box.write("a.txt", "theirs\n")
        box.save("theirs")
        with pytest.raises(MergeConflict):
            tree.merge()
        assert tree.take_in("main") == ["a.txt"]
        assert tree.conflicted(["a.txt"]) == ["a.txt"]
        box.write("a.txt", "worse\n", tree.path)
        tree.restore(first)
        assert (tree.path / "a.txt").read_text() == "ours\n"
        assert tree.take_in("main") == ["a.txt"]
        box.write("a.txt", "both\n", tree.path)
        assert tree.commit("resolved")
        merged = tree.merge()
        assert merged == box.commit_of("main")
    assert (box.repo / "a.txt").read_text() == "both\n"
    assert box.status() == ""
    kept = box.git("log", "--format=%H", *box.refs("refs/kapelle/archive/")).split()
    assert any(box.show(f"{commit}:a.txt") == "worse" for commit in kept)


def test_another_base_and_another_branch(box: Sandbox) -> None:
    first = box.commit_of("main")
    box.git("branch", "release")
    box.write("later.txt", "l")
    box.save("later")
    with worktree(box.repo, base="release") as tree:
        assert not (tree.path / "later.txt").exists()
        box.write("fix.txt", "f", tree.path)
        tree.commit("fix")
        assert tree.merge("main") == box.commit_of("main")
        assert tree.merge() == box.commit_of("release")
    with worktree(box.repo, base=first) as tree:
        assert tree.base_commit == first
        with pytest.raises(InvalidInput):
            tree.merge()


async def test_inside_a_running_loop(box: Sandbox) -> None:
    with worktree(box.repo) as tree:
        box.write("new.txt", "n", tree.path)
        await asyncio.sleep(0)
        assert await asyncio.to_thread(tree.changed_files) == ["new.txt"]
        assert tree.commit("from a coroutine")
    assert box.files_of(tree.branch).count("new.txt") == 1


def test_many_threads_at_once(box: Sandbox) -> None:
    together = threading.Barrier(4)

    def work(number: int) -> tuple[str, Path]:
        with worktree(box.repo) as tree:
            together.wait(30)
            box.write(f"n{number}.txt", "n", tree.path)
            tree.commit(f"work {number}")
            tree.merge()
            together.wait(30)
            return tree.branch, tree.path

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(work, range(4)))
    assert len(set(done)) == 4
    assert all((box.repo / f"n{number}.txt").exists() for number in range(4))
    assert box.status() == ""
    assert worktrees(box) == 0


def test_what_cannot_be_is_refused_and_leaves_nothing(box: Sandbox) -> None:
    empty = box.root / "empty"
    box.git("init", "-q", str(empty))
    for repository, base, error in (
        (box.root / "missing", None, WorkspaceError),
        (box.root, None, WorkspaceError),
        (empty, None, WorkspaceError),
        (box.repo, "no-such-branch", InvalidInput),
    ):
        with pytest.raises(error), worktree(repository, base=base):
            pytest.fail("it must not be entered")
    with (
        pytest.raises(InvalidInput, match="sometimes"),
        worktree(box.repo, cleanup="sometimes"),  # type: ignore[arg-type]
    ):
        pytest.fail("it must not be entered")
    assert worktrees(box) == 0
    assert box.refs("refs/heads/kapelle") == []


def test_after_the_block_it_cannot_be_used(box: Sandbox) -> None:
    with worktree(box.repo) as tree:
        pass
    with pytest.raises(Conflict, match="has ended"):
        tree.changed_files()


def test_a_directory_that_the_caller_deleted(box: Sandbox) -> None:
    with worktree(box.repo) as tree:
        subprocess.run(["rm", "-r", str(tree.path)], check=True)
        assert tree.changed_files() == []
    assert worktrees(box) == 0


_MERGE = """
import sys
from kapelle.library.worktree import worktree
with worktree(sys.argv[2], home=sys.argv[1]) as tree:
    (tree.path / "new.txt").write_text("precious")
    tree.commit("work")
    tree.merge()
"""


async def test_killed_amid_a_merge_the_next_program_finishes_it(box: Sandbox) -> None:
    await kill_at(_MERGE, box, "", "read-tree -m -u", "before")
    assert box.status() != ""
    with worktree(box.repo, home=box.home):
        pass
    assert box.status() == ""
    assert (box.repo / "new.txt").read_text() == "precious"


_INTERRUPTED = """
import signal, sys
from kapelle.library.worktree import worktree
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored
with worktree(sys.argv[1], home=sys.argv[2]) as tree:
    (tree.path / "new.txt").write_text("precious")
    print(tree.path, flush=True)
    while True:
        tree.changed_files()
"""


def test_interrupted_from_the_keyboard_the_work_is_there(box: Sandbox) -> None:
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTED, str(box.repo), str(box.home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ},
            text=True,
        )
        try:
            assert child.stdout is not None
            path = Path(child.stdout.readline().strip())
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=30)
        finally:
            child.kill()
            child.wait()
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert (path / "new.txt").read_text() == "precious"
        assert str(path) in errors
