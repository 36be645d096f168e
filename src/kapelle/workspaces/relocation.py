"""Worktrees of a repository that was moved: linked to its new place."""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from kapelle.domain.errors import KapelleError
from kapelle.domain.text import relocated
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import Refs
from kapelle.workspaces.repository import find_checkout
from kapelle.workspaces.worktree import Marker


@dataclass
class RelocatedWorktrees:
    """The number of worktrees that were linked to the new place, and why others were not."""

    linked: int = 0
    problems: list[str] = field(default_factory=list)


class WorkspaceRelocations(WorkspaceGuard):
    """What a move of a repository changes in its worktrees."""

    async def known_commits(self, directory: Path, commits: Iterable[str]) -> set[str]:
        """Return those of the commits that the repository around a directory holds."""
        checkout = find_checkout(directory)
        if checkout is None:
            return set()
        text = "".join(f"{commit}\n" for commit in commits)
        refs = Refs.of(self._git, checkout.common_dir)
        options = ("--batch-check=%(objectname) %(objecttype)",)
        output = await refs.run("cat-file", *options, stdin=text.encode())
        lines = output.stdout.decode("utf-8", "replace").splitlines()
        return {line.removesuffix(" commit") for line in lines if line.endswith(" commit")}

    async def relocate(self, old: Path, new: Path) -> RelocatedWorktrees:
        """Link every worktree of the repository at old to the repository at new.

        May be repeated after a crash. A worktree that cannot be used is reported, not raised.
        """
        done = RelocatedWorktrees()
        self._markers.forget_recalled()
        for owner in sorted(await asyncio.to_thread(self._markers.traces)):
            try:
                if await self._relocate_one(owner, str(old), str(new)):
                    done.linked += 1
            except KapelleError as error:
                done.problems.append(f"{owner}: {error.with_hint}")
        return done

    async def _relocate_one(self, owner: str, old: str, new: str) -> bool:
        """Link the worktree of one owner; False if it has none in the moved repository."""
        async with self._alone(owner):
            begun_in = self._markers.intended(owner)
            if begun_in is not None and begun_in != _relocated(begun_in, old, new):
                self._markers.intend(owner, _relocated(begun_in, old, new))
            marker = self._markers.read(owner)
            if marker is None:
                return False
            moved = replace(
                marker,
                source=_relocated(marker.source, old, new),
                common_dir=_relocated(marker.common_dir, old, new),
                gitdir=_relocated(marker.gitdir, old, new),
            )
            if moved == marker:
                return False
            self._markers.write(moved)
            if not moved.present:
                return False
            await asyncio.to_thread(_link, moved, old, new)
            return True


def _relocated(path: Path, old: str, new: str) -> Path:
    return Path(relocated(str(path), old, new))


def _link(marker: Marker, old: str, new: str) -> None:
    """Link a worktree and its repository to each other, and correct the links in it."""
    # Not `git worktree repair`: it believes what an agent wrote into the worktree.
    marker.make_ready()
    for path in marker.excluded:
        place = marker.toplevel / path
        with suppress(OSError):
            target = os.readlink(place)
            if relocated(target, old, new) != target:
                place.unlink()
                place.symlink_to(relocated(target, old, new))
