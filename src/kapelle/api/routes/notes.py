"""Notes: write, read, list, delete, and wait for one."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from kapelle.api.security import AskingAttempt, UseCases
from kapelle.domain.note import (
    Expected,
    Key,
    Note,
    NoteFilter,
    NotesChanged,
    NoteSpec,
    NoteWatch,
    Scope,
)

router = APIRouter(prefix="/notes", tags=["notes"])


class NotePage(BaseModel):
    notes: list[Note]
    next_cursor: str | None


@router.post("")
async def put(spec: NoteSpec, service: UseCases, attempt: AskingAttempt) -> Note:
    """Write a note, a text under a key that all agents of one family of work share; with
    expected_version, only if nobody wrote it meanwhile."""
    return await service.notes.put(spec, attempt)


@router.get("")
async def page(
    service: UseCases, attempt: AskingAttempt, wanted: Annotated[NoteFilter, Query()]
) -> NotePage:
    """The notes whose keys begin with a prefix, without what they say."""
    found, cursor = await service.notes.page(wanted, attempt)
    return NotePage(notes=found, next_cursor=cursor)


@router.delete("")
async def delete(
    key: Annotated[Key, Query()],
    service: UseCases,
    attempt: AskingAttempt,
    scope: Annotated[Scope, Query()] = None,
    expected_version: Annotated[Expected, Query()] = None,
) -> Note:
    """Delete a note; whoever watches it is told."""
    return await service.notes.delete(scope, key, expected_version, attempt)


@router.get("/entry")
async def get(
    key: Annotated[Key, Query()],
    service: UseCases,
    attempt: AskingAttempt,
    scope: Annotated[Scope, Query()] = None,
) -> Note:
    """One note with its value and version."""
    return await service.notes.get(scope, key, attempt)


@router.get("/watch")
async def watch(
    service: UseCases, attempt: AskingAttempt, wanted: Annotated[NoteWatch, Query()]
) -> NotesChanged:
    """Wait until all of the keys, or something under the prefix, are there, have a version after
    the one you know, or equal a value; call it again if met is false."""
    return await service.notes.watch(wanted, attempt)
