"""Find and remove the worktrees and references of one home, for `kapelle uninstall`."""

import asyncio
import re
import shutil
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kapelle.domain.errors import KapelleError
from kapelle.workspaces.git import Git, GitLocation
from kapelle.workspaces.refs import ANCHORS, BRANCHES, Refs
from kapelle.workspaces.repository import find_checkout, read_origin, read_pointer
from kapelle.workspaces.workspaces import Workspaces

_OURS = f"{BRANCHES}kapelle/"
_KEPT = "refs/kapelle/"
_OWNER = re.compile(r"(?:task|run)_[0-9a-z]{26}")


@dataclass
class RepositoryLeftovers:
    """References with their commits, and worktrees, of one repository."""

    repository: str
    merged: dict[str, str] = field(default_factory=dict)
    unmerged: dict[str, str] = field(default_factory=dict)
    # Archived content of removed worktrees.
    archived: dict[str, str] = field(default_factory=dict)
    # Base commits of present worktrees.
    anchors: dict[str, str] = field(default_factory=dict)
    # The paths to remove, by the directory of the worktree.
    worktrees: dict[str, list[Path]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        lists = (self.merged, self.unmerged, self.archived, self.anchors, self.worktrees)
        return not any(lists)


def find_leftovers(repository: str, home: Path, owners: Set[str]) -> RepositoryLeftovers | None:
    """Return the leftovers of tasks and runs; None if the repository is gone."""
    return asyncio.run(_find_leftovers(repository, home, owners))


def remove(leftovers: RepositoryLeftovers, home: Path, *, keep_work: bool) -> None:
    """Remove worktrees and references; with `keep_work`, keep what is not merged."""
    asyncio.run(_remove(leftovers, home, keep_work))


def bring_over_work(home: Path) -> None:
    """Bring commits of agents that only their workspaces hold into the repositories."""
    asyncio.run(_bring_over_work(home))


async def _bring_over_work(home: Path) -> None:
    workspaces = Workspaces(home, "Kapelle", "kapelle@localhost")
    try:
        for owner in sorted(await workspaces.traces()):
            with suppress(KapelleError):
                await workspaces.tip(owner)
    finally:
        workspaces.close()


async def _find_leftovers(
    repository: str, home: Path, owners: Set[str]
) -> RepositoryLeftovers | None:
    checkout = find_checkout(Path(repository))
    if checkout is None:
        return None
    leftovers = RepositoryLeftovers(
        repository, worktrees=_find_worktrees(checkout.common_dir, home)
    )
    git = _make_git(home)
    try:
        refs = Refs.of(git, checkout.common_dir)
        in_use = await _find_branches_in_use(refs, home)
        for ref, commit in await _list_references(refs, _OURS, _KEPT):
            owner = _OWNER.search(ref)
            # Another home may use the same repository, and a person one of its branches.
            if owner is None or owner[0] not in owners or ref in in_use:
                continue
            if ref.startswith(ANCHORS):
                leftovers.anchors[ref] = commit
            elif ref.startswith(_KEPT):
                leftovers.archived[ref] = commit
            elif await _is_merged(refs, commit):
                leftovers.merged[ref] = commit
            else:
                leftovers.unmerged[ref] = commit
    finally:
        git.close()
    return leftovers


async def _remove(leftovers: RepositoryLeftovers, home: Path, keep_work: bool) -> None:
    checkout = find_checkout(Path(leftovers.repository))
    if checkout is None:
        return
    for paths in leftovers.worktrees.values():
        for path in paths:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
    references = leftovers.merged | leftovers.anchors
    if not keep_work:
        references |= leftovers.unmerged | leftovers.archived
    git = _make_git(home)
    try:
        if references:
            await Refs.of(git, checkout.common_dir).delete(*references.items())
    finally:
        git.close()


def _make_git(home: Path) -> Git:
    return Git("git", home / "git", "Kapelle", "kapelle@localhost")


def _find_worktrees(common_dir: Path, home: Path) -> dict[str, list[Path]]:
    """Return the worktrees of a repository that are below the home."""
    worktrees: dict[str, list[Path]] = {}
    for marker in sorted((home / "worktrees").glob("*.json")):
        place = marker.with_suffix("")
        if place.is_dir() and read_origin(place) == common_dir:
            worktrees[str(place)] = [place]
    # Linked worktrees of an earlier version.
    for pointer in sorted((common_dir / "worktrees").glob("*/gitdir")):
        text = read_pointer(pointer)
        if text is None:
            continue
        place = Path(text).parent
        if place.is_relative_to(home):
            worktrees[str(place)] = [place, pointer.parent]
    return worktrees


async def _list_references(place: GitLocation, *prefixes: str) -> list[tuple[str, str]]:
    output = await place.run("for-each-ref", "--format=%(refname) %(objectname)", *prefixes)
    references: list[tuple[str, str]] = []
    for line in output.line.splitlines():
        ref, commit = line.split(" ")
        references.append((ref, commit))
    return references


async def _find_branches_in_use(place: GitLocation, home: Path) -> set[str]:
    """Return the branches that are checked out outside of the home."""
    output = await place.run("worktree", "list", "--porcelain")
    branches: set[str] = set()
    for block in output.line.split("\n\n"):
        lines = dict(line.partition(" ")[::2] for line in block.splitlines())
        if not Path(lines.get("worktree", "/")).is_relative_to(home):
            branches.add(lines.get("branch", ""))
    return branches


async def _is_merged(place: GitLocation, commit: str) -> bool:
    """Tell whether a branch other than Kapelle's contains the commit."""
    others = ("--not", "--exclude=kapelle/*", "--branches")
    output = await place.run("rev-list", "--max-count=1", commit, *others)
    return not output.line
