"""JSON-RPC 2.0 with an agent: requests and notifications in both directions.

The `acp` package has a connection, too. It is not used here: importing any part of that package
builds a model class for every message of the protocol, which takes 0.4 s of CPU time and 14 MB in
every attempt. The tests of the bridge talk to an agent that is made with that package.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

_log = logging.getLogger("kapelle.acp")

_METHOD_NOT_FOUND = -32601
_INTERNAL_ERROR = -32603

Handler = Callable[[str, Any, bool], Awaitable[Any]]
"""Takes method, parameters and whether it is a notification; returns the result of a request."""


class MessageTransport(Protocol):
    """Sends and receives whole messages."""

    async def send(self, message: dict[str, Any]) -> None: ...

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None at the end."""


class RpcError(Exception):
    """An error that answers a request: one that the agent sent, or one to send to it."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    @classmethod
    def method_not_found(cls, method: str) -> "RpcError":
        return cls(_METHOD_NOT_FOUND, "Method not found", {"method": method})

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": str(self), "data": self.data}


class AcpConnection:
    """Matches answers with requests, and hands the agent's own messages to a handler.

    Each of the agent's messages is handled in a task of its own, so that a request may take long.
    The tasks start in the order of the messages: a handler that never waits sees them in order.
    """

    def __init__(self, handler: Handler, transport: MessageTransport) -> None:
        self._handler = handler
        self._transport = transport
        self._last_id = 0
        self._pending: dict[object, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._start(self._receive())

    async def request(self, method: str, params: Any = None) -> Any:
        """Send a request and return its result.

        Raises RpcError if the agent answers with an error, ConnectionError if it ends before.
        """
        self._require_open()
        self._last_id += 1
        request_id = self._last_id
        future = self._pending[request_id] = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        try:
            await self._transport.send(message)
            return await future
        finally:
            self._pending.pop(request_id, None)

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification, which has no answer; raises ConnectionError after the end."""
        self._require_open()
        await self._transport.send({"jsonrpc": "2.0", "method": method, "params": params})

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConnectionError("The agent has closed the connection.")

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # The event loop itself holds only a weak reference to a task.
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _receive(self) -> None:
        try:
            while (message := await self._transport.receive()) is not None:
                self._dispatch(message)
        finally:
            self._is_closed = True
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(ConnectionError("The agent has closed the connection."))

    def _dispatch(self, message: dict[str, Any]) -> None:
        if message.get("method") is None:
            self._settle(message)
        elif "id" in message:
            self._start(self._answer(message))
        else:
            self._start(self._take_notification(message))

    def _settle(self, response: dict[str, Any]) -> None:
        """Hand a response to the request that waits for it."""
        future = self._pending.get(response.get("id"))
        if future is None or future.done():
            return
        error = response.get("error")
        if "result" in response or error is None:
            future.set_result(response.get("result"))
            return
        code = error.get("code", _INTERNAL_ERROR)
        future.set_exception(RpcError(code, error.get("message", "Error"), error.get("data")))

    async def _answer(self, request: dict[str, Any]) -> None:
        method = request["method"]
        response = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            response["result"] = await self._handler(method, request.get("params"), False)
        except RpcError as error:
            response["error"] = error.to_json()
        except Exception as error:
            _log.exception("The request %s of the agent failed", method)
            failure = RpcError(_INTERNAL_ERROR, "Internal error", {"details": str(error)})
            response["error"] = failure.to_json()
        # An agent that has ended needs no answer; _receive notices its end.
        with contextlib.suppress(ConnectionError):
            await self._transport.send(response)

    async def _take_notification(self, message: dict[str, Any]) -> None:
        try:
            await self._handler(message["method"], message.get("params"), True)
        except Exception:
            _log.exception("The notification %s of the agent failed", message["method"])
