"""An operation of the API: a method and a path, the use case behind them, and who may call it.

The table of all operations is in `routes/table.py`. REST, the tools of MCP and the OpenAPI
document are made from it.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from kapelle.api.parameters import Binding
from kapelle.service import Service
from kapelle.service.caller import Caller
from kapelle.service.output import Bytes

JSON = "application/json"
WEBSOCKET = "WEBSOCKET"

# Returns the caller of a request; raises Forbidden. The functions are in security.py.
AccessRule = Callable[[HTTPConnection, Service], Awaitable[Caller | None]]
UseCase = Callable[..., Any]
# Adds values that an attempt may leave out. The arguments are the values and the attempt's task.
Inherit = Callable[[dict[str, Any], str], Awaitable[dict[str, Any]]]


@dataclass(eq=False)
class Operation:
    """A method and a path of the API with the use case that answers it."""

    method: str
    path: str
    access: AccessRule
    use_case: Callable[[Service], UseCase]
    # The name in the API, by default the name of the use case.
    name: str = ""
    status: int = 200
    # The OpenAPI description of a response that is not JSON.
    response: Mapping[str, Any] | None = None
    # Arguments of the use case that do not come from the request.
    constants: Mapping[str, Any] = field(default_factory=dict)
    # Parameters that have another name in the path, with that name.
    path_names: Mapping[str, str] = field(default_factory=dict)
    # The name of the MCP tool, if the operation is a tool.
    tool: str = ""
    inherit: Callable[[Service], Inherit] | None = None
    _binding: Binding | None = field(default=None, init=False, repr=False)

    def bind(self, services: Service) -> Binding:
        """Return how requests become arguments of the use case.

        The binding is made for the first request, because most operations are rarely called.
        """
        if self._binding is None:
            self._binding = Binding(
                self.use_case(services),
                method=self.method,
                path=self.path,
                constants=self.constants.keys(),
                path_names=self.path_names,
                has_json_answer=self.response is None,
            )
        return self._binding

    async def perform(
        self,
        request: HTTPConnection,
        services: Service,
        values: dict[str, Any] | None = None,
    ) -> Any:
        """Check the permission of the caller, call the use case and return its answer.

        The values of the arguments are read from the request, unless they are given.
        """
        caller = await self.access(request, services)
        binding = self.bind(services)
        if values is None:
            values = await binding.read(request)
        if self.inherit is not None and caller is not None and caller.task_id is not None:
            values = await self.inherit(services)(values, caller.task_id)
        arguments = binding.validate(values)
        if binding.caller_parameter:
            arguments[binding.caller_parameter] = caller
        if binding.request_parameter:
            arguments[binding.request_parameter] = request
        answer = self.use_case(services)(**arguments, **self.constants)
        if inspect.isawaitable(answer):
            return await answer
        return answer

    async def respond(self, request: Request, services: Service) -> Response:
        """Perform the operation and return the response."""
        answer = await self.perform(request, services)
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, Bytes):
            return Response(answer.data, self.status, answer.headers, answer.media_type)
        if self.response is not None:
            media_type = next(iter(self.response["content"]))
            return Response(answer, self.status, media_type=media_type)
        content = self.bind(services).answer.dump_json(answer)
        return Response(content, self.status, media_type=JSON)
