"""Templates: keep guidelines for work of one kind, and see what came of the work."""

from fastapi import APIRouter, Depends

from kapelle.api.security import UseCases, owner_only
from kapelle.domain.template import Template, TemplateSpec

router = APIRouter(prefix="/templates", tags=["templates"], dependencies=[Depends(owner_only)])


@router.get("")
async def all_(service: UseCases) -> list[Template]:
    """Your templates: guidelines that a task or run takes by the name of one, and for each model
    how the tasks that used it ended, and what they took."""
    return await service.templates.all()


@router.post("", status_code=201)
async def create(spec: TemplateSpec, service: UseCases) -> Template:
    """Keep guidelines for work of one kind, and who does it where."""
    return await service.templates.put(spec)


@router.get("/{template}")
async def get(template: str, service: UseCases) -> Template:
    """One template, with what came of the tasks that used it."""
    return await service.templates.get(template)


@router.put("/{template}")
async def edit(template: str, spec: TemplateSpec, service: UseCases) -> Template:
    """Put another in its place; with another name it is renamed, for past tasks too."""
    return await service.templates.put(spec, template)


@router.delete("/{template}")
async def delete(template: str, service: UseCases) -> Template:
    """Delete a template; tasks keep what it told them."""
    return await service.templates.delete(template)
