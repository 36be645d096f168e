"""Files that git would overwrite although no commit and no index knows them: ignored ones."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Git, Place


async def obstacles(git: Git, reading: Place, directory: Path, tree: str, goal: str) -> list[bytes]:
    """What lies in the directory where the goal has files that the tree does not have."""
    options = ("-r", "-z", "--name-only", "--no-renames", "--diff-filter=A")
    output = await git.run(
        reading,
        *("diff-tree", *options, "--ignore-submodules=all", tree, goal, "--"),
        timeout_s=CONTENT_TIMEOUT_S,
    )
    return await asyncio.to_thread(_in_the_way, os.fsencode(directory), output.fields)


def _in_the_way(top: bytes, names: list[bytes]) -> list[bytes]:
    found: set[bytes] = set()
    clear: set[bytes] = set()  # directories in which nothing is, so that each is looked at once
    for name in names:
        parts = name.split(b"/")
        for length in range(1, len(parts) + 1):
            path = b"/".join(parts[:length])
            if path in clear:
                break
            mode = _mode(top, path)
            if mode is None:
                clear.add(path)
                break
            if not stat.S_ISDIR(mode):
                found.add(path)
                break
        else:
            found.update(_below(top, name))
    return sorted(found)


def _mode(top: bytes, path: bytes) -> int | None:
    try:
        return os.lstat(os.path.join(top, path)).st_mode
    except OSError:
        return None


def _below(top: bytes, directory: bytes) -> Iterator[bytes]:
    """Every file and link below a directory, but nothing of a repository inside it."""
    try:
        entries = list(os.scandir(os.path.join(top, directory)))
    except OSError:
        return  # git will not get at it either
    for entry in entries:
        path = os.path.join(directory, entry.name)
        if entry.name.lower() == b".git":
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _below(top, path)
        else:
            yield path
