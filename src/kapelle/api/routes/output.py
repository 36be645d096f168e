"""What an attempt wrote: raw bytes by offset, and the readable transcript as a stream."""

import json
import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.responses import Response

from kapelle.api.sse import EventStream, sent_event
from kapelle.domain.task import Record
from kapelle.domain.views import OutputHits
from kapelle.runner.output import FARTHEST
from kapelle.service import Service
from kapelle.service.output import Line, outline

_BINARY = {"schema": {"type": "string", "format": "binary"}}
BYTES: dict[str, Any] = {
    "description": "The bytes from offset on, at most limit of them; none at the end",
    "content": {"application/octet-stream": _BINARY},
    "headers": {
        "X-Next-Offset": {
            "description": "Where the next bytes begin",
            "required": True,
            "schema": {"type": "integer", "minimum": 0},
        },
        "X-Complete": {
            "description": "Whether these were the last bytes that there will ever be",
            "required": True,
            "schema": {"type": "string", "enum": ["true", "false"]},
        },
    },
}
PICTURE = {"description": "The picture as the agent saved it", "content": {"image/*": _BINARY}}

_PLACE = "[0-9]{1,9}(:[0-9]{1,13}){2}(:[0-9]{1,9}){1,2}"

Which = Annotated[
    str | None,
    Field(
        pattern=r"^([1-9][0-9]{0,5}|(attempt_)?[0-9a-z]{5,26})$", description="A number or an id"
    ),
]


class TranscriptQuery(Record):
    """Which part of a transcript is told, and how much of it."""

    attempt: Which = None
    follow: bool = False
    tail: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    before: Annotated[
        str | None, Field(pattern=f"^{_PLACE}$", description="An id of this stream")
    ] = None
    limit: Annotated[int, Field(ge=1, le=5000, description="Lines of output before it")] = 200
    outline: bool = False


async def output(
    task_id: str,
    service: Service,
    attempt: Which = None,
    stream: Literal["out", "err"] = "out",
    offset: Annotated[int, Field(ge=0, le=FARTHEST)] = 0,
    limit: Annotated[int, Field(ge=1, le=16_000_000)] = 1_000_000,
) -> Response:
    """Bytes exactly as they were written; X-Next-Offset is where the next ones begin."""
    chunk = await service.output.chunk(task_id, attempt, stream, offset, limit)
    headers = {
        "X-Next-Offset": str(chunk.next_offset),
        "X-Complete": "true" if chunk.complete else "false",
    }
    return Response(chunk.data, media_type="application/octet-stream", headers=headers)


async def find(
    task_id: str,
    service: Service,
    query: Annotated[str, Field(min_length=1, max_length=200)],
    attempt: Which = None,
    stream: Literal["out", "err"] = "out",
    offset: Annotated[int, Field(ge=0, le=FARTHEST)] = 0,
    limit: Annotated[int, Field(ge=1, le=1000)] = 100,
) -> OutputHits:
    """Where a text stands in what one attempt printed, from offset on; ASCII in capitals or not."""
    return await service.output.find(task_id, attempt, stream, query, offset, limit)


async def picture(
    task_id: str,
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}$")],
    service: Service,
    attempt: Which = None,
) -> Response:
    """One of these pictures, of the last attempt unless another is named."""
    kind, data = await service.output.picture(task_id, attempt, name)
    headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
    return Response(data, media_type=kind, headers=headers)


async def transcript(
    task_id: str,
    service: Service,
    attempt_id: str | None,
    wanted: TranscriptQuery,
    last_event_id: str | None = None,
) -> Response:
    """What the agent said and did; an event's id is the place behind it."""
    task = await service.output.task_with(task_id, wanted.attempt)
    if wanted.before is not None:
        lines = service.output.earlier(task, wanted.before, wanted.limit)
    else:
        after = last_event_id if re.fullmatch(_PLACE, last_event_id or "") else None
        lines = service.output.lines(task, wanted.attempt, wanted.follow, wanted.tail, after)
    told = outline(lines) if wanted.outline else lines
    return EventStream(lambda _: told, _rendered, partial(service.work.is_allowed, attempt_id))


def _rendered(line: Line) -> bytes:
    return sent_event(line.position, line.kind, json.dumps(line.body, ensure_ascii=False))
