"""Patterns that can be run, each with the schema of what it takes."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from kapelle.api.access import UseCases, owner_only
from kapelle.domain.errors import InvalidInput
from kapelle.domain.views import PatternView

router = APIRouter(prefix="/patterns", tags=["patterns"], dependencies=[Depends(owner_only)])


@router.get("")
async def patterns(
    service: UseCases,
    directory: Annotated[str | None, Query(max_length=4000, pattern=r"^/[^\x00]*$")] = None,
) -> list[PatternView]:
    """Every pattern; with a directory also those of its repository, and what is wrong there."""
    usable, problems = service.runs.patterns(directory)
    good = []
    for found in usable:
        try:
            schema = found.spec_schema
        except InvalidInput as error:
            problems.append(error)
        else:
            good.append(
                PatternView(
                    name=found.name,
                    summary=found.summary,
                    origin=found.origin,
                    spec_schema=schema,
                )
            )
    broken = [
        PatternView(name="(broken)", summary=error.message, origin="", spec_schema={})
        for error in problems
    ]
    return good + broken
