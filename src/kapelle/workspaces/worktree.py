"""Making a task's worktree: a branch, a directory, the files; complete only when marked so."""

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kapelle.domain.errors import InvalidInput, WorkspaceError
from kapelle.domain.task import Workspace
from kapelle.workspaces.commit import commit_now, keep
from kapelle.workspaces.content import files_place
from kapelle.workspaces.discovery import Checkout, find_checkout, linked_gitdir, read_pointer
from kapelle.workspaces.files import copy_into, link_into, relative_parts
from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Git
from kapelle.workspaces.identity import inode_of, is_real_directory
from kapelle.workspaces.marker import Marker, Markers
from kapelle.workspaces.names import branch_of
from kapelle.workspaces.refs import (
    Resolved,
    head_branch,
    head_commit,
    move_ref,
    repository_place,
    resolve,
)
from kapelle.workspaces.repository import habits_of
from kapelle.workspaces.skeleton import Skeletons


@dataclass(frozen=True)
class Order:
    """What is asked for: a worktree for a task or a run, from a directory's repository."""

    task_id: str
    directory: Path
    base: str | None
    copy: Sequence[str]
    link: Sequence[str]


async def create_worktree(
    git: Git, skeletons: Skeletons, markers: Markers, order: Order
) -> Workspace:
    """Make the worktree, or return the one that is there; what was half-made is made anew."""
    for path in (*order.copy, *order.link):
        relative_parts(path)
    marker = markers.read(order.task_id)
    if marker is not None and marker.present:
        markers.fulfilled(order.task_id)
        return marker.as_workspace(await _progress(git, marker))
    await _make_room(markers, order.task_id, marker)
    if os.path.lexists(markers.worktree(order.task_id)):
        raise WorkspaceError(
            f"{markers.worktree(order.task_id)} exists and was not made by Kapelle.",
            hint="Move it away, then try again.",
        )
    if marker is not None:
        # The branch it was made from may be gone by now; its own was kept, and so is the base.
        order = replace(order, base=marker.base_commit)
    plan = await _plan(git, markers, order)
    if marker is not None:
        plan = replace(plan, base=marker.base)
    return await _make(git, skeletons, markers, plan, order, afresh=marker is None)


async def _make_room(markers: Markers, task_id: str, marker: Marker | None) -> None:
    """Clear away what was half-made, and the entry in git of a worktree that somebody deleted."""
    path = markers.worktree(task_id)
    common_dir = markers.intended(task_id)
    if marker is not None and not marker.removed:
        if os.path.lexists(path):
            marker.require_present()
        # From here on, whatever comes to be at the path is half-made.
        markers.write(replace(marker, removed=True))
    if common_dir is not None:
        await clear_half_made(markers, task_id, common_dir)
    elif marker is not None and not os.path.lexists(path):
        await clear_half_made(markers, task_id, Path(marker.common_dir))


async def base_of(git: Git, checkout: Checkout, base: str | None) -> Resolved:
    """The branch and commit that new work starts from."""
    place = repository_place(checkout.common_dir, checkout.gitdir)
    if base is not None:
        resolved = await resolve(git, place, base)
        if resolved is None:
            raise InvalidInput(
                f"{base!r} is neither a branch nor a commit of {checkout.toplevel}.",
                hint="`git branch --all` lists what there is.",
            )
        return resolved
    commit = await head_commit(git, checkout)
    if commit is None:
        raise WorkspaceError(
            f"The repository at {checkout.toplevel} has no commit yet.",
            hint="Make a first commit: git add . && git commit -m 'Start'",
        )
    return Resolved(await head_branch(git, checkout), commit)


async def clear_half_made(markers: Markers, task_id: str, common_dir: Path) -> None:
    """Remove the remains of a worktree in which no agent ever ran."""
    path = markers.worktree(task_id)
    await asyncio.to_thread(_clear, path, common_dir)
    Path(common_dir, f"refs/heads/{branch_of(task_id)}.lock").unlink(missing_ok=True)


def _clear(path: Path, common_dir: Path) -> None:
    if is_real_directory(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        raise WorkspaceError(f"{path} was not made by Kapelle.", hint="Remove it by hand.")
    # git appends a number to the name when it is taken.
    for admin in (common_dir / "worktrees").glob(f"{path.name}*"):
        suffix = admin.name.removeprefix(path.name)
        if (suffix == "" or suffix.isdigit()) and _belongs_to(admin, path):
            shutil.rmtree(admin)


def _belongs_to(admin: Path, path: Path) -> bool:
    target = read_pointer(admin / "gitdir")
    return not target or Path(target) == path / ".git"


async def _progress(git: Git, marker: Marker) -> str | None:
    commit = await commit_now(git, marker)
    return None if commit == marker.base_commit else commit


async def _plan(git: Git, markers: Markers, order: Order) -> Marker:
    checkout = find_checkout(order.directory)
    if checkout is None:
        raise WorkspaceError(
            f"{order.directory} is not in a git repository.",
            hint="Run `git init` and commit there, or work in place.",
        )
    base = await base_of(git, checkout, order.base)
    habits = await habits_of(git, checkout)
    return Marker(
        task_id=order.task_id,
        path=str(markers.worktree(order.task_id)),
        toplevel=str(checkout.toplevel),
        common_dir=str(checkout.common_dir),
        gitdir="",
        object_format=habits.object_format,
        branch=branch_of(order.task_id),
        base=base.branch or order.base or base.commit,
        base_commit=base.commit,
        excluded=(),
        settings=habits.settings,
        ignore=habits.ignore,
    )


async def _make(
    git: Git, skeletons: Skeletons, markers: Markers, plan: Marker, order: Order, *, afresh: bool
) -> Workspace:
    markers.intend(plan.task_id, Path(plan.common_dir))
    start = await _place_branch(git, skeletons, plan, afresh=afresh)
    await git.run(
        repository_place(Path(plan.common_dir)),
        *("worktree", "add", "--quiet", "--no-checkout", "--lock", "--reason", "kapelle"),
        *("--", plan.path, plan.branch),
    )
    gitdir = linked_gitdir(Path(plan.path) / ".git")
    if gitdir is None or gitdir.parent.parent != Path(plan.common_dir):
        raise WorkspaceError(f"git did not link {plan.path} to {plan.common_dir}.")
    marker = replace(plan, gitdir=str(gitdir), inode=inode_of(Path(plan.path)))
    reading = await skeletons.reading(marker.lender)
    files = files_place(reading, marker.work_tree, marker.work_tree.index)
    await git.run(files, "read-tree", "--reset", "-u", start, timeout_s=CONTENT_TIMEOUT_S)
    source, target = Path(marker.toplevel), Path(marker.path)
    copied = await asyncio.to_thread(copy_into, source, target, order.copy)
    linked = await asyncio.to_thread(link_into, source, target, order.link)
    excluded = ("/".join(relative_parts(path)) for path in (*copied, *linked))
    marker = replace(marker, excluded=tuple(excluded))
    markers.write(marker)
    markers.fulfilled(marker.task_id)
    return marker.as_workspace(None if start == marker.base_commit else start)


async def _place_branch(git: Git, skeletons: Skeletons, plan: Marker, *, afresh: bool) -> str:
    """Put the task's branch at the base, and say which commit it then holds."""
    tip = await commit_now(git, plan)
    if tip is not None and (tip == plan.base_commit or not afresh):
        return tip
    if tip is not None:
        await keep(git, await skeletons.reading(plan.lender), plan, "found", tip)
    place = repository_place(Path(plan.common_dir))
    await move_ref(git, place, plan.ref, plan.base_commit, tip, "kapelle: begin")
    return plan.base_commit
