"""What routes need of a request: the use cases, and leave to use them."""

from typing import Annotated

from fastapi import Depends, Request

from kapelle.api.auth import Caller
from kapelle.domain.errors import Forbidden
from kapelle.service import Service


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


UseCases = Annotated[Service, Depends(_service)]


def owner_only(request: Request) -> None:
    if request.scope["kapelle.caller"].kind != "owner":
        raise Forbidden("An attempt's token allows only to read its own task.")


async def own_task_only(request: Request, service: UseCases) -> None:
    """Let the owner in, and a running attempt to the task that it works on."""
    caller: Caller = request.scope["kapelle.caller"]
    if caller.kind == "owner":
        return
    task = await service.tasks.get(request.path_params["task_id"])
    running = any(a.id == caller.attempt_id and a.ended_at is None for a in task.attempts)
    if not running:
        raise Forbidden("An attempt's token allows only to read its own task, while it runs.")
