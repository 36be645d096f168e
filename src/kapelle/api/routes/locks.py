"""Locks: take, list, release; and what an agent's hook asks before a tool is used."""

from typing import Annotated

from fastapi import APIRouter, Query

from kapelle.api.security import AskingAttempt, UseCases
from kapelle.domain.lock import Lock, LockRelease, LockSpec, LocksView, Permission, Place, ToolCall

router = APIRouter(prefix="/locks", tags=["locks"])


@router.post("")
async def take(spec: LockSpec, service: UseCases, attempt: AskingAttempt) -> LocksView:
    """Hold paths exclusively, all or none, or renew that; where held is false, call it again: your
    place in the queue is kept. A deadlock is refused at once."""
    return await service.locks.take(spec, attempt)


@router.get("")
async def known(
    service: UseCases, attempt: AskingAttempt, directory: Annotated[Place, Query()] = None
) -> list[Lock]:
    """Who holds and who waits for which paths, of one checkout or of all."""
    return await service.locks.known(directory, attempt)


@router.post("/release")
async def release(spec: LockRelease, service: UseCases, attempt: AskingAttempt) -> list[Lock]:
    """Release locks; an attempt its own, a person those that are named, whoever holds them."""
    return await service.locks.release(spec, attempt)


@router.post("/check")
async def check(call: ToolCall, service: UseCases, attempt: AskingAttempt) -> Permission:
    """Whether what an agent is about to do would write what somebody else holds."""
    return await service.locks.check(call, attempt)
