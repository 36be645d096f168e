"""Server-sent events out of an async generator."""

import json
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
    items: AsyncIterator[T], render: Callable[[T], tuple[str, str, Any]]
) -> EventSourceResponse:
    """Send each item, rendered as (id, event, data), as soon as it comes."""

    async def rendered() -> AsyncIterator[ServerSentEvent]:
        # A client that goes away while an event is being sent must not leave a watch behind.
        async with aclosing(cast(AsyncGenerator[T, None], items)) as open_items:
            async for item in open_items:
                yield _event(*render(item))

    return EventSourceResponse(rendered(), ping=_PING_S)


def _event(id: str, event: str, data: Any) -> ServerSentEvent:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return ServerSentEvent(data=text, id=id, event=event, sep="\n")
