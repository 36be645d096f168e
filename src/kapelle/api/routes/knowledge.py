"""Learnings: report, find, change and delete them; as Markdown in and out. Templates."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from kapelle.api.security import Parent, UseCases, owner_only
from kapelle.domain.learning import Learning, LearningEdit, LearningFilter, LearningSpec, Project
from kapelle.domain.specs import Directory, Spec, Text
from kapelle.domain.template import Template, TemplateSpec
from kapelle.domain.views import SearchKind, SearchView
from kapelle.service.knowledge import ImportView

router = APIRouter(prefix="/learnings", tags=["learnings"])
_owner = [Depends(owner_only)]
_MARKDOWN: dict[int | str, Any] = {
    200: {"content": {"text/markdown": {}}, "description": "A page of learnings"}
}


class LearningPage(BaseModel):
    learnings: list[Learning]
    next_cursor: str | None


class ImportBody(Spec):
    """A page of learnings, and a directory of the project of those that name none."""

    markdown: Annotated[Text, Field(max_length=15_000_000)]
    directory: Directory | None = None


@router.post("", status_code=201)
async def add(spec: LearningSpec, service: UseCases, parent: Parent) -> Learning:
    """Report something that later tasks should know: a fact about the project or its tools that
    took work to find out, not what was done. At most five for a task, which are judged first."""
    return await service.knowledge.add(spec, parent)


@router.get("")
async def page(
    service: UseCases, parent: Parent, wanted: Annotated[LearningFilter, Query()]
) -> LearningPage:
    """What earlier work has taught, newest first, or with a query the best matches first."""
    if parent is not None:
        own = {"project": await service.knowledge.project_of(parent), "status": "kept"}
        wanted = wanted.model_copy(update=own)
    found, cursor = await service.knowledge.page(wanted)
    return LearningPage(learnings=found, next_cursor=cursor)


@router.get("/markdown", dependencies=_owner, response_class=Response, responses=_MARKDOWN)
async def export(service: UseCases, directory: Directory | None = None) -> Response:
    """All that is kept, or what a directory's project is told, as a page to edit or share."""
    return Response(await service.knowledge.export(directory), media_type="text/markdown")


@router.post("/markdown", dependencies=_owner)
async def import_(body: ImportBody, service: UseCases) -> ImportView:
    """Keep what such a page tells; those with an id that is known are changed."""
    return await service.knowledge.import_(body.markdown, body.directory)


@router.get("/{learning_id}", dependencies=_owner)
async def get(learning_id: str, service: UseCases) -> Learning:
    """One learning, by its id or any unique end or beginning of it."""
    return await service.knowledge.get(learning_id)


@router.put("/{learning_id}", dependencies=_owner)
async def edit(learning_id: str, body: LearningEdit, service: UseCases) -> Learning:
    """Change what is given; one that was discarded is kept by that."""
    return await service.knowledge.edit(learning_id, body)


@router.delete("/{learning_id}", dependencies=_owner)
async def delete(learning_id: str, service: UseCases) -> Learning:
    """Delete a learning; returns what it was."""
    return await service.knowledge.delete(learning_id)


search_router = APIRouter(prefix="/search", tags=["search"], dependencies=_owner)


@search_router.get("", name="search")
async def find(
    service: UseCases,
    query: Annotated[str, Query(min_length=1, max_length=1000)],
    kind: SearchKind | None = None,
    task: Annotated[str | None, Query(max_length=100)] = None,
    project: Project | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
) -> SearchView:
    """What prompts, results, outputs and commits of ended tasks and runs, learnings and notes have
    all these words, "several" together; each hit in its context, with where it stands."""
    return await service.search.find(query, kind, task, project, limit)


templates_router = APIRouter(prefix="/templates", tags=["templates"], dependencies=_owner)


@templates_router.get("", name="page")
async def templates(service: UseCases) -> list[Template]:
    """Your templates: guidelines that a task or run takes by the name of one, and for each model
    how the tasks that used it ended, and what they took."""
    return await service.templates.all()


@templates_router.post("", status_code=201)
async def create(spec: TemplateSpec, service: UseCases) -> Template:
    """Keep guidelines for work of one kind, and who does it where."""
    return await service.templates.put(spec)


@templates_router.get("/{template}", name="get")
async def template(template: str, service: UseCases) -> Template:
    """One template, with what came of the tasks that used it."""
    return await service.templates.get(template)


@templates_router.put("/{template}", name="edit")
async def edit_template(template: str, spec: TemplateSpec, service: UseCases) -> Template:
    """Put another in its place; with another name it is renamed, for past tasks too."""
    return await service.templates.put(spec, template)


@templates_router.delete("/{template}", name="delete")
async def delete_template(template: str, service: UseCases) -> Template:
    """Delete a template; tasks keep what it told them."""
    return await service.templates.delete(template)
