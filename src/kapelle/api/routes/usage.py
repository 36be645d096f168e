"""What attempts used: tokens, turns and money."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from kapelle.api.access import UseCases, owner_only
from kapelle.domain.specs import Name, Text
from kapelle.domain.views import By, UsageReport

router = APIRouter(prefix="/usage", tags=["usage"], dependencies=[Depends(owner_only)])

Moment = Annotated[
    Text | None, Query(max_length=100, description="An ISO date or time; UTC without an offset.")
]


@router.get("")
async def usage(
    service: UseCases,
    by: By = "agent",
    since: Moment = None,
    until: Moment = None,
    agent: Name | None = None,
    model: Name | None = None,
    project: Name | None = None,
    task: Annotated[Text | None, Query(max_length=100)] = None,
    run: Annotated[Text | None, Query(max_length=100)] = None,
) -> UsageReport:
    """What attempts used that started in a time: by agent, model, project, task, run, UTC day."""
    return await service.usage.report(by, since, until, agent, model, project, task, run)
