"""Commits: what an agent did, kept on its branch or under an archive reference, and its log."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import GitError, InvalidInput, WorkspaceError
from kapelle.workspaces.git import Place, RefMoved
from kapelle.workspaces.refs import (
    ARCHIVE,
    commit_of,
    empty_tree,
    head_branch,
    head_commit,
    move_ref,
    plain_name,
    point_head,
    read_ref,
)
from kapelle.workspaces.repository import Checkout
from kapelle.workspaces.staging import Staging, install_index, obstacles
from kapelle.workspaces.worktree import (
    Marker,
    clear_stale_locks,
    dot_git_is_intact,
    ensure_gitdir,
    restore_dot_git,
    set_aside,
)

_TRIES = 5
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True)
class Heads:
    """Where a worktree stands: its HEAD, its task's branch, and what new work builds upon."""

    head: str | None
    tip: str | None
    parent: str


async def commit_worktree(marker: Marker, message: str) -> str | None:
    """Commit all that is dirty or untracked onto the task's branch."""
    marker.require_present()
    ensure_gitdir(marker)
    clear_stale_locks(marker)
    for _ in range(_TRIES):
        try:
            commit = await _commit(marker, message)
            break
        except RefMoved:
            continue
    else:
        raise GitError(f"{marker.branch} kept changing while it was being committed to.")
    if not dot_git_is_intact(marker):
        restore_dot_git(marker)
        raise WorkspaceError(
            f"The .git file of {marker.path} was removed or changed. The content is kept as "
            f"{commit or marker.base_commit} on {marker.branch}, and the file was put back.",
            hint="Look at what the agent did, then go on.",
        )
    return commit


async def _commit(marker: Marker, message: str) -> str | None:
    heads = await read_heads(marker)
    reading = await marker.reading()
    with marker.shadows.scratch() as scratch:
        staging = Staging(reading, marker.work_tree, scratch)
        staged = await staging.stage(heads.parent)
        marker.require_present()  # still; something of the agent may be running
        new = await commit_tree(reading, staged.tree, [heads.parent], message)
        if heads.parent == heads.tip != new:
            await move_ref(marker.refs, marker.ref, new, heads.tip, "kapelle: commit")
        elif heads.tip is not None and await is_ancestor(reading, new, heads.tip):
            new = heads.tip  # the agent only stepped back to look
        else:
            await _put_on_branch(reading, marker, heads.tip, new)
        if await tree_of(reading, new) == staged.tree:
            install_index(staged.index, marker.work_tree.index)
            await _return_to_branch(marker)
    return None if new == marker.base_commit else new


async def _put_on_branch(reading: Place, marker: Marker, tip: str | None, new: str) -> None:
    if tip is not None and not await is_ancestor(reading, tip, new):
        await keep(reading, marker, f"before-{new[:12]}", tip)
    await move_ref(marker.refs, marker.ref, new, tip, "kapelle: commit")


async def _return_to_branch(marker: Marker) -> None:
    if await head_branch(marker.git, marker.checkout) != marker.branch:
        await point_head(marker.own, marker.ref)


async def archive_worktree(
    marker: Marker, name: str, goal: str | None = None
) -> tuple[str, str] | None:
    """Keep HEAD and all uncommitted content; returns the reference and its commit.

    With a goal, that is where the worktree goes next: what it would overwrite is kept as well, and
    nothing is when all of it is in the goal's history.
    """
    if marker.removed:
        return None
    heads = await read_heads(marker)
    reading = await marker.reading()
    commit = heads.parent
    if marker.present:
        parents = [heads.parent, *await _other_work(reading, marker, heads)]
        staged = await stage_all(marker, heads, goal)
        message = f"kapelle: {marker.task_id} as it was ({name})"
        commit = await commit_tree(reading, staged, parents, message)
    if goal is None and commit == marker.base_commit:
        return None
    if goal is not None and await is_ancestor(reading, commit, goal):
        return None
    return await keep(reading, marker, name, commit, is_new=commit != heads.parent)


async def _other_work(reading: Place, marker: Marker, heads: Heads) -> list[str]:
    """Commits that HEAD does not hold: of the branch, and what an unfinished rebase put aside."""
    others = [] if heads.tip is None else [heads.tip]
    others += [line for line in set_aside(marker) if await commit_of(marker.refs, line) == line]
    return [commit for commit in others if not await is_ancestor(reading, commit, heads.parent)]


async def stage_all(marker: Marker, heads: Heads, goal: str | None = None) -> str:
    """The tree of everything worth keeping, submodules and nested repositories included."""
    reading = await marker.reading()
    with marker.shadows.scratch() as scratch:
        staging = Staging(reading, marker.work_tree, scratch)
        tree = (await staging.stage(heads.parent, flatten=True)).tree
        if goal is not None:
            directory = marker.work_tree.directory
            if found := await obstacles(reading, directory, tree, goal):
                tree = await staging.include(found)
    marker.require_present()
    return tree


async def keep(
    reading: Place, marker: Marker, name: str, commit: str, *, is_new: bool = False
) -> tuple[str, str]:
    """Hold a commit under the first free archive reference of this name.

    Returns the reference and its commit: the same, or for a new one, which nobody has seen yet,
    perhaps an older one of equal content and parents.
    """
    place = marker.refs
    for number in range(1, 1000):
        suffix = "" if number == 1 else f"-{number}"
        ref = f"{ARCHIVE}{marker.task_id}/{plain_name(name)}{suffix}"
        held = await read_ref(place, ref)
        if held == commit:
            return ref, commit
        if is_new and held is not None and await _is_equal(reading, held, commit):
            return ref, held
        if held is None or await is_ancestor(reading, held, commit):
            await move_ref(place, ref, commit, held, "kapelle: archive")
            return ref, commit
    raise GitError(f"There are too many archives named {name!r}.")


async def _is_equal(reading: Place, one: str, other: str) -> bool:
    """Whether two commits differ in time and message only, as after a repeated call."""
    arguments = ("rev-list", "--no-walk=unsorted", "--no-commit-header", "--format=%T %P")
    output = await reading.run(*arguments, one, other, "--")
    return len(set(output.stdout.splitlines())) == 1


async def read_heads(marker: Marker) -> Heads:
    tip, head = await asyncio.gather(
        read_ref(marker.refs, marker.ref),
        head_commit(marker.git, marker.checkout),
    )
    return Heads(head, tip, head or tip or marker.base_commit)


def checkout_of(marker: Marker) -> Checkout:
    return Checkout(Path(marker.path), Path(marker.gitdir), Path(marker.common_dir))


async def commit_tree(reading: Place, tree: str, parents: list[str], message: str) -> str:
    """A commit of the tree, or the only parent itself when it holds that tree already."""
    if len(parents) == 1 and await tree_of(reading, parents[0]) == tree:
        return parents[0]
    return await new_commit(reading, tree, parents, message)


async def new_commit(reading: Place, tree: str, parents: list[str], message: str) -> str:
    ancestry = [argument for parent in parents for argument in ("-p", parent)]
    text = message.replace("\0", "").encode("utf-8", "backslashreplace")
    arguments = ("commit-tree", *ancestry, "-F", "-", tree)
    commit = (await reading.run(*arguments, stdin=text + b"\n")).line
    reading.git.trees.put(_repository_of(reading), commit, tree)
    return commit


async def is_ancestor(reading: Place, old: str, new: str) -> bool:
    if old == new:
        return True
    output = await reading.run("merge-base", "--is-ancestor", old, new, ok=(0, 1))
    return output.code == 0


async def tree_of(reading: Place, commit: str, *, remembered: bool = True) -> str:
    """The tree of a commit; asked of git again when it has to be there still."""
    repository = _repository_of(reading)
    if remembered and (known := reading.git.trees.get(repository, commit)) is not None:
        return known
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}")
    tree = (await reading.run(*arguments)).line
    reading.git.trees.put(repository, commit, tree)
    return tree


def _repository_of(reading: Place) -> Path:
    return Path(reading.variables["GIT_OBJECT_DIRECTORY"]).parent


async def commit_now(marker: Marker) -> str | None:
    """The commit that the task's branch holds at present."""
    return await read_ref(marker.refs, marker.ref)


@dataclass(frozen=True)
class Commit:
    """One commit: its full id, and the first paragraph of its message in one line."""

    id: str
    subject: str


async def tip_of(marker: Marker) -> str:
    """The commit that the branch holds, or the base commit when there is no branch."""
    return await commit_now(marker) or marker.base_commit


async def require_commit(marker: Marker, text: str) -> str:
    """The full id of a commit of the repository, unchanged; anything else raises InvalidInput."""
    is_full = len(text) == len(empty_tree(marker.object_format)) and _HEX.fullmatch(text)
    if not is_full or await commit_of(marker.refs, text) != text:
        raise InvalidInput(
            f"{text!r} is not the full id of a commit of {marker.toplevel}.",
            hint="`git rev-parse` gives the full id.",
        )
    return text


async def log_of(marker: Marker, limit: int | None) -> list[Commit]:
    """What the branch gained since its base, newest first; a branch taken in counts as one."""
    bound = () if limit is None else (f"--max-count={max(limit, 0)}",)
    output = await (await marker.reading()).run(
        *("rev-list", "--first-parent", "--no-commit-header", "--format=%H %s", *bound),
        *(await tip_of(marker), f"^{marker.base_commit}", "--"),
    )
    lines = output.stdout.decode("utf-8", "replace").split("\n")
    return [Commit(*line.split(" ", 1)) for line in lines if line]
