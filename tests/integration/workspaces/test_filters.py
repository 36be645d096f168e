"""Filters of .gitattributes, as LFS and git-crypt use them: run if allowed, never passed over."""

import os
from pathlib import Path

import pytest
from tests.integration.workspaces.sandbox import Sandbox

from kapelle.domain.errors import FilterMissing
from kapelle.workspaces import Workspaces


@pytest.fixture
def filtered(tmp_path: Path) -> Sandbox:
    """A repository whose *.bin files are stored in capitals."""
    box = Sandbox(tmp_path)
    box.make_repository()
    box.git("config", "filter.up.clean", "tr a-z A-Z")
    box.git("config", "filter.up.smudge", "tr A-Z a-z")
    box.write(".gitattributes", "*.bin filter=up\n")
    box.write("x.bin", "hello\n")
    box.save("filtered")
    assert box.git("show", "HEAD:x.bin") == "HELLO"
    return box


def allow(box: Sandbox, *names: str) -> None:
    box.workspaces.close()
    box.workspaces = Workspaces(box.home, "Kapelle", "kapelle@localhost", filters=lambda: names)


@pytest.mark.parametrize("name", ["new.bin", "x.bin", "deep/er.bin"])
async def test_a_path_with_a_filter_that_is_not_allowed_is_not_committed(
    filtered: Sandbox, name: str
) -> None:
    _, path = await filtered.create()
    filtered.write(name, "topsecret\n", path)
    filtered.write("a.txt", "fine\n", path)
    with pytest.raises(FilterMissing, match=rf"{name} needs the filter up") as caught:
        await filtered.workspaces.commit("task_1", "work")
    assert "kapelle config set git.filters '[\"up\"]'" in (caught.value.hint or "")
    assert filtered.refs("refs/heads/") == ["refs/heads/main"]


async def test_attributes_count_wherever_they_stand(filtered: Sandbox) -> None:
    filtered.write(".git/info/attributes", "*.key filter=crypt\n")
    _, path = await filtered.create()
    filtered.write("my.key", "topsecret\n", path)
    with pytest.raises(FilterMissing, match=r"my.key needs the filter crypt"):
        await filtered.workspaces.commit("task_1", "work")
    (path / "my.key").unlink()
    filtered.write("deep/.gitattributes", "*.y filter=crypt\n", path)
    filtered.write("deep/b.y", "topsecret\n", path)
    with pytest.raises(FilterMissing, match=r"deep/b.y needs the filter crypt"):
        await filtered.workspaces.commit("task_1", "work")


async def test_other_files_and_touched_ones_are_committed_as_ever(filtered: Sandbox) -> None:
    _, path = await filtered.create()
    filtered.write("x.bin", (path / "x.bin").read_bytes(), path)
    filtered.write("a.txt", "changed\n", path)
    commit = await filtered.workspaces.commit("task_1", "work")
    assert filtered.git("diff", "--name-only", "main", str(commit)) == "a.txt"


async def test_an_allowed_filter_runs_and_the_merge_leaves_a_clean_checkout(
    filtered: Sandbox,
) -> None:
    allow(filtered, "up")
    _, path = await filtered.create()
    assert (path / "x.bin").read_text() == "hello\n"
    filtered.write("x.bin", "hello\nworld\n", path)
    filtered.write("new.bin", "topsecret\n", path)
    commit = await filtered.workspaces.commit("task_1", "work")
    assert filtered.git("show", f"{commit}:new.bin") == "TOPSECRET"
    assert filtered.git("show", f"{commit}:x.bin") == "HELLO\nWORLD"
    await filtered.workspaces.merge("task_1", None, "merge")
    assert (filtered.repo / "x.bin").read_text() == "hello\nworld\n"
    assert (filtered.repo / "new.bin").read_text() == "topsecret\n"
    assert filtered.git("status", "--porcelain") == ""


async def test_an_allowed_filter_that_fails_commits_nothing(filtered: Sandbox) -> None:
    filtered.git("config", "filter.up.clean", "false")
    allow(filtered, "up")
    _, path = await filtered.create()
    filtered.write("new.bin", "topsecret\n", path)
    with pytest.raises(Exception, match=r"filter|new\.bin"):
        await filtered.workspaces.commit("task_1", "work")
    assert filtered.refs("refs/heads/") == ["refs/heads/main"]


async def test_a_filter_works_in_the_repository_itself(filtered: Sandbox) -> None:
    clean = filtered.write("clean", '#!/bin/sh\ncat "$GIT_DIR/key"; cat\n', filtered.root)
    clean.chmod(0o755)
    filtered.write(".git/key", "KEY ")
    filtered.git("config", "filter.up.clean", str(clean))
    allow(filtered, "up")
    _, path = await filtered.create()
    filtered.write("new.bin", "x\n", path)
    commit = await filtered.workspaces.commit("task_1", "work")
    assert filtered.git("show", f"{commit}:new.bin") == "KEY x"


async def test_work_that_the_agent_committed_itself_is_not_put_into_a_checkout_unfiltered(
    filtered: Sandbox,
) -> None:
    _, path = await filtered.create()
    # Older than the index, so that git goes by its time alone.
    os.utime(filtered.write("new.bin", "topsecret\n", path), (1e9, 1e9))
    filtered.git("add", "--all", cwd=path)
    filtered.git("commit", "--quiet", "--message=mine", cwd=path)
    await filtered.workspaces.commit("task_1", "work")
    with pytest.raises(FilterMissing, match=r"new.bin needs the filter up"):
        await filtered.workspaces.merge("task_1", None, "merge")
    assert filtered.git("status", "--porcelain") == ""
    allow(filtered, "up")
    await filtered.workspaces.merge("task_1", None, "merge")
    assert (filtered.repo / "new.bin").read_text() == "topsecret\n"
    assert filtered.git("status", "--porcelain") == ""


async def test_a_filter_allowed_later_holds_from_the_next_attempt_on(filtered: Sandbox) -> None:
    _, path = await filtered.create()
    allow(filtered, "up")
    await filtered.workspaces.reset("task_1", "again")
    filtered.write("new.bin", "topsecret\n", path)
    commit = await filtered.workspaces.commit("task_1", "work")
    assert filtered.git("show", f"{commit}:new.bin") == "TOPSECRET"
