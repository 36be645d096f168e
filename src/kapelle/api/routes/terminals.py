"""The terminal of an interactive task, as a WebSocket."""

import asyncio
import contextlib
from typing import Annotated

from fastapi import APIRouter, Depends, Query, WebSocket, WebSocketDisconnect
from pydantic import Field, ValidationError

from kapelle.api.routes.output import FARTHEST, Which
from kapelle.api.security import owner_attaches
from kapelle.domain.specs import Spec
from kapelle.service.terminals import Attached

router = APIRouter(prefix="/tasks/{task_id}", dependencies=[Depends(owner_attaches)])

Length = Annotated[int, Field(ge=1, le=1000)]


class Size(Spec):
    rows: Length
    columns: Length


@router.websocket("/terminal")
async def terminal(
    socket: WebSocket,
    task_id: str,
    attempt: Which = None,
    offset: Annotated[int | None, Query(ge=0, le=FARTHEST)] = None,
    rows: Length = 24,
    columns: Length = 80,
) -> None:
    """Bytes are what the terminal shows, and what is typed; texts are JSON: what becomes of it, and
    its size."""
    attach = socket.app.state.service.terminals.attach
    attached: Attached = await attach(task_id, attempt, offset, (rows, columns))
    await socket.accept()
    sides = {asyncio.create_task(side(socket, attached)) for side in (_show, _type)}
    try:
        await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for side in sides:
            side.cancel()
        await asyncio.gather(*sides, return_exceptions=True)


async def _show(socket: WebSocket, attached: Attached) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        async for message in attached.shown():
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_json(message)
        await socket.close()


async def _type(socket: WebSocket, attached: Attached) -> None:
    """Hand on what is typed until the other side goes."""
    while (message := await socket.receive())["type"] == "websocket.receive":
        if data := message.get("bytes"):
            await attached.type(data)
        elif text := message.get("text"):
            with contextlib.suppress(ValidationError):
                size = Size.model_validate_json(text)
                await attached.resize(size.rows, size.columns)
