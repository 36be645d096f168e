"""What an attempt wrote: raw bytes by offset, and the readable transcript as a stream."""

import json
import re
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.responses import Response

from kapelle.api.security import AskingAttempt, UseCases, own_or_below
from kapelle.api.sse import STREAM, EventStream, sent_event
from kapelle.domain.views import AttemptFile
from kapelle.service.output import Line

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

# No log is larger, and file systems refuse offsets that no file can have.
FARTHEST = 10**13
_PLACE = re.compile(r"\d{1,9}(:\d{1,13}){2}(:\d{1,9}){1,2}", re.ASCII)

Which = Annotated[
    str | None,
    Query(
        pattern=r"^([1-9][0-9]{0,5}|(attempt_)?[0-9a-z]{5,26})$", description="A number or an id"
    ),
]


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
    attempt: Which = None,
    follow: bool = False,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """What the agent said and did; an event's id is the place behind it."""
    task = await service.output.task_with(task_id, attempt)
    after = last_event_id if _PLACE.fullmatch(last_event_id or "") else None
    lines = service.output.lines(task, attempt, follow, tail, after)
    return EventStream(lines, _rendered, partial(service.work.is_allowed, caller))


def _rendered(line: Line) -> bytes:
    return sent_event(line.position, line.kind, json.dumps(line.body, ensure_ascii=False))
