"""Projects: create, rename, archive, and make one the current one of a directory."""

from fastapi import APIRouter, Depends

from kapelle.api.security import UseCases, owner_only
from kapelle.domain.specs import Directory, Name, Spec
from kapelle.domain.views import Project

router = APIRouter(prefix="/projects", tags=["projects"], dependencies=[Depends(owner_only)])


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


@router.get("")
async def all_(service: UseCases) -> list[Project]:
    """Every project, archived ones too; what names a new one makes it."""
    return await service.projects.all()


@router.post("", status_code=201)
async def create(body: ProjectBody, service: UseCases) -> Project:
    """Make a project before there is work for it."""
    return await service.projects.create(body.name)


@router.put("")
async def change(body: ProjectEdit, service: UseCases) -> Project:
    """Rename it, in all that belongs to it; or put it away with its ended work, or take it out."""
    return await service.projects.change(body.name, body.to, body.archived)


@router.put("/current")
async def switch(body: CurrentBody, service: UseCases) -> list[Project]:
    """Have work in a repository belong to a project unless it names one; without a name to none."""
    await service.projects.switch(body.name, body.directory)
    return await service.projects.all()
