"""The terminal of an interactive task, as a WebSocket."""

import asyncio
import contextlib
from collections.abc import MutableMapping
from typing import Annotated, Any

from pydantic import Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from kapelle.domain.specs import Spec
from kapelle.service import Service
from kapelle.service.output import Offset, Which
from kapelle.service.terminals import TerminalViewer

# So many messages wait for a program that does not read, and so long for its last chance.
_MOST_TYPED = 1000
_LAST_S = 2.0

WebSocketMessage = MutableMapping[str, Any]
Length = Annotated[int, Field(ge=1, le=1000)]


class Size(Spec):
    rows: Length
    columns: Length


class TerminalSockets:
    def __init__(self, services: Service) -> None:
        self._services = services

    async def attach(
        self,
        socket: WebSocket,
        task_id: str,
        attempt: Which = None,
        offset: Offset | None = None,
        rows: Length = 24,
        columns: Length = 80,
    ) -> None:
        """Attach a WebSocket to the terminal of an interactive task.

        Binary messages are the output of the terminal, and what is typed. Text messages are JSON:
        the state of the terminal, and its size.
        """
        services = self._services
        attached = await services.terminals.attach(task_id, attempt, offset, (rows, columns))
        await socket.accept()
        typed = asyncio.Queue[WebSocketMessage](_MOST_TYPED)
        every = [_show(socket, attached), _receive(socket, typed), _type(typed, attached)]
        if session := socket.scope["kapelle.principal"].session:
            every.append(_log_out(services, socket, session))
        sides = {asyncio.create_task(side) for side in every}
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)


async def _show(socket: WebSocket, attached: TerminalViewer) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        async for message in attached.shown():
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_json(message)
        await socket.close()


async def _log_out(service: Service, socket: WebSocket, session: str) -> None:
    await service.sessions.wait_until_ended(session)
    await socket.close(1008, "Its session has ended.")


async def _receive(socket: WebSocket, typed: asyncio.Queue[WebSocketMessage]) -> None:
    """Take what is typed until the other side goes, or types far more than is read."""
    with contextlib.suppress(asyncio.QueueFull, TimeoutError):
        while (message := await socket.receive())["type"] == "websocket.receive":
            typed.put_nowait(message)
        # What was typed last is handed on, unless nothing reads it.
        await asyncio.wait_for(typed.join(), _LAST_S)


async def _type(typed: asyncio.Queue[WebSocketMessage], attached: TerminalViewer) -> None:
    """Hand on what is typed."""
    while message := await typed.get():
        if data := message.get("bytes"):
            await attached.type(data)
        elif text := message.get("text"):
            with contextlib.suppress(ValidationError):
                size = Size.model_validate_json(text)
                await attached.resize(size.rows, size.columns)
        typed.task_done()
