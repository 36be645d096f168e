"""Saved lists of work: keep, read, list and delete them; a run of `batch` works one off."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from pydantic import Field

from kapelle.api.security import UseCases, owner_only
from kapelle.domain.batch import Format
from kapelle.domain.note import Expected
from kapelle.domain.specs import Spec, Text
from kapelle.domain.views import BatchView

router = APIRouter(prefix="/batches", tags=["batches"], dependencies=[Depends(owner_only)])
ListName = Annotated[str, Path(pattern=r"^\w[\w .-]{0,99}$")]


class ListBody(Spec):
    """A list as it is written: items in Markdown, or in CSV with a row that names the columns."""

    text: Annotated[Text, Field(max_length=1_000_000)]
    format: Format = "markdown"
    expected_version: Expected = None


@router.get("", name="list")
async def all_lists(service: UseCases) -> list[BatchView]:
    """Every saved list of work, by name."""
    return await service.batches.all()


@router.get("/{name}")
async def get(name: ListName, service: UseCases) -> BatchView:
    """One saved list: its items for a run of `batch`, and as Markdown and CSV."""
    return await service.batches.get(name)


@router.put("/{name}")
async def save(name: ListName, body: ListBody, service: UseCases) -> BatchView:
    """Keep a list under a name, from Markdown or CSV; what was there is replaced."""
    return await service.batches.save(name, body.text, body.format, body.expected_version)


@router.delete("/{name}")
async def delete(name: ListName, service: UseCases) -> BatchView:
    """Delete a saved list; runs of it go on."""
    return await service.batches.delete(name)
