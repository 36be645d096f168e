"""A worktree that an agent removed or replaced: what is there now is never read nor touched."""

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kapelle.domain.errors import WorkspaceError

from .sandbox import Sandbox

SENTENCE = r"The workspace .* is not the directory that Kapelle made: it was removed or replaced\."
REPLACEMENTS = ["foreign", "repository", "fresh", "moved"]
Action = Callable[[Sandbox], Awaitable[object]]
REFUSED: dict[str, Action] = {
    "commit": lambda box: box.workspaces.commit("task_1", "work"),
    "reset": lambda box: box.workspaces.reset("task_1", "one"),
    "create": lambda box: box.create(),
}


def picture(top: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every entry below a directory with mode, time and content."""
    found = {}
    for path in [top, *sorted(top.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(top))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def replace(box: Sandbox, path: Path, how: str) -> Path:
    """Put something else in the place of the worktree; returns where its content really is."""
    victim = box.root / "victim"
    if how == "repository":
        box.git("init", "-q", "-b", "main", str(victim))
    box.write("precious/p.txt", "precious", victim)
    box.write("a.txt", "not the task's", victim)
    if how == "repository":
        box.save("precious", victim)
        box.write("uncommitted.txt", "u", victim)
    shutil.rmtree(path)
    if how == "fresh":
        shutil.copytree(victim, path)
    elif how == "moved":
        victim.rename(path)
    else:
        path.symlink_to(victim)
    return path if how in ("fresh", "moved") else victim


async def replaced(box: Sandbox, how: str) -> tuple[Path, Path, str]:
    _, path = await box.create()
    box.write("new.txt", "n", path)
    commit = await box.workspaces.commit("task_1", "work")
    # Holds the number of the worktree's inode, which a fresh directory could get otherwise.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        victim = replace(box, path, how)
    finally:
        os.close(descriptor)
    return path, victim, commit or ""


@pytest.mark.parametrize("how", REPLACEMENTS)
@pytest.mark.parametrize("action", REFUSED)
async def test_a_replaced_worktree_is_refused_and_left_alone(
    box: Sandbox, how: str, action: str
) -> None:
    _, victim, commit = await replaced(box, how)
    before = picture(victim)
    with pytest.raises(WorkspaceError, match=SENTENCE) as refused:
        await REFUSED[action](box)
    assert "Move" in (refused.value.hint or "")
    assert picture(victim) == before
    assert box.commit_of("kapelle/task_1") == commit
    assert box.refs("refs/kapelle/archive/") == []


@pytest.mark.parametrize("how", REPLACEMENTS)
async def test_the_diff_of_a_replaced_worktree_is_that_of_the_branch(
    box: Sandbox, how: str
) -> None:
    _, victim, _ = await replaced(box, how)
    before = picture(victim)
    assert (await box.workspaces.diff("task_1")).files == ["new.txt"]
    assert (await box.workspaces.diff("task_1")).files
    assert picture(victim) == before


@pytest.mark.parametrize("how", REPLACEMENTS)
async def test_removing_a_replaced_worktree_only_unregisters_it(box: Sandbox, how: str) -> None:
    path, victim, commit = await replaced(box, how)
    before = picture(victim)
    await box.workspaces.remove("task_1")
    assert picture(victim) == before
    assert os.path.lexists(path)
    assert box.commit_of("kapelle/task_1") == commit
    with pytest.raises(WorkspaceError, match="not made by Kapelle"):
        await box.create()
    assert picture(victim) == before


@pytest.mark.parametrize("action", ["commit", "reset"])
async def test_a_removed_directory_is_told_in_a_sentence(box: Sandbox, action: str) -> None:
    _, path = await box.create()
    shutil.rmtree(path)
    with pytest.raises(WorkspaceError, match=SENTENCE) as refused:
        await REFUSED[action](box)
    assert "kapelle/task_1" in (refused.value.hint or "")
    assert not path.exists()


async def test_a_removed_directory_is_made_anew_with_what_was_committed(box: Sandbox) -> None:
    _, path = await box.create()
    box.write("new.txt", "n", path)
    await box.workspaces.commit("task_1", "work")
    shutil.rmtree(path)
    assert (await box.workspaces.diff("task_1")).files == ["new.txt"]
    await box.create()
    assert (path / "new.txt").read_text() == "n"
    assert box.status(path) == ""
    shutil.rmtree(path)
    await box.workspaces.remove("task_1")
    assert [entry.name for entry in path.parent.iterdir()] == ["task_1.json"]


@pytest.mark.parametrize("kind", ["link_to_directory", "link_to_file", "link_to_user"])
async def test_a_link_in_place_of_the_repository_is_not_followed(box: Sandbox, kind: str) -> None:
    _, path = await box.create()
    other = box.root / "other"
    box.git("init", "-q", str(other))
    box.write("pointer", f"gitdir: {other}/.git\n", other)
    targets = {
        "link_to_directory": other / ".git",
        "link_to_file": other / "pointer",
        "link_to_user": box.repo / ".git",
    }
    before = picture(other)
    shutil.rmtree(path / ".git")
    (path / ".git").symlink_to(targets[kind])
    box.write("new.txt", "n", path)
    with pytest.raises(WorkspaceError, match=r"\.git was removed .* made anew"):
        await box.workspaces.commit("task_1", "work")
    assert not (path / ".git").is_symlink()
    shutil.rmtree(path / ".git")
    (path / ".git").symlink_to(targets[kind])
    await box.workspaces.remove("task_1")
    assert picture(other) == before
    assert not path.exists()
    assert box.files_of("kapelle/task_1").count("new.txt") == 1


async def test_a_link_planted_under_the_name_of_our_own_file_is_not_written_through(
    box: Sandbox,
) -> None:
    _, path = await box.create()
    precious = box.write("precious.txt", "precious", box.root)
    git = path / ".git"
    (git / "HEAD").unlink()
    (git / "objects/info/alternates").unlink()
    for name in ("HEAD", "kapelle", "index", "objects/info/alternates"):
        (git / f"{name}.kapelle").symlink_to(precious)
    box.write("new.txt", "n", path)
    assert await box.workspaces.commit("task_1", "work")
    await box.workspaces.reset("task_1", "one")
    assert precious.read_text() == "precious"
    assert box.status(path) == ""


@pytest.mark.parametrize("name", ["objects", "refs", "refs/heads", "refs/heads/kapelle", "info"])
async def test_a_part_of_the_repository_that_leads_elsewhere_is_not_followed(
    box: Sandbox, name: str
) -> None:
    _, path = await box.create()
    victim = box.write("victim/p.txt", "precious", box.root).parent
    shutil.rmtree(path / ".git" / name)
    (path / ".git" / name).symlink_to(victim)
    before = picture(victim)
    box.write("new.txt", "n", path)
    assert await box.workspaces.commit("task_1", "work") == box.commit_of("kapelle/task_1")
    await box.workspaces.reset("task_1", "one")
    box.write("new.txt", "n", path)
    await box.workspaces.remove("task_1")
    assert picture(victim) == before
    assert not path.exists()


async def test_the_path_in_a_marker_cannot_lead_elsewhere(box: Sandbox) -> None:
    _, path = await box.create()
    victim = box.write("victim/p.txt", "precious", box.root).parent
    marker = box.home / "worktrees/task_1.json"
    marker.write_text(marker.read_text().replace(str(path), str(victim)))
    await box.workspaces.remove("task_1")
    assert (victim / "p.txt").read_text() == "precious"
    assert not path.exists()
