"""The history and transcripts, as streams of server-sent events."""

import json
from functools import partial
from typing import Annotated

from pydantic import Field

from kapelle.api.sse import EventStream, sent_event
from kapelle.domain.task import Activity, Event
from kapelle.service import Service
from kapelle.service.caller import Caller
from kapelle.service.events import StreamItems
from kapelle.service.output import TranscriptEvent, TranscriptQuery

_MOST = 2**62


class Streams:
    def __init__(self, services: Service) -> None:
        self._services = services

    async def events(
        self,
        caller: Caller,
        after: Annotated[int | None, Field(ge=0, le=_MOST)] = None,
        task_id: Annotated[str | None, Field(max_length=100)] = None,
        run_id: Annotated[str | None, Field(max_length=100)] = None,
        follow: bool = True,
        activity: bool = False,
        last_event_id: str | None = None,
    ) -> EventStream[StreamItems]:
        """Every event behind a number; without one, those that come from now on.

        Those of a run include the events of its tasks. With activity, `attempt.activity` tells what
        the agents at work do, at most four times a second of each; that has no number and no
        history.
        """
        services = self._services
        # Of an attempt those of its own task, where it names nothing.
        task_id = task_id or (None if run_id else caller.task_id)
        named = [text for text in (task_id, run_id) if text]
        await services.callers.require_own(caller, *named, itself=True)
        start = after
        if last_event_id and last_event_id.isascii() and last_event_id.isdigit():
            start = min(int(last_event_id), _MOST)
        if start is None:
            if follow:
                start = await services.events.last_seq()
            else:
                start = 0
        if task_id:
            task = (await services.tasks.get(task_id)).id
        else:
            task = None
        if run_id:
            run = (await services.runs.get(run_id)).id
        else:
            run = None
        items = services.events.stream(start, task, follow, run, activity)
        is_allowed = partial(services.callers.is_valid, caller)
        # A client that loses the connection before the first event goes on from this number.
        return EventStream(items, _render_items, is_allowed, **{"X-Last-Event-ID": str(start)})

    async def transcript(
        self,
        task_id: str,
        caller: Caller,
        wanted: TranscriptQuery,
        last_event_id: str | None = None,
    ) -> EventStream[TranscriptEvent]:
        """What the agent said and did; an event's id is the place behind it."""
        lines = await self._services.output.transcript(task_id, wanted, last_event_id)
        is_allowed = partial(self._services.callers.is_valid, caller)
        return EventStream(lines, _render_line, is_allowed)


def _render_items(items: StreamItems) -> bytes:
    return b"".join([_render_item(item) for item in items])


def _render_item(item: Event | Activity) -> bytes:
    if isinstance(item, Activity):
        return f"event: attempt.activity\ndata: {item.model_dump_json()}\n\n".encode()
    return sent_event(str(item.seq), item.kind, item.model_dump_json())


def _render_line(line: TranscriptEvent) -> bytes:
    return sent_event(line.position, line.kind, json.dumps(line.body, ensure_ascii=False))
