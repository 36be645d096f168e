"""Commits: keep the agent's work on its branch or under an archive reference; the log."""

import asyncio
from dataclasses import dataclass
from functools import partial

from kapelle.domain.errors import GitError, InvalidInput, WorkspaceError
from kapelle.workspaces.clone import (
    RepositoryState,
    list_own_commits,
    read_agreed,
    write_branch,
)
from kapelle.workspaces.git import RefMoved
from kapelle.workspaces.index import find_obstacles
from kapelle.workspaces.intake import receive
from kapelle.workspaces.refs import ARCHIVE, BRANCHES, require_plain_name
from kapelle.workspaces.shadow import Objects
from kapelle.workspaces.worktree import Heads, Marker

_TRIES = 5


async def commit_worktree(marker: Marker, message: str) -> str | None:
    """Commit all changes and untracked files to the branch; None if that is the base commit.

    Raises WorkspaceError if the agent had replaced the repository; the commit is made all the same.
    """
    marker.require_present()
    state = await marker.repair()
    marker.clear_stale_locks()
    for _ in range(_TRIES):
        try:
            commit = await _commit(marker, message)
            break
        except RefMoved:
            continue
    else:
        raise GitError(f"{marker.branch} kept changing during the commit.")
    if state is RepositoryState.FOREIGN:
        raise marker.make_foreign_error()
    if state is RepositoryState.MISSING:
        text = f"{marker.gitdir} was removed or replaced. The content is kept as {commit} on "
        text += f"{marker.branch}, and the repository was made anew."
        raise WorkspaceError(text, hint="Review what the agent did, then continue.")
    if commit == marker.base_commit:
        return None
    return commit


async def _commit(marker: Marker, message: str) -> str:
    await bring_over(marker)
    heads = await marker.heads()
    objects = marker.objects
    standing = heads.tip or marker.base_commit
    intake = await marker.receive()
    with marker.staging(intake) as staging:

        async def stage(use_index: bool) -> str:
            tree = await staging.stage(heads.parent, use_index=use_index)
            await staging.require_filters(heads.parent, tree)
            marker.require_present()  # again: a process of the agent may still be running
            return tree

        new = await marker.make_commit(intake, stage, [heads.parent], message)
        tree = await objects.tree_of(new)
        # The usual case: HEAD is at the tip of the branch, and there is something to commit.
        if heads.parent == standing != new:
            await marker.move_branch(new, heads.tip, "kapelle: commit")
        elif await objects.is_ancestor(new, standing):
            new = standing  # the agent only checked out an older commit
        elif await _is_committed(marker, heads, tree):
            new = standing  # before a crash
        else:
            if heads.tip is not None and not await objects.is_ancestor(heads.tip, new):
                await archive_commit(marker, f"before-{new[:12]}", heads.tip)
            await marker.move_branch(new, heads.tip, "kapelle: commit")
        if await objects.tree_of(new) == tree:
            # The agent's git then sees a clean worktree.
            await marker.set_branch(new, staging.index)
        else:
            await marker.set_branch(new)
    return new


async def _is_committed(marker: Marker, heads: Heads, tree: str) -> bool:
    """Tell whether the branch holds this tree already, as a descendant of HEAD."""
    objects = marker.objects
    if heads.tip is None or await objects.tree_of(heads.tip) != tree:
        return False
    return await objects.is_ancestor(heads.parent, heads.tip)


def has_moved(marker: Marker) -> bool:
    """Tell whether the branch of the workspace moved since both repositories agreed about it."""
    if not marker.is_intact:
        return False
    return marker.own_branch() not in {None, read_agreed(marker.gitdir)}


async def bring_over(marker: Marker) -> None:
    """Move the branch in the user's repository to where the agent's git moved its own branch.

    What the branch held and the new commit does not contain is archived.
    """
    commit = marker.own_branch()
    # The agent's git may be at work, so the branch is read once.
    if commit is None or not marker.is_intact or commit == read_agreed(marker.gitdir):
        return
    tip = await marker.tip()
    if commit != (tip or marker.base_commit):
        if not await marker.publish(commit, tip):
            return
        if tip is not None and not await marker.objects.is_ancestor(tip, commit):
            await archive_commit(marker, f"before-{commit[:12]}", tip)
        await marker.move_branch(commit, tip, "kapelle: brought over")
    write_branch(marker.gitdir, marker.task_id, marker.ref, commit)


async def archive_worktree(
    marker: Marker, name: str, goal: str | None = None
) -> tuple[str, str] | None:
    """Archive HEAD and all uncommitted content; return the reference and its commit.

    Returns None if there is nothing to archive. `goal` is the commit that the worktree goes to
    next: what the goal would overwrite is archived too, and nothing if the goal's history contains
    everything.
    """
    if marker.removed:
        return None
    heads = await marker.heads()
    commit = heads.parent
    if marker.is_present:
        parents = [heads.parent, *await _find_other_work(marker, heads, is_last=goal is None)]
        intake = await marker.receive()
        stage = partial(stage_all, marker, intake, heads, goal)
        message = f"kapelle: {marker.task_id} as it was ({name})"
        commit = await marker.make_commit(intake, stage, parents, message)
    if goal is None and commit == marker.base_commit:
        return None
    if goal is not None and await marker.objects.is_ancestor(commit, goal):
        return None
    return await archive_commit(marker, name, commit, is_new=commit != heads.parent)


async def _find_other_work(marker: Marker, heads: Heads, *, is_last: bool) -> list[str]:
    """Return commits that HEAD does not contain: the branch's, and stashes of a rebase.

    With `is_last`, the workspace is about to go: also those of other branches and stashes.
    """
    if heads.tip is None:
        others = []
    else:
        others = [heads.tip]
    own = marker.list_autostashes()
    if is_last and marker.is_intact:
        own += await _list_own_commits(marker)
    for line in own:
        is_known = await marker.refs.commit_of(line) == line
        if is_known or (marker.is_intact and await marker.publish(line, heads.tip)):
            others.append(line)
    commits: list[str] = []
    for commit in dict.fromkeys(others):
        if not await marker.objects.is_ancestor(commit, heads.parent):
            commits.append(commit)
    return commits


async def _list_own_commits(marker: Marker) -> list[str]:
    """Return commits of the agent's other branches and stashes."""
    if await receive(marker.shadows, marker) is None:
        return []
    output = await marker.refs.run("for-each-ref", "--format=%(refname) %(objectname)", BRANCHES)
    present = dict[str, str]()
    for line in output.line.splitlines():
        ref, _, commit = line.partition(" ")
        present[ref] = commit
    return await asyncio.to_thread(list_own_commits, marker.gitdir, present)


async def stage_all(
    marker: Marker, intake: Objects, heads: Heads, goal: str | None = None, use_index: bool = True
) -> str:
    """Return the tree of everything to keep, with submodules and nested repositories."""
    with marker.staging(intake) as staging:
        tree = await staging.stage(heads.parent, flatten=True, use_index=use_index)
        if goal is not None:
            names = await find_obstacles(intake, marker.toplevel, tree, goal)
            if names:
                tree = await staging.include(names)
    marker.require_present()
    return tree


async def archive_commit(
    marker: Marker, name: str, commit: str, *, is_new: bool = False
) -> tuple[str, str]:
    """Keep a commit under the first free archive reference of this name.

    Returns the reference and its commit. For a new commit, that nobody has seen yet, this may be an
    older one with equal content and parents.
    """
    for number in range(1, 1000):
        suffix = "" if number == 1 else f"-{number}"
        ref = f"{ARCHIVE}{marker.task_id}/{require_plain_name(name)}{suffix}"
        present = await marker.refs.read(ref)
        if present == commit:
            return ref, commit
        if is_new and present is not None and await _is_equal(marker.objects, present, commit):
            return ref, present
        if present is None or await marker.objects.is_ancestor(present, commit):
            await marker.refs.move(ref, commit, present, "kapelle: archive")
            return ref, commit
    raise GitError(f"Too many archives are named {name!r}.")


async def _is_equal(objects: Objects, one: str, other: str) -> bool:
    """Tell whether two commits differ in time and message only, as after a repeated call."""
    arguments = ("rev-list", "--no-walk=unsorted", "--no-commit-header", "--format=%T %P")
    output = await objects.run(*arguments, one, other, "--")
    return len(set(output.stdout.splitlines())) == 1


@dataclass(frozen=True)
class Commit:
    """One commit: its full id, the subject of its message, and the body."""

    id: str
    subject: str
    body: str = ""


async def read_tip(marker: Marker) -> str:
    """Return the commit that the branch holds or held; without one, the base commit."""
    return await marker.tip() or marker.left or marker.base_commit


async def find_work(marker: Marker) -> str | None:
    """Return the commit to merge; None if the branch of committed work does not exist any more."""
    tip = await marker.tip() or marker.left
    # Nothing was committed, so there never was a branch.
    if tip is None and (marker.is_empty or _has_no_work(marker)):
        return marker.base_commit
    return tip


def _has_no_work(marker: Marker) -> bool:
    """Tell whether the branch of a workspace still is where it began."""
    if not marker.is_intact:
        return False
    return marker.base_commit == read_agreed(marker.gitdir) == marker.own_branch()


async def require_commit(marker: Marker, text: str) -> None:
    """Raise InvalidInput unless this is the full id of a commit of the repository."""
    if not marker.is_id(text) or await marker.refs.commit_of(text) != text:
        message = f"{text!r} is not the full id of a commit of {marker.source}."
        raise InvalidInput(message, hint="`git rev-parse` gives the full id.")
