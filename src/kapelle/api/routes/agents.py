"""Agents: which there are, whether they work, the keys stored for them, and what they used."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field, SecretStr

from kapelle.api.security import UseCases, owner_only
from kapelle.domain.specs import Spec, Text
from kapelle.domain.views import AgentView, ReportFilter, ReportView, UsageFilter, UsageReport
from kapelle.service.agents import CheckView, KeyRemovedView

router = APIRouter(tags=["agents"], dependencies=[Depends(owner_only)])

Directory = Annotated[Text | None, Query(max_length=4000)]


class CheckBody(Spec):
    live: bool = False
    directory: Text | None = Field(None, max_length=4000)


class CredentialBody(Spec):
    api_key: SecretStr


@router.get("/agents")
async def all_agents(service: UseCases, directory: Directory = None) -> list[AgentView]:
    """The agents that a task in a directory may use."""
    return await service.agents.known(directory)


@router.get("/agents/{name}")
async def agent(name: str, service: UseCases, directory: Directory = None) -> AgentView:
    """One agent."""
    return await service.agents.get(name, directory)


@router.post("/agents/{name}/check")
async def check(name: str, service: UseCases, body: CheckBody | None = None) -> CheckView:
    """Ask its program for its version and, if live, the agent for one word, which costs a little.

    A live answer verifies its login and lifts a pause of its account.
    """
    wanted = body or CheckBody()
    return await service.agents.check(name, wanted.live, wanted.directory)


@router.put("/agents/{name}/credential")
async def store_key(
    name: str, body: CredentialBody, service: UseCases, directory: Directory = None
) -> AgentView:
    """Store an API key, which no answer ever shows."""
    return await service.agents.store_key(name, body.api_key.get_secret_value(), directory)


@router.delete("/agents/{name}/credential")
async def forget_key(name: str, service: UseCases, directory: Directory = None) -> KeyRemovedView:
    """Remove the stored API key."""
    return await service.agents.forget_key(name, directory)


usage_router = APIRouter(prefix="/usage", tags=["usage"], dependencies=[Depends(owner_only)])


@usage_router.get("")
async def usage(service: UseCases, wanted: Annotated[UsageFilter, Query()]) -> UsageReport:
    """What attempts used that started in a time: by agent, model, project, task, run, UTC day."""
    return await service.usage.report(wanted)


report_router = APIRouter(prefix="/report", tags=["report"], dependencies=[Depends(owner_only)])


@report_router.get("", name="get")
async def report(service: UseCases, wanted: Annotated[ReportFilter, Query()]) -> ReportView:
    """What was asked for, done, proven, delivered and spent in a time, by default the last 24
    hours, what needs a person, and all of it as Markdown."""
    return await service.reports.report(wanted)
