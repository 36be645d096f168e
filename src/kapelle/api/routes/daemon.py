"""What is no use case alone: the history and transcripts as streams, and browsers' cookies."""

import json
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from kapelle.api.security import cookie_name
from kapelle.api.sse import EventStream, sent_event
from kapelle.domain.specs import Spec, Text
from kapelle.domain.task import Activity, Event
from kapelle.service import Service
from kapelle.service.output import TranscriptEvent, TranscriptQuery
from kapelle.service.sessions import SESSION_LIFE_S

_MOST = 2**62


async def events(
    service: Service,
    parent: str | None,
    attempt_id: str | None,
    after: Annotated[int | None, Field(ge=0, le=_MOST)] = None,
    task_id: Annotated[str | None, Field(max_length=100)] = None,
    run_id: Annotated[str | None, Field(max_length=100)] = None,
    follow: bool = True,
    activity: bool = False,
    last_event_id: str | None = None,
) -> EventStream:
    """Every event behind a number; without one, those that come from now on.

    Those of a run include the events of its tasks. With activity, `attempt.activity` tells what the
    agents at work do, at most four times a second of each; that has no number and no history.
    """
    # Of an attempt those of its own task, where it names nothing.
    task_id = task_id or (None if run_id else parent)
    named = [text for text in (task_id, run_id) if text]
    await service.work.require_own(parent, *named, itself=True)
    start = after
    if last_event_id and last_event_id.isascii() and last_event_id.isdigit():
        start = min(int(last_event_id), _MOST)
    if start is None:
        if follow:
            start = await service.events.last_seq()
        else:
            start = 0
    if task_id:
        task = (await service.tasks.get(task_id)).id
    else:
        task = None
    if run_id:
        run = (await service.runs.get(run_id)).id
    else:
        run = None
    found = partial(service.events.stream, start, task, follow, run, activity)
    # Whoever loses the connection before the first event can take it up here.
    is_allowed = partial(service.work.is_allowed, attempt_id)
    return EventStream(found, _rendered, is_allowed, **{"X-Last-Event-ID": str(start)})


def _rendered(found: tuple[Event, ...] | tuple[Activity, ...]) -> bytes:
    """Events as they are sent. All who follow the history, of whom there may be many, are handed
    the same tuple one after another: it is rendered once."""
    if _last["events"] is not found:
        _last.update(events=found, text=b"".join(map(_sent, found)))
    text: bytes = _last["text"]
    return text


def _sent(event: Event | Activity) -> bytes:
    if isinstance(event, Activity):
        return f"event: attempt.activity\ndata: {event.model_dump_json()}\n\n".encode()
    return sent_event(str(event.seq), event.kind, event.model_dump_json())


_last: dict[str, Any] = {"events": None}


async def transcript(
    task_id: str,
    service: Service,
    attempt_id: str | None,
    wanted: TranscriptQuery,
    last_event_id: str | None = None,
) -> Response:
    """What the agent said and did; an event's id is the place behind it."""
    told = await service.output.transcript(task_id, wanted, last_event_id)
    return EventStream(lambda _: told, _rendered_line, partial(service.work.is_allowed, attempt_id))


def _rendered_line(line: TranscriptEvent) -> bytes:
    return sent_event(line.position, line.kind, json.dumps(line.body, ensure_ascii=False))


class LoginBody(Spec):
    code: Text


async def log_in(body: LoginBody, service: Service, request: Request) -> Response:
    """Exchange a code for a session cookie."""
    response = Response(status_code=204)
    session = service.sessions.log_in(body.code)
    response.set_cookie(
        cookie_name(request),
        session,
        int(SESSION_LIFE_S),
        # Out of reach of scripts and of other sites.
        httponly=True,
        samesite="strict",
        path="/",
    )
    return response


async def log_out(service: Service, request: Request) -> Response:
    """End the session of this cookie, and the terminals that it has open."""
    name = cookie_name(request)
    service.sessions.log_out(request.cookies.get(name, ""))
    response = Response(status_code=204)
    response.delete_cookie(name, path="/")
    return response
