"""Use cases of projects: create, rename, archive, delete, make one that of a directory."""

from contextlib import suppress

from kapelle.domain.errors import Conflict
from kapelle.domain.specs import Directory, Name, Spec
from kapelle.domain.views import Project
from kapelle.engine.archive import archive_work
from kapelle.engine.parts import Parts
from kapelle.service.search import SearchService
from kapelle.store import projects
from kapelle.workspaces import repository_of


class ProjectBody(Spec):
    name: Name


class ProjectEdit(Spec):
    """A project, what it is called from now on, and whether it is put away."""

    name: Name
    to: Name | None = None
    archived: bool | None = None


class CurrentBody(Spec):
    """A directory, and the project that work in its repository belongs to."""

    directory: Directory
    name: Name | None = None


class ProjectService:
    def __init__(self, parts: Parts, search: SearchService) -> None:
        self._parts = parts
        self._search = search

    async def all(self) -> list[Project]:
        """Every project, archived ones too; what names a new one makes it."""
        return await self._parts.db.read(projects.list_projects)

    async def create(self, body: ProjectBody) -> Project:
        """Make a project before there is work for it."""
        return await self._parts.db.write(projects.create, body.name)

    async def change(self, body: ProjectEdit) -> Project:
        """Rename it, in all that belongs to it; or put it away with its ended work, or take it
        out."""
        name = body.name
        to = body.to
        archived = body.archived
        if to is not None and to != name:
            await self._parts.db.write(projects.rename, name, to)
            await self._search.rename(name, to)
            self._parts.projects = await self._parts.db.read(projects.load_current)
        name = to or name
        if archived is not None:
            await self._parts.db.write(projects.archive, name, archived)
        for work in await self._parts.db.read(projects.list_ended_work, name) if archived else ():
            with suppress(Conflict):  # somebody has taken it up again
                await archive_work(self._parts, work)
        return await self._parts.db.read(projects.get, name)

    async def delete(self, name: Name) -> Project:
        """Delete a project to which nothing belongs."""
        gone = await self._parts.db.write(projects.delete, name)
        self._parts.projects = await self._parts.db.read(projects.load_current)
        return gone

    async def switch(self, body: CurrentBody) -> list[Project]:
        """Have work in a repository belong to a project unless it names one; without a name to
        none."""
        place = repository_of(body.directory)
        self._parts.projects = await self._parts.db.write(projects.switch, body.name, place)
        return await self.all()
