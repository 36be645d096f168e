"""What tasks and runs have in common: waiting for several of them."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from kapelle.api.routes import WaitSeconds
from kapelle.api.security import UseCases, owner_only
from kapelle.domain.views import WaitView

router = APIRouter(prefix="/wait", tags=["work"], dependencies=[Depends(owner_only)])

Ids = Annotated[list[str], Query(min_length=1, max_length=200, description="ids of tasks and runs")]
Until = Annotated[
    Literal["any", "all"], Query(description="whether one of them is enough, or all must rest")
]


@router.get("")
async def wait(
    ids: Ids, service: UseCases, until: Until = "any", timeout_s: WaitSeconds = 25
) -> WaitView:
    """Those of several tasks and runs that have ended or wait for a person, as soon as there are;
    after timeout_s, those that there are: then call again for what is pending."""
    return await service.wait(ids, until == "all", timeout_s)
