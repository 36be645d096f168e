"""Commits: keep the agent's work on its branch or under an archive reference; the log."""

from dataclasses import dataclass

from kapelle.domain.errors import GitError, InvalidInput, WorkspaceError
from kapelle.workspaces.git import RefMoved
from kapelle.workspaces.index import find_obstacles, install_index
from kapelle.workspaces.refs import ARCHIVE, require_plain_name
from kapelle.workspaces.shadow import Objects
from kapelle.workspaces.worktree import Heads, Marker

_TRIES = 5


async def commit_worktree(marker: Marker, message: str) -> str | None:
    """Commit all changes and untracked files to the branch; None if that is the base commit.

    Raises WorkspaceError if the agent had changed the .git file; the commit is made all the same.
    """
    marker.require_present()
    marker.ensure_gitdir()
    marker.clear_stale_locks()
    for _ in range(_TRIES):
        try:
            commit = await _commit(marker, message)
            break
        except RefMoved:
            continue
    else:
        raise GitError(f"{marker.branch} kept changing during the commit.")
    if marker.restore_dot_git():
        text = f"The .git file of {marker.toplevel} was removed or changed. The content is kept as "
        text += f"{commit} on {marker.branch}, and the file was restored."
        raise WorkspaceError(text, hint="Review what the agent did, then continue.")
    if commit == marker.base_commit:
        return None
    return commit


async def _commit(marker: Marker, message: str) -> str:
    heads = await marker.heads()
    objects = marker.objects
    with marker.staging() as staging:
        tree = await staging.stage(heads.parent)
        await staging.require_filters(heads.parent, tree)
        marker.require_present()  # again: a process of the agent may still be running
        new = await objects.commit_unless_held(tree, [heads.parent], message)
        # The usual case: HEAD is at the tip of the branch, and there is something to commit.
        if heads.parent == heads.tip != new:
            await marker.refs.move(marker.ref, new, heads.tip, "kapelle: commit")
        elif heads.tip is not None and await objects.is_ancestor(new, heads.tip):
            new = heads.tip  # the agent only checked out an older commit
        else:
            if heads.tip is not None and not await objects.is_ancestor(heads.tip, new):
                await archive_commit(marker, f"before-{new[:12]}", heads.tip)
            await marker.refs.move(marker.ref, new, heads.tip, "kapelle: commit")
        if await objects.tree_of(new) == tree:
            # The agent's git then sees a clean worktree.
            install_index(staging.index, marker.index)
            if not await marker.stands_on_branch():
                await marker.own.point_head(marker.ref)
    return new


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
        parents = [heads.parent, *await _find_other_work(marker, heads)]
        tree = await stage_all(marker, heads, goal)
        message = f"kapelle: {marker.task_id} as it was ({name})"
        commit = await marker.objects.commit_unless_held(tree, parents, message)
    if goal is None and commit == marker.base_commit:
        return None
    if goal is not None and await marker.objects.is_ancestor(commit, goal):
        return None
    return await archive_commit(marker, name, commit, is_new=commit != heads.parent)


async def _find_other_work(marker: Marker, heads: Heads) -> list[str]:
    """Return commits that HEAD does not contain: the branch's, and stashes of a rebase."""
    if heads.tip is None:
        others = []
    else:
        others = [heads.tip]
    for line in marker.list_autostashes():
        if await marker.refs.commit_of(line) == line:
            others.append(line)
    commits: list[str] = []
    for commit in others:
        if not await marker.objects.is_ancestor(commit, heads.parent):
            commits.append(commit)
    return commits


async def stage_all(marker: Marker, heads: Heads, goal: str | None = None) -> str:
    """Return the tree of everything to keep, with submodules and nested repositories."""
    with marker.staging() as staging:
        tree = await staging.stage(heads.parent, flatten=True)
        if goal is not None:
            names = await find_obstacles(marker.objects, marker.toplevel, tree, goal)
            if names:
                tree = await staging.include(names)
            else:
                tree = tree
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


async def require_commit(marker: Marker, text: str) -> None:
    """Raise InvalidInput unless this is the full id of a commit of the repository."""
    if not marker.is_id(text) or await marker.refs.commit_of(text) != text:
        message = f"{text!r} is not the full id of a commit of {marker.source}."
        raise InvalidInput(message, hint="`git rev-parse` gives the full id.")
