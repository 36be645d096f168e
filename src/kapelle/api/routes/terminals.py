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

# The most messages that wait for a program that does not read.
_MAX_MESSAGES = 1000
# The program gets this long to read the last messages after the client has gone.
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
        viewer = await services.terminals.attach(task_id, attempt, offset, (rows, columns))
        await socket.accept()
        messages = asyncio.Queue[WebSocketMessage](_MAX_MESSAGES)
        coroutines = [
            _send_output(socket, viewer),
            _receive(socket, messages),
            _forward(messages, viewer),
        ]
        session = socket.scope["kapelle.principal"].session
        if session:
            coroutines.append(_close_after_logout(services, socket, session))
        tasks = {asyncio.create_task(coroutine) for coroutine in coroutines}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _send_output(socket: WebSocket, viewer: TerminalViewer) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        async for message in viewer.read():
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_json(message)
        await socket.close()


async def _close_after_logout(service: Service, socket: WebSocket, session: str) -> None:
    await service.sessions.wait_until_ended(session)
    await socket.close(1008, "The session has ended.")


async def _receive(socket: WebSocket, messages: asyncio.Queue[WebSocketMessage]) -> None:
    """Queue the messages of the client until it goes, or sends far more than the program reads."""
    with contextlib.suppress(asyncio.QueueFull, TimeoutError):
        while (message := await socket.receive())["type"] == "websocket.receive":
            messages.put_nowait(message)
        # The last keys before the client went still reach the program.
        await asyncio.wait_for(messages.join(), _LAST_S)


async def _forward(messages: asyncio.Queue[WebSocketMessage], viewer: TerminalViewer) -> None:
    """Forward keys and sizes from the queue to the terminal."""
    while message := await messages.get():
        if data := message.get("bytes"):
            await viewer.type(data)
        elif text := message.get("text"):
            with contextlib.suppress(ValidationError):
                size = Size.model_validate_json(text)
                await viewer.resize(size.rows, size.columns)
        messages.task_done()
