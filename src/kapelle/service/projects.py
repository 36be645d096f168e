"""Use cases of projects: create, rename, archive, and make one the current one of a directory."""

from contextlib import suppress

from kapelle.domain.errors import Conflict
from kapelle.domain.ids import is_id
from kapelle.domain.views import Project
from kapelle.engine.archive import archive_run, archive_task
from kapelle.engine.parts import Parts
from kapelle.service.search import Search
from kapelle.store import projects
from kapelle.workspaces import repository_of


class Projects:
    def __init__(self, parts: Parts, search: Search) -> None:
        self._parts, self._search = parts, search

    async def all(self) -> list[Project]:
        return await self._parts.db.read(projects.some)

    async def create(self, name: str) -> Project:
        return await self._parts.db.write(projects.create, name)

    async def change(self, name: str, to: str | None, archived: bool | None) -> Project:
        """Rename it, in all that belongs to it; put it away with its ended work, or take it out."""
        if to is not None and to != name:
            await self._parts.db.write(projects.rename, name, to)
            await self._search.rename(name, to)
            self._parts.projects = await self._parts.db.read(projects.current)
        name = to or name
        if archived is not None:
            await self._parts.db.write(projects.archive, name, archived)
        for work in await self._parts.db.read(projects.ended_work, name) if archived else ():
            with suppress(Conflict):  # somebody has taken it up again
                archive = archive_task if is_id("task", work) else archive_run
                await archive(self._parts, work)
        return await self._parts.db.read(projects.get, name)

    async def switch(self, name: str | None, directory: str) -> None:
        """Have work in a repository belong to a project unless it says otherwise; None to none."""
        place = repository_of(directory)
        self._parts.projects = await self._parts.db.write(projects.switch, name, place)
