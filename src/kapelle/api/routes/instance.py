"""The daemon itself: health, description, backup, stop."""

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict

from kapelle import __version__
from kapelle.api.access import UseCases, owner_only
from kapelle.domain.views import DaemonView
from kapelle.service.instance import BackupView

router = APIRouter(tags=["daemon"])
_owner = [Depends(owner_only)]


class Health(BaseModel):
    status: str = "ok"
    version: str = __version__


class StopBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    agents: bool = False


@router.get("/healthz")
async def healthz() -> Health:
    """Whether the daemon answers; the only reading that needs no token."""
    return Health()


@router.get("/daemon", dependencies=_owner)
async def daemon(service: UseCases) -> DaemonView:
    """What this daemon is and what it is doing."""
    return await service.instance.describe()


@router.post("/daemon/stop", status_code=202, dependencies=_owner)
async def stop(service: UseCases, body: StopBody | None = None) -> Health:
    """End the daemon; running agents go on unless agents is true."""
    service.instance.stop(body.agents if body else False)
    return Health(status="stopping")


@router.post("/backup", dependencies=_owner)
async def back_up(service: UseCases) -> BackupView:
    """Copy the databases now."""
    return await service.instance.back_up()
