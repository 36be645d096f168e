"""Give linked git worktrees, which earlier versions of Kapelle made, their own repository."""

import asyncio
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from kapelle.workspaces.clone import (
    RepositoryState,
    adopt_state,
    examine_repository,
    read_template,
    write_repository,
)
from kapelle.workspaces.repository import read_pointer
from kapelle.workspaces.shadow import fresh_path
from kapelle.workspaces.worktree import STATES, Marker, is_real_directory

# What a linked worktree has of its own, besides its pointers.
_OWN = ("HEAD", "index", "ORIG_HEAD", "logs/HEAD", *STATES)


async def adopt_linked(marker: Marker) -> Marker:
    """Give a linked worktree a repository of its own; return its new marker.

    May be repeated after a crash. The caller stores the marker.
    """
    new = replace(marker, gitdir=marker.toplevel / ".git")
    if marker.is_present and not new.is_intact:
        await _make_repository(marker, new)
    await asyncio.to_thread(remove_linked, marker.toplevel, marker.common_dir)
    return new


async def _make_repository(marker: Marker, new: Marker) -> None:
    marker.require_origin()
    if examine_repository(new, new.task_id) is RepositoryState.FOREIGN:
        raise new.make_foreign_error()
    commit = await marker.tip() or marker.base_commit
    template = await read_template(marker.git, marker.common_dir)
    fresh = fresh_path(marker.toplevel)
    await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)
    write = partial(
        write_repository,
        fresh,
        template,
        owner=marker.task_id,
        branch=marker.ref,
        workspace=marker.toplevel,
    )
    await asyncio.to_thread(write, commit=commit)
    # An agent may have replaced it by a link that leads elsewhere.
    if marker.gitdir.resolve() == marker.common_dir.resolve() / "worktrees" / marker.gitdir.name:
        await asyncio.to_thread(_adopt, marker.gitdir, fresh, _OWN)
    if os.path.lexists(new.gitdir):
        new.gitdir.unlink()
    fresh.rename(new.gitdir)


def _adopt(source: Path, target: Path, names: Iterable[str]) -> None:
    (target / "logs").mkdir(exist_ok=True)
    adopt_state(source, target, names)


def remove_linked(path: Path, common_dir: Path) -> None:
    """Remove the entries of a directory in git's list of worktrees."""
    # git appends a number if the name is taken.
    for admin in (common_dir / "worktrees").glob(f"{path.name}*"):
        suffix = admin.name.removeprefix(path.name)
        target = read_pointer(admin / "gitdir")
        is_its = not target or Path(target) == path / ".git"
        if (suffix == "" or suffix.isdigit()) and is_its and is_real_directory(admin):
            shutil.rmtree(admin)
