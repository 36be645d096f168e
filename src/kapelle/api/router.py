"""The router, which finds the operation of a request; the guard stands in front of it."""

from collections.abc import Iterator, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.routing import Router as PathRouter
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from kapelle.api.errors import error_response, response_to
from kapelle.api.operation import WEBSOCKET, Operation
from kapelle.service import Service


class Router:
    """The API as an application."""

    def __init__(self, operations: Mapping[str, tuple[Operation, ...]], services: Service) -> None:
        self.operations = operations  # by their tags; those without a tag are not documented
        self.services = services
        self._router = PathRouter(
            [*self._routes()], redirect_slashes=False, default=_answer_not_found
        )

    def list_operations(self) -> Iterator[Operation]:
        """Yield all operations."""
        for operations_of_tag in self.operations.values():
            yield from operations_of_tag

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    def _routes(self) -> Iterator[BaseRoute]:
        """Yield one route for each path, so that a wrong method is answered with the right ones."""
        paths: dict[str, dict[str, Operation]] = {}
        for operation in self.list_operations():
            if operation.method == WEBSOCKET:
                yield WebSocketRoute(operation.path, _SocketEndpoint(operation, self.services))
            else:
                paths.setdefault(operation.path, {})[operation.method] = operation
        for path, methods in paths.items():
            yield Route(path, _Endpoint(methods, self.services))


class _Endpoint:
    """Answers the requests for one path by their methods."""

    def __init__(self, methods: Mapping[str, Operation], services: Service) -> None:
        self._methods = methods
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        operation = self._methods.get(request.method)
        if operation is None:
            response: Response = error_response(405, "method_not_allowed", "Method not allowed.")
            response.headers["Allow"] = ", ".join(sorted(self._methods))
            return response
        try:
            return await operation.respond(request, self._services)
        except Exception as error:
            return response_to(request.scope, error)


class _SocketEndpoint:
    """Answers the WebSockets of one path."""

    def __init__(self, operation: Operation, services: Service) -> None:
        self._operation = operation
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        try:
            await self._operation.perform(socket, self._services)
        except Exception as error:
            # After the handshake, a WebSocket cannot be answered like a request.
            if socket.application_state is not WebSocketState.CONNECTING:
                raise
            response = response_to(scope, error)
            await response(scope, receive, send)


async def _answer_not_found(scope: Scope, receive: Receive, send: Send) -> None:
    response = error_response(404, "not_found", "Not found: the API has no such path.")
    await response(scope, receive, send)
