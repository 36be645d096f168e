"""Which files still hold conflict markers; nothing outside the worktree is ever read."""

import os
from pathlib import Path

import pytest

from kapelle.domain.errors import WorkspaceError

from .sandbox import Sandbox
from .test_replaced import replaced

MARKED = b"before\n<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\nafter\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (MARKED, True),
        (MARKED.replace(b"\n", b"\r\n"), True),
        (MARKED.replace(b"before", b"\xff\xfe"), True),
        (MARKED.replace(b"a\n=", b"a\n||||||| base\no\n="), True),
        (b"x" * 200_000 + b"\n" + MARKED, True),
        (MARKED.rstrip(b"\nafter") + b"\n" + b"\0" * 10, False),
        (b"\0" + MARKED, False),
        (b"", False),
        (b"Title\n=======\n", False),
        (b"<<<<<<< ours\na\n=======\nb\n", False),
        (b"<<<<<<< ours\na\n>>>>>>> theirs\n=======\n", False),
        (MARKED.replace(b"<<<<<<<", b" <<<<<<<"), False),
        (MARKED.replace(b"<<<<<<< ", b"<<<<<<<<< "), False),
        (b"y" * 65_536 + b"<<<<<<< ours\n=======\n>>>>>>> theirs\n", False),
    ],
)
async def test_by_content(box: Sandbox, content: bytes, expected: bool) -> None:
    _, path = await box.create()
    box.write("dir/file", content, path)
    found = await box.workspaces.find_conflicted("task_1", ["dir/file", "a.txt"])
    assert found == (["dir/file"] if expected else [])


async def test_only_regular_files_inside_the_worktree(box: Sandbox) -> None:
    _, path = await box.create()
    outside = box.write("outside/marked", MARKED, box.root)
    (path / "link").symlink_to(outside)
    (path / "dir").symlink_to(outside.parent)
    (path / "own").symlink_to("marked")
    box.write("marked", MARKED, path)
    box.write("deep/marked", MARKED, path)
    os.mkfifo(path / "fifo")
    away = os.path.relpath(outside, path)
    odd = ["link", "dir/marked", "own", "fifo", "deep", "gone", "", ".", "..", "/", away]
    odd += [
        str(outside),
        f"deep/../../{away}",
        "marked/",
        "marked/x",
        "mar\0ked",
        "\ud800",
        "\\xff",
    ]
    found = await box.workspaces.find_conflicted("task_1", [*odd, "marked", "deep/marked"])
    assert found == ["marked", "deep/marked"]
    # The markers are there for whoever follows the links, so the refusal is what is tested.
    assert Path(path / "dir/marked").read_bytes() == MARKED


async def test_a_replaced_worktree_is_not_read(box: Sandbox) -> None:
    _, victim, _ = await replaced(box, "foreign")
    box.write("a.txt", MARKED, victim)
    with pytest.raises(WorkspaceError, match="removed or replaced"):
        await box.workspaces.find_conflicted("task_1", ["a.txt"])
