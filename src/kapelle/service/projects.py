"""Use cases of projects: list, create, rename, archive and delete them; set that of a directory."""

from contextlib import suppress

from kapelle.domain.errors import Conflict
from kapelle.domain.specs import Directory, Name, Spec
from kapelle.domain.views import Project
from kapelle.engine.archive import archive_work
from kapelle.engine.parts import Parts
from kapelle.service.search_index import SearchIndexer
from kapelle.store import projects
from kapelle.workspaces import repository_of


class ProjectBody(Spec):
    name: Name


class ProjectEdit(Spec):
    """The name of a project, its new name, and whether it is archived."""

    name: Name
    to: Name | None = None
    archived: bool | None = None


class CurrentBody(Spec):
    """A directory, and the project to which work in its repository belongs."""

    directory: Directory
    name: Name | None = None


class ProjectService:
    def __init__(self, parts: Parts, indexer: SearchIndexer) -> None:
        self._parts = parts
        self._indexer = indexer

    async def all(self) -> list[Project]:
        """List all projects, including archived ones. Work that names a new project creates it."""
        return await self._parts.db.read(projects.list_projects)

    async def create(self, body: ProjectBody) -> Project:
        """Create a project before there is work for it."""
        return await self._parts.db.write(projects.create, body.name)

    async def change(self, body: ProjectEdit) -> Project:
        """Rename a project, archive it with its ended work, or restore it."""
        name = body.name
        new_name = body.to
        if new_name is not None and new_name != name:
            await self._parts.db.write(projects.rename, name, new_name)
            await self._indexer.rename(name, new_name)
            self._parts.projects = await self._parts.db.read(projects.load_current)
            name = new_name
        if body.archived is not None:
            await self._parts.db.write(projects.archive, name, body.archived)
        if body.archived:
            for work in await self._parts.db.read(projects.list_ended_work, name):
                with suppress(Conflict):  # somebody has just resumed it
                    await archive_work(self._parts, work)
        return await self._parts.db.read(projects.get, name)

    async def delete(self, name: Name) -> Project:
        """Delete an empty project."""
        project = await self._parts.db.write(projects.delete, name)
        self._parts.projects = await self._parts.db.read(projects.load_current)
        return project

    async def switch(self, body: CurrentBody) -> list[Project]:
        """Set the default project of the work in a repository; without a name, it has none."""
        repository = repository_of(body.directory)
        self._parts.projects = await self._parts.db.write(projects.switch, body.name, repository)
        return await self.all()
