"""Integrations: what other systems know, read only."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field

from kapelle.api.security import UseCases, attempt_too
from kapelle.domain.specs import Spec, Text
from kapelle.domain.views import IntegrationAnswer

router = APIRouter(
    prefix="/integrations", tags=["integrations"], dependencies=[Depends(attempt_too)]
)

Query = Annotated[Text, Field(min_length=1, max_length=20_000)]


class GraphQuery(Spec):
    query: Query
    variables: dict[str, Any] = Field(default_factory=dict)


class RowQuery(Spec):
    query: Query
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class CiQuery(Spec):
    """A run by its number, or the last one, of a branch if given."""

    run: Annotated[int, Field(ge=1)] | None = None
    branch: Annotated[Text, Field(max_length=300)] | None = None


@router.get("")
async def configured(service: UseCases) -> list[str]:
    """The integrations that are configured."""
    return service.integrations.configured()


@router.post("/linear")
async def linear(body: GraphQuery, service: UseCases) -> IntegrationAnswer:
    """Ask Linear, by a query in its GraphQL, for issues, projects and comments."""
    return await service.integrations.linear(body.query, body.variables)


@router.post("/logs")
async def logs(body: RowQuery, service: UseCases) -> IntegrationAnswer:
    """The newest log records that a Lucene query finds."""
    return await service.integrations.logs(body.query, body.limit)


@router.post("/database")
async def database(body: RowQuery, service: UseCases) -> IntegrationAnswer:
    """The rows of one SQL statement that changes nothing."""
    return await service.integrations.database(body.query, body.limit)


@router.post("/ci")
async def ci(body: CiQuery, service: UseCases) -> IntegrationAnswer:
    """What failed in a run of GitHub Actions: its jobs, with the ends of their logs."""
    return await service.integrations.ci(body.run, body.branch)
