"""What one home has left in a repository, and removing it, for `kapelle uninstall`."""

import asyncio
import re
import shutil
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

from kapelle.workspaces.git import Git, GitLocation
from kapelle.workspaces.refs import BRANCHES, Refs
from kapelle.workspaces.repository import find_checkout, read_pointer

_OURS = f"{BRANCHES}kapelle/"
_KEPT = "refs/kapelle/"
_OWNER = re.compile(r"(?:task|run)_[0-9a-z]{26}")


@dataclass
class RepositoryLeftovers:
    """References with their commits, and worktrees, of one repository."""

    repository: str
    merged: dict[str, str] = field(default_factory=dict)
    unmerged: dict[str, str] = field(default_factory=dict)
    # Content that was archived when its worktree was removed.
    archived: dict[str, str] = field(default_factory=dict)
    # By the directory of each worktree, its directory below .git/worktrees.
    worktrees: dict[str, Path] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.merged or self.unmerged or self.archived or self.worktrees)


def leftovers_of(repository: str, home: Path, owners: Set[str]) -> RepositoryLeftovers | None:
    """Return what tasks and runs of these ids have left; None where the repository is gone."""
    return asyncio.run(_leftovers(repository, home, owners))


def remove(leftovers: RepositoryLeftovers, home: Path, *, keep_work: bool) -> None:
    """Remove worktrees and references; keep_work keeps what is not merged."""
    asyncio.run(_remove(leftovers, home, keep_work))


async def _leftovers(repository: str, home: Path, owners: Set[str]) -> RepositoryLeftovers | None:
    checkout = find_checkout(Path(repository))
    if checkout is None:
        return None
    found = RepositoryLeftovers(repository, worktrees=_worktrees(checkout.common_dir, home))
    git = _git(home)
    try:
        refs = Refs.of(git, checkout.common_dir)
        in_use = await _branches_in_use(refs, home)
        for ref, commit in await _refs(refs, _OURS, _KEPT):
            owner = _OWNER.search(ref)
            # Another home may work in the same repository, and a person on one of its branches.
            if owner is None or owner[0] not in owners or ref in in_use:
                continue
            if ref.startswith(_KEPT):
                found.archived[ref] = commit
            elif await _is_merged(refs, commit):
                found.merged[ref] = commit
            else:
                found.unmerged[ref] = commit
    finally:
        git.close()
    return found


async def _remove(leftovers: RepositoryLeftovers, home: Path, keep_work: bool) -> None:
    checkout = find_checkout(Path(leftovers.repository))
    if checkout is None:
        return
    for place, administration in leftovers.worktrees.items():
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        await asyncio.to_thread(shutil.rmtree, administration, ignore_errors=True)
    gone = dict(leftovers.merged)
    if not keep_work:
        gone |= leftovers.unmerged | leftovers.archived
    git = _git(home)
    try:
        if gone:
            await Refs.of(git, checkout.common_dir).delete(*gone.items())
    finally:
        git.close()


def _git(home: Path) -> Git:
    return Git("git", home / "git", "Kapelle", "kapelle@localhost")


def _worktrees(common_dir: Path, home: Path) -> dict[str, Path]:
    """Return the worktrees of a repository that are below the home."""
    found: dict[str, Path] = {}
    for pointer in sorted((common_dir / "worktrees").glob("*/gitdir")):
        text = read_pointer(pointer)
        if text is None:
            continue
        place = Path(text).parent
        if place.is_relative_to(home):
            found[str(place)] = pointer.parent
    return found


async def _refs(place: GitLocation, *prefixes: str) -> list[tuple[str, str]]:
    output = await place.run("for-each-ref", "--format=%(refname) %(objectname)", *prefixes)
    pairs = (line.split(" ") for line in output.line.splitlines())
    return [(ref, commit) for ref, commit in pairs]


async def _branches_in_use(place: GitLocation, home: Path) -> set[str]:
    """Return the branches that are checked out anywhere but below the home."""
    output = await place.run("worktree", "list", "--porcelain")
    used: set[str] = set()
    for block in output.line.split("\n\n"):
        lines = dict(line.partition(" ")[::2] for line in block.splitlines())
        if not Path(lines.get("worktree", "/")).is_relative_to(home):
            used.add(lines.get("branch", ""))
    return used


async def _is_merged(place: GitLocation, commit: str) -> bool:
    """Return whether a branch that is not ours holds the commit."""
    others = ("--not", "--exclude=kapelle/*", "--branches")
    output = await place.run("rev-list", "--max-count=1", commit, *others)
    return not output.line
