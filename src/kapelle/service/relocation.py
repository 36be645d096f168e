"""Use cases of repositories that were moved: find what belongs to them, take it along."""

import logging
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from kapelle.domain.errors import Conflict, InvalidInput, NotFound
from kapelle.domain.specs import Directory, Spec
from kapelle.domain.text import format_files
from kapelle.domain.views import MovedRepository, RelocationView
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.submit import require_directory
from kapelle.settings import trust
from kapelle.store import projects, relocation
from kapelle.workspaces import checkouts_around, repository_of

_log = logging.getLogger("kapelle.relocation")


class RelocationBody(Spec):
    """Where a repository was, and where it is now."""

    old: Directory
    new: Directory


class RelocationService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def candidates(
        self, directory: Annotated[str, Field(max_length=4000, pattern=r"^/[^\x00]*$")]
    ) -> list[MovedRepository]:
        """Former places of the repository around a directory, if it has no work of its own.

        A former place is gone, or a link to this one, and a commit that work there began from is
        in this repository.
        """
        if not checkouts_around(Path(directory)):
            return []
        repository = repository_of(directory)
        if await self._parts.db.read(relocation.has_work, repository):
            return []
        known = await self._parts.db.read(relocation.load_base_commits)
        missing = {
            path: commits
            for path, commits in known.items()
            if not os.path.isdir(path) or os.path.realpath(path) == repository
        }
        if not missing:
            return []
        every = {commit for commits in missing.values() for commit in commits}
        held = await self._parts.workspaces.known_commits(Path(repository), sorted(every))
        return [
            MovedRepository(old=path, new=repository)
            for path, commits in sorted(missing.items())
            if not held.isdisjoint(commits)
        ]

    async def relocate(self, body: RelocationBody) -> RelocationView:
        """Take all that belongs to a repository along to the place it was moved to."""
        old = os.path.normpath(body.old)
        new = os.path.realpath(require_directory(body.new))
        self._require_moved(old, new)
        await self._require_no_other(old, new)
        await self._require_same(old, new)
        await self._parts.db.read(relocation.require_idle, old)
        # May be repeated after a crash, so the rows, which name the old place, go last.
        worktrees = await self._parts.workspaces.relocate(Path(old), Path(new))
        standing = trust.relocate(self._parts.home, old, new)
        rows = await self._parts.db.write(relocation.relocate, old, new)
        if not (any(rows.values()) or worktrees.linked or standing):
            raise NotFound(
                f"Nothing belongs to a repository at {old}.",
                hint="`kapelle list --all` shows the repositories of all work.",
            )
        self._parts.locks.relocate(old, new)
        self._parts.projects = await self._parts.db.read(projects.load_current)
        _log.info("%s was moved to %s", old, new)
        return RelocationView(
            old=old, new=new, tasks=rows["tasks"], runs=rows["runs"], schedules=rows["schedules"],
            templates=rows["templates"], learnings=rows["learnings"], projects=rows["projects"],
            worktrees=worktrees.linked, problems=worktrees.problems, trust=standing,
        )  # fmt: skip

    def _require_moved(self, old: str, new: str) -> None:
        """Raise an error unless new is a repository, and old is none any more."""
        if not checkouts_around(Path(new)):
            raise InvalidInput(
                f"{new} is not a git repository.", hint="Name the place it was moved to."
            )
        if (top := repository_of(new)) != new:
            raise InvalidInput(
                f"{new} is not the main checkout of its repository.", hint=f"Name {top}."
            )
        if old == new:
            raise InvalidInput("The old and the new place are the same.")
        # A link from the old place to the new one is no other repository.
        if os.path.realpath(old) != new and os.path.lexists(os.path.join(old, ".git")):
            raise Conflict(
                f"There is still a repository at {old}, so {new} is a copy and not the same one.",
                hint=f"Work in {old} stays there. Remove that repository first if it is not used.",
            )

    async def _require_no_other(self, old: str, new: str) -> None:
        """Raise Conflict if the old place is a directory above repositories, and not one itself."""
        inside = await self._parts.db.read(relocation.list_repositories_inside, old)
        others = [path for path in inside if path != old]
        staying = []
        # Through a link from the old place, the repositories of the new one are seen.
        if os.path.realpath(old) != new:
            staying = [path for path in others if os.path.lexists(os.path.join(path, ".git"))]
        if staying or (others and old not in inside):
            names = format_files(staying or others)
            raise Conflict(
                f"{old} is a directory above other repositories: {names}.",
                hint="Name the old place of one repository.",
            )

    async def _require_same(self, old: str, new: str) -> None:
        """Raise Conflict if new holds none of the commits that work at old began from."""
        known = await self._parts.db.read(relocation.load_base_commits)
        commits = known.get(old, [])
        if commits and not await self._parts.workspaces.known_commits(Path(new), commits):
            raise Conflict(
                f"{new} is another repository: it has no commit that work in {old} began from.",
                hint="Name the place that the repository was moved to.",
            )
