"""Server-sent events out of an async generator."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from sse_starlette import EventSourceResponse, ServerSentEvent

T = TypeVar("T")
_PING_S = 15


# Given with response_class=Response: the framework would call errors streams as well.
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events; Last-Event-ID continues them",
        "content": {"text/event-stream": {}},
    }
}


def stream(
    items: AsyncIterator[T], render: Callable[[T], bytes], headers: dict[str, str] | None = None
) -> EventSourceResponse:
    """Send each item, rendered as one event or several, as soon as it comes."""

    async def rendered() -> AsyncIterator[bytes]:
        # A client that goes away while an event is being sent must not leave a watch behind.
        async with aclosing(cast(AsyncGenerator[T, None], items)) as open_items:
            async for item in open_items:
                yield render(item)

    return EventSourceResponse(rendered(), headers=headers, ping=_PING_S)


def sent_event(id: str, event: str, data: str) -> bytes:
    """One event as it is sent."""
    return ServerSentEvent(data=data, id=id, event=event, sep="\n").encode()
