"""What an attempt wrote: raw bytes by offset, and the readable transcript as a stream."""

import json
import re
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.responses import Response

from kapelle.api.security import AskingAttempt, UseCases, own_or_below
from kapelle.api.sse import STREAM, EventStream, sent_event
from kapelle.domain.task import Record
from kapelle.domain.views import AttemptFile, OutputHits
from kapelle.runner.output import FARTHEST
from kapelle.service.output import Line, outline

router = APIRouter(prefix="/tasks/{task_id}", tags=["output"], dependencies=[Depends(own_or_below)])

_BYTES: dict[int | str, Any] = {
    200: {
        "description": "The bytes from offset on, at most limit of them; none at the end",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
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
}

_PLACE = "[0-9]{1,9}(:[0-9]{1,13}){2}(:[0-9]{1,9}){1,2}"

Which = Annotated[
    str | None,
    Query(
        pattern=r"^([1-9][0-9]{0,5}|(attempt_)?[0-9a-z]{5,26})$", description="A number or an id"
    ),
]


class TranscriptQuery(Record):
    """Which part of a transcript is told, and how much of it."""

    attempt: Which = None
    follow: bool = False
    tail: Annotated[int | None, Query(ge=0, le=1_000_000)] = None
    before: Annotated[
        str | None, Query(pattern=f"^{_PLACE}$", description="An id of this stream")
    ] = None
    limit: Annotated[int, Query(ge=1, le=5000, description="Lines of output before it")] = 200
    outline: bool = False


@router.get("/output", response_class=Response, responses=_BYTES)
async def output(
    task_id: str,
    service: UseCases,
    attempt: Which = None,
    stream: Literal["out", "err"] = "out",
    offset: Annotated[int, Query(ge=0, le=FARTHEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=16_000_000)] = 1_000_000,
) -> Response:
    """Bytes exactly as they were written; X-Next-Offset is where the next ones begin."""
    chunk = await service.output.chunk(task_id, attempt, stream, offset, limit)
    headers = {
        "X-Next-Offset": str(chunk.next_offset),
        "X-Complete": "true" if chunk.complete else "false",
    }
    return Response(chunk.data, media_type="application/octet-stream", headers=headers)


@router.get("/output/find")
async def find(
    task_id: str,
    service: UseCases,
    query: Annotated[str, Query(min_length=1, max_length=200)],
    attempt: Which = None,
    stream: Literal["out", "err"] = "out",
    offset: Annotated[int, Query(ge=0, le=FARTHEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> OutputHits:
    """Where a text stands in what one attempt printed, from offset on; ASCII in capitals or not."""
    return await service.output.find(task_id, attempt, stream, query, offset, limit)


_PICTURE: dict[int | str, Any] = {
    200: {
        "description": "The picture as the agent saved it",
        "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/files")
async def files(task_id: str, service: UseCases) -> list[AttemptFile]:
    """The pictures that its agents took of what they saw."""
    return await service.output.files(task_id)


@router.get("/files/{name}", response_class=Response, responses=_PICTURE)
async def picture(
    task_id: str,
    name: Annotated[str, Path(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}$")],
    service: UseCases,
    attempt: Which = None,
) -> Response:
    """One of these pictures, of the last attempt unless another is named."""
    kind, data = await service.output.picture(task_id, attempt, name)
    headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
    return Response(data, media_type=kind, headers=headers)


@router.get("/transcript", response_class=Response, responses=STREAM)
async def transcript(
    task_id: str,
    service: UseCases,
    caller: AskingAttempt,
    wanted: Annotated[TranscriptQuery, Query()],
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """What the agent said and did; an event's id is the place behind it."""
    task = await service.output.task_with(task_id, wanted.attempt)
    if wanted.before is not None:
        lines = service.output.earlier(task, wanted.before, wanted.limit)
    else:
        after = last_event_id if re.fullmatch(_PLACE, last_event_id or "") else None
        lines = service.output.lines(task, wanted.attempt, wanted.follow, wanted.tail, after)
    told = outline(lines) if wanted.outline else lines
    return EventStream(lambda _: told, _rendered, partial(service.work.is_allowed, caller))


def _rendered(line: Line) -> bytes:
    return sent_event(line.position, line.kind, json.dumps(line.body, ensure_ascii=False))
