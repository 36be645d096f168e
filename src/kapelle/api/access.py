"""What routes need of a request: the use cases, and leave to use them."""

from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from kapelle.api.auth import Caller
from kapelle.domain.errors import Forbidden, InvalidInput, NotFound
from kapelle.service import Service


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


UseCases = Annotated[Service, Depends(_service)]

# The guard has judged the token already: this is how the OpenAPI document says that one is needed.
_bearer = HTTPBearer(auto_error=False, scheme_name="token")
Token = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


async def owner_only(request: Request, _token: Token) -> None:
    if request.scope["kapelle.caller"].kind != "owner":
        raise Forbidden("An attempt's token allows only to read its own task.")


async def own_task_only(request: Request, service: UseCases, _token: Token) -> None:
    """Let the owner in, and a running attempt to the task that it works on."""
    caller: Caller = request.scope["kapelle.caller"]
    if caller.kind == "owner":
        return
    try:
        task = await service.tasks.get(request.path_params["task_id"])
        running = any(a.id == caller.attempt_id and a.ended_at is None for a in task.attempts)
    except (NotFound, InvalidInput):
        running = False  # an attempt learns nothing about which other tasks there are
    if not running:
        raise Forbidden("An attempt's token allows only to read its own task, while it runs.")
