"""Responses that send the items of an async generator as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar, cast

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")
_PING_S = 15

STREAM: dict[str, Any] = {
    "description": "Server-sent events; Last-Event-ID continues them",
    "content": {"text/event-stream": {}},
}


class EventStream(Response, Generic[T]):
    """Sends each item at once, rendered as one event or several.

    The response ends with the items, or when the client goes or loses its permission, or the server
    closes.
    """

    def __init__(
        self,
        items: AsyncIterator[T],
        render: Callable[[T], bytes],
        is_allowed: Callable[[], Awaitable[bool]] | None = None,
        **headers: str,
    ) -> None:
        self._items = cast(AsyncGenerator[T, None], items)
        self._render = render
        self._is_allowed = is_allowed
        super().__init__(headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        writing = asyncio.create_task(self._write(send))
        ends = {writing, asyncio.create_task(_until_gone(receive))}
        try:
            while not await _has_ended(ends):
                if self._is_allowed and not await self._is_allowed():
                    break
                await send(_body(b": ping\n\n"))
        finally:
            for task in ends:
                task.cancel()
            await asyncio.wait(ends)
        if not writing.cancelled():
            writing.result()
        await send(_body(b"", more=False))

    async def read(self, limit: int) -> tuple[bytes, bool]:
        """Return all events, or those up to a limit of bytes; and whether these are all."""
        data = bytearray()
        async with aclosing(self._items) as items:
            async for item in items:
                data += self._render(item)
                if len(data) > limit:
                    return bytes(data), False
        return bytes(data), True

    async def _write(self, send: Send) -> None:
        # The items are closed even if the client goes while an event is sent; else they would keep
        # their watch on the database.
        async with aclosing(self._items) as items:
            async for item in items:
                await send(_body(self._render(item)))


async def _has_ended(tasks: set[asyncio.Task[None]]) -> bool:
    """Wait for one of the tasks or the next ping; return whether a task has ended."""
    await asyncio.wait(tasks, timeout=_PING_S, return_when=asyncio.FIRST_COMPLETED)
    return any(task.done() for task in tasks)


async def _until_gone(receive: Receive) -> None:
    """Return when the client has gone, or when the server closes.

    A closing server wakes this with an empty message.
    """
    while (await receive()).get("more_body"):
        pass
    await receive()


def _body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def render_event(id: str, event: str, data: str) -> bytes:
    """Return the bytes of one event; its data is JSON, which has no line breaks."""
    return f"id: {id}\nevent: {event}\ndata: {data}\n\n".encode()
