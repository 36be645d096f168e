"""References are read from files only where that is what git would say."""

import os
from pathlib import Path

import pytest

from kapelle.runner.command import CommandResult, RunningCommand
from kapelle.workspaces.git import Git
from kapelle.workspaces.refs import Refs as References
from kapelle.workspaces.repository import WorkTree, read_checkout
from kapelle.workspaces.shadow import Shadows

from .sandbox import Sandbox

X = "refs/heads/x"


class Refs:
    """A repository with a branch whose commits git has shown to exist, and a count of gits."""

    def __init__(self, box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        self.box = box
        self.directory = box.repo / ".git"
        self.git = Git("git", box.root, "K", "k@localhost")
        self.place = References.of(self.git, self.directory)
        self.calls = 0
        run = RunningCommand.run

        def counted(running: RunningCommand) -> CommandResult:
            self.calls += 1
            return run(running)

        monkeypatch.setattr(RunningCommand, "run", counted)

    async def learn(self, *commits: str) -> None:
        shadows = Shadows(self.git, self.box.root / "shadows")
        tree = WorkTree(self.box.repo, self.directory, self.directory, "sha1", (), "")
        objects = shadows.objects(tree)
        for commit in commits:
            await objects.tree_of(commit)
        self.calls = 0

    async def read(self, ref: str = X) -> str | None:
        return await self.place.read(ref)


@pytest.fixture
async def refs(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Refs:
    first = box.commit_of("main")
    box.write("a.txt", "changed\n")
    second = box.save("second")
    box.git("branch", "x", first)
    refs = Refs(box, monkeypatch)
    await refs.learn(first, second)
    return refs


async def test_a_loose_reference_to_a_known_commit_needs_no_git(refs: Refs) -> None:
    assert await refs.read() == refs.box.commit_of("x")
    refs.box.git("branch", "-f", "x", "main")
    assert await refs.read() == refs.box.commit_of("main")
    assert refs.calls == 0


async def test_a_packed_one_neither_and_the_loose_one_counts(refs: Refs) -> None:
    refs.box.git("pack-refs", "--all")
    assert not (refs.directory / X).exists()
    assert await refs.read() == refs.box.commit_of("x")
    refs.box.git("branch", "-f", "x", "main")
    assert await refs.read() == refs.box.commit_of("main")
    assert refs.calls == 0
    refs.box.git("branch", "-D", "x")
    assert await refs.read() is None


async def test_what_git_has_not_shown_to_exist_is_asked_of_git(refs: Refs) -> None:
    refs.box.write("a.txt", "once more\n")
    third = refs.box.save("third")
    refs.box.git("branch", "-f", "x", third)
    assert await refs.read() == third
    (refs.directory / X).write_text("1" * 40 + "\n")
    assert await refs.read() is None
    assert refs.calls == 2


async def test_a_directory_of_references_is_none_and_stays_closed(refs: Refs) -> None:
    refs.box.git("branch", "some/thing")
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        assert await refs.read("refs/heads/some") is None
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize(
    "content", ["", "0123", "{id}\n{id}\n", "{id}x\n", "ref: refs/heads/main\n"]
)
async def test_anything_else_in_the_file_is_left_to_git(refs: Refs, content: str) -> None:
    main = refs.box.commit_of("main")
    (refs.directory / X).write_text(content.format(id=main))
    found = await refs.read()
    assert refs.calls == 1
    assert found == (refs.box.git("show-ref", "--verify", "--hash", X, check=False) or None)


async def test_links_and_directories_are_left_to_git(refs: Refs, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(refs.box.commit_of("main") + "\n")
    (refs.directory / X).unlink()
    (refs.directory / X).symlink_to(outside)
    await refs.read()
    assert refs.calls == 1
    (refs.directory / X).unlink()
    (refs.directory / X).mkdir()
    assert await refs.read() is None
    assert refs.calls == 2


async def test_in_a_reftable_planted_files_say_nothing(refs: Refs) -> None:
    (refs.directory / "reftable").mkdir()
    await refs.read()
    assert refs.calls == 1


async def test_head_of_a_branch_or_of_a_commit(refs: Refs) -> None:
    checkout = read_checkout(refs.box.repo)
    assert checkout is not None
    main, first = refs.box.commit_of("main"), refs.box.commit_of("x")
    assert await References.at(refs.git, checkout).head_commit() == main
    refs.box.git("checkout", "-q", "--detach", first)
    assert await References.at(refs.git, checkout).head_commit() == first
    assert refs.calls == 0
    # A name that leads out of the references is none that git would follow.
    (refs.directory / "x").write_text(main + "\n")
    (refs.directory / "HEAD").write_text("ref: refs/heads/../../x\n")
    assert await References.at(refs.git, checkout).head_commit() is None
    assert refs.calls == 1
