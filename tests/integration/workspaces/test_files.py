"""Copied and linked paths: what arrives, what stays out of commits, and what never escapes."""

import os
from pathlib import Path

import pytest

from kapelle.domain.errors import InvalidInput, WorkspaceError

from .sandbox import Sandbox

SECRET = "outside"


@pytest.fixture
def outside(box: Sandbox) -> Path:
    directory = box.root / "outside"
    box.write("secret", SECRET, directory)
    return directory


async def test_copied_and_linked_paths_stay_out_of_commits(box: Sandbox) -> None:
    box.write(".env", "KEY=1")
    os.chmod(box.repo / ".env", 0o600)
    box.write("cache/deep/x", "x")
    box.write("node_modules/m.js", "m")
    workspace = await box.workspaces.create(
        "task_1", box.repo, None, [".env", "cache/", "missing"], ["node_modules", "none"]
    )
    path = Path(workspace.path)
    assert (path / ".env").read_text() == "KEY=1"
    assert (path / ".env").stat().st_mode & 0o777 == 0o600
    assert (path / "cache/deep/x").read_text() == "x"
    assert (path / "node_modules").readlink() == box.repo / "node_modules"
    assert not os.path.lexists(path / "missing")
    assert not os.path.lexists(path / "none")
    box.write(".gitignore", "!.env\n!cache\n!node_modules\n", path)
    box.write("cache/deep/y", "y", path)
    assert (await box.workspaces.diff("task_1")).files == [".gitignore"]
    commit = await box.workspaces.commit("task_1", "work")
    assert commit is not None
    assert not {".env", "cache/deep/x", "node_modules"} & set(box.files_of(commit))
    await box.workspaces.reset("task_1", "one")
    assert (path / ".env").exists()
    assert (path / "node_modules").is_symlink()


async def test_tracked_paths_are_not_replaced_by_links(box: Sandbox) -> None:
    workspace = await box.workspaces.create("task_1", box.repo, None, [], ["a.txt", "src"])
    path = Path(workspace.path)
    assert not (path / "a.txt").is_symlink()
    assert not (path / "src").is_symlink()
    box.write("a.txt", "changed", path)
    assert await box.workspaces.commit("task_1", "work")


async def test_excluded_names_of_the_user_are_respected(box: Sandbox) -> None:
    box.write(".git/info/exclude", "*.private\n")
    box.write("person/.config/git/ignore", ".idea\n", box.root)
    _, path = await box.create()
    box.write("x.private", "x", path)
    box.write(".idea/x", "x", path)
    box.write("y", "y", path)
    assert (await box.workspaces.diff("task_1")).files == ["y"]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "..",
        ".",
        "",
        "/",
        ".git",
        ".git/config",
        ".GIT/x",
        "a\0b",
    ],
)
async def test_paths_that_lead_outside_are_refused(box: Sandbox, path: str) -> None:
    for copy, link in (([path], []), ([], [path])):
        with pytest.raises(InvalidInput):
            await box.workspaces.create("task_1", box.repo, None, copy, link)
    assert await box.workspaces.traces() == set()


def _texts(top: Path) -> list[str]:
    files = (entry for entry in top.rglob("*") if entry.is_file() and not entry.is_symlink())
    return [entry.read_text(errors="replace") for entry in files]


@pytest.mark.parametrize("kind", ["file_link", "directory_link", "inside", "fifo", "parent_link"])
async def test_nothing_is_copied_through_a_link(box: Sandbox, outside: Path, kind: str) -> None:
    wanted = "stuff"
    if kind == "file_link":
        (box.repo / wanted).symlink_to(outside / "secret")
    elif kind == "directory_link":
        (box.repo / wanted).symlink_to(outside)
    elif kind == "inside":
        box.write("stuff/fine", "fine")
        (box.repo / "stuff/file").symlink_to(outside / "secret")
        (box.repo / "stuff/directory").symlink_to(outside)
        os.mkfifo(box.repo / "stuff/pipe")
    elif kind == "fifo":
        os.mkfifo(box.repo / wanted)
    else:
        (box.repo / "stuff").symlink_to(outside)
        wanted = "stuff/secret"
    workspace = await box.workspaces.create("task_1", box.repo, None, [wanted], [])
    path = Path(workspace.path)
    assert SECRET not in _texts(path)
    assert (path / "stuff/fine").exists() == (kind == "inside")
    assert not os.path.lexists(path / "stuff/file")
    assert not os.path.lexists(path / "stuff/pipe")


async def test_a_tracked_link_in_the_worktree_is_not_written_through(
    box: Sandbox, outside: Path
) -> None:
    (box.repo / "config").symlink_to(outside)
    box.save("a link as a directory")
    (box.repo / "config").unlink()
    box.write("config/new", "must not leave")
    for copy, link in ((["config/new"], []), (["config"], []), ([], ["config/new"])):
        with pytest.raises(WorkspaceError):
            await box.workspaces.create("task_1", box.repo, None, copy, link)
    assert [entry.name for entry in outside.iterdir()] == ["secret"]


async def test_a_tracked_file_link_is_replaced_not_followed(box: Sandbox, outside: Path) -> None:
    (box.repo / "conf").symlink_to(outside / "secret")
    box.save("a link as a file")
    (box.repo / "conf").unlink()
    box.write("conf", "mine")
    workspace = await box.workspaces.create("task_1", box.repo, None, ["conf"], [])
    assert (Path(workspace.path) / "conf").read_text() == "mine"
    assert (outside / "secret").read_text() == SECRET


async def test_a_home_inside_the_repository_is_not_copied_into_itself(box: Sandbox) -> None:
    from kapelle.workspaces import Workspaces

    inside = Workspaces(box.repo / ".kapelle", "Kapelle", "k@localhost")
    workspace = await inside.create("task_1", box.repo, None, [".kapelle"], [])
    assert not (Path(workspace.path) / ".kapelle/worktrees/task_1/a.txt").exists()
