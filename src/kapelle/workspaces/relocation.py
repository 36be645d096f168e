"""Link the worktrees of a moved repository to its new place."""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from kapelle.domain.errors import KapelleError
from kapelle.domain.text import relocate_path
from kapelle.workspaces.locks import WorkspaceGuard
from kapelle.workspaces.refs import Refs
from kapelle.workspaces.repository import find_checkout
from kapelle.workspaces.worktree import Marker


@dataclass
class RelocatedWorktrees:
    """The number of relinked worktrees, and the problems of the others."""

    linked: int = 0
    problems: list[str] = field(default_factory=list)


class WorkspaceRelocations(WorkspaceGuard):
    """Adapt worktrees to a moved repository."""

    async def known_commits(self, directory: Path, commits: Iterable[str]) -> set[str]:
        """Return those of the commits that the repository around a directory has."""
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

        May be repeated after a crash. An unusable worktree is reported, not raised.
        """
        result = RelocatedWorktrees()
        self._markers.forget_recalled()
        for owner in sorted(await asyncio.to_thread(self._markers.traces)):
            try:
                if await self._relocate_one(owner, str(old), str(new)):
                    result.linked += 1
            except KapelleError as error:
                result.problems.append(f"{owner}: {error.with_hint}")
        return result

    async def _relocate_one(self, owner: str, old: str, new: str) -> bool:
        """Link the worktree of one owner; False if it is not of the moved repository."""
        async with self._lock_owner(owner):
            begun_in = self._markers.read_intent(owner)
            if begun_in is not None and begun_in != _move_path(begun_in, old, new):
                self._markers.write_intent(owner, _move_path(begun_in, old, new))
            marker = self._markers.read(owner)
            if marker is None:
                return False
            new_marker = replace(
                marker,
                source=_move_path(marker.source, old, new),
                common_dir=_move_path(marker.common_dir, old, new),
                gitdir=_move_path(marker.gitdir, old, new),
            )
            if new_marker == marker:
                return False
            self._markers.write(new_marker)
            # The marker alone is enough for a worktree that was removed.
            if not new_marker.is_present:
                return False
            workspace = await self._adopt(new_marker)
            assert workspace is not None
            await workspace.make_ready()
            await asyncio.to_thread(_correct_links, workspace, old, new)
            return True


def _move_path(path: Path, old: str, new: str) -> Path:
    return Path(relocate_path(str(path), old, new))


def _correct_links(marker: Marker, old: str, new: str) -> None:
    """Correct the links in a worktree that lead into the repository."""
    for path in marker.excluded:
        place = marker.toplevel / path
        with suppress(OSError):
            target = os.readlink(place)
            if relocate_path(target, old, new) != target:
                place.unlink()
                place.symlink_to(relocate_path(target, old, new))
