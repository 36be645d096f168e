"""What a task changed, and merging it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict

from kapelle.api.access import UseCases, own_task_only, owner_only
from kapelle.domain.specs import Name
from kapelle.domain.views import DiffView, MergeView

router = APIRouter(prefix="/tasks/{task_id}", tags=["changes"])


class MergeBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    into: Name | None = None
    force: bool = False


@router.get("/diff", dependencies=[Depends(own_task_only)])
async def diff(
    task_id: str,
    service: UseCases,
    against: Annotated[str | None, Query(max_length=100)] = None,
) -> DiffView:
    """Everything that changed in the task's worktree since it began; or, against another task of
    the same repository, how their work differs."""
    return await service.changes.diff(task_id, against)


@router.get(
    "/patch",
    dependencies=[Depends(own_task_only)],
    response_class=Response,
    responses={200: {"content": {"text/x-diff": {}}, "description": "A patch for git apply"}},
)
async def patch(task_id: str, service: UseCases) -> Response:
    """The diff alone, byte for byte."""
    return Response(await service.changes.patch(task_id), media_type="text/x-diff")


@router.post("/merge", dependencies=[Depends(owner_only)])
async def merge(task_id: str, service: UseCases, body: MergeBody | None = None) -> MergeView:
    """Merge the task's branch into its base, or another branch."""
    wish = body or MergeBody()
    return await service.changes.merge(task_id, wish.into, wish.force)
