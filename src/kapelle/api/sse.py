"""Server-sent events out of an async generator."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")
_PING_S = 15
# What a server may offer to write pieces of a body by: whether it was done at once.
PUSH = "kapelle.push"


STREAM: dict[str, Any] = {
    "description": "Server-sent events; Last-Event-ID continues them",
    "content": {"text/event-stream": {}},
}


class EventStream(Response):
    """Sends each item, rendered as one event or several, as soon as it comes: until there are no
    more, the client goes or has lost its right to them, or the door closes. Whoever makes the items
    is given a way to send one at once, which says whether that was done."""

    def __init__(
        self,
        items: Callable[[Callable[[T], bool]], AsyncIterator[T]],
        render: Callable[[T], bytes],
        is_allowed: Callable[[], Awaitable[bool]] | None = None,
        **headers: str,
    ) -> None:
        self._is_allowed = is_allowed
        self._items = items
        self._render = render
        super().__init__(headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        writing = asyncio.create_task(self._write(send, scope.get("extensions", {}).get(PUSH)))
        ends = {writing, asyncio.create_task(_gone(receive))}
        first = asyncio.FIRST_COMPLETED
        try:
            while not (await asyncio.wait(ends, timeout=_PING_S, return_when=first))[0]:
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

    async def read(self, most: int) -> tuple[bytes, bool]:
        """All that comes until there is no more, or much of it; and whether that was all."""
        found = bytearray()
        async with aclosing(cast(AsyncGenerator[Any, None], self._items(lambda _: False))) as items:
            async for item in items:
                found += self._render(item)
                if len(found) > most:
                    return bytes(found), False
        return bytes(found), True

    async def _write(self, send: Send, push: Callable[[bytes], bool] | None) -> None:
        def told(item: Any) -> bool:
            return push is not None and push(self._render(item))

        # A client that goes away while an event is being sent must not leave a watch behind.
        async with aclosing(cast(AsyncGenerator[Any, None], self._items(told))) as items:
            async for item in items:
                if not told(item):
                    await send(_body(self._render(item)))


async def _gone(receive: Receive) -> None:
    """Return when the client has gone, or when the door closes, which then speaks a second time."""
    while (await receive()).get("more_body"):
        pass
    await receive()


def _body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def sent_event(id: str, event: str, data: str) -> bytes:
    """One event as it is sent; its data is JSON, which has no line breaks."""
    return f"id: {id}\nevent: {event}\ndata: {data}\n\n".encode()
