"""Schedules: create, list, look, pause, resume, cancel, run now."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from kapelle.api.routes import IdempotencyKey
from kapelle.api.security import UseCases, owner_only
from kapelle.domain.schedule import Firing, Moment, Schedule, ScheduleFilter, ScheduleSpec
from kapelle.domain.specs import Spec
from kapelle.domain.task import Limit

router = APIRouter(prefix="/schedules", tags=["schedules"], dependencies=[Depends(owner_only)])


class SchedulePage(BaseModel):
    schedules: list[Schedule]
    next_cursor: str | None


class FiringPage(BaseModel):
    firings: list[Firing]
    next_cursor: datetime | None


class CancelSchedule(Spec):
    with_work: bool = False


@router.post("", status_code=201)
async def create(
    spec: ScheduleSpec, service: UseCases, idempotency_key: IdempotencyKey = None
) -> Schedule:
    """Create a schedule; what it is to start is examined at once."""
    return await service.schedules.create(spec, idempotency_key)


@router.get("")
async def page(service: UseCases, wanted: Annotated[ScheduleFilter, Query()]) -> SchedulePage:
    """Schedules, newest first; next_cursor leads to the next page."""
    found, cursor = await service.schedules.page(wanted)
    return SchedulePage(schedules=found, next_cursor=cursor)


@router.get("/{schedule_id}")
async def get(schedule_id: str, service: UseCases) -> Schedule:
    """One schedule, by its id or any unique end or beginning of it."""
    return await service.schedules.get(schedule_id)


@router.get("/{schedule_id}/firings")
async def firings(
    schedule_id: str, service: UseCases, limit: Limit = 50, cursor: Moment | None = None
) -> FiringPage:
    """What became of its slots, newest first; next_cursor leads to the next page."""
    found, more = await service.schedules.history(schedule_id, cursor, limit)
    return FiringPage(firings=found, next_cursor=found[-1].slot if more else None)


@router.post("/{schedule_id}/pause")
async def pause(schedule_id: str, service: UseCases) -> Schedule:
    """Start nothing until it is resumed; what was started goes on."""
    return await service.schedules.pause(schedule_id)


@router.post("/{schedule_id}/resume")
async def resume(schedule_id: str, service: UseCases) -> Schedule:
    """Go on with the next slot; those that came meanwhile are not made up for."""
    return await service.schedules.resume(schedule_id)


@router.post("/{schedule_id}/cancel")
async def cancel(
    schedule_id: str, service: UseCases, body: CancelSchedule | None = None
) -> Schedule:
    """End a schedule; with_work also ends what it started and what is still going."""
    with_work = body.with_work if body else False
    return await service.schedules.cancel(schedule_id, with_work=with_work)


@router.post("/{schedule_id}/run")
async def run(schedule_id: str, service: UseCases) -> Firing:
    """Start at once what it starts, besides its slots."""
    return await service.schedules.run_now(schedule_id)
