"""The event stream and transcripts, as server-sent events."""

import json
from functools import partial
from typing import Annotated

from pydantic import Field

from kapelle.api.sse import EventStream, render_event
from kapelle.domain.task import Activity, Event
from kapelle.service import Service
from kapelle.service.caller import Caller
from kapelle.service.events import StreamItems
from kapelle.service.transcript import TranscriptEvent, TranscriptQuery

_MAX_NUMBER = 2**62


class Streams:
    def __init__(self, services: Service) -> None:
        self._services = services

    async def events(
        self,
        caller: Caller,
        after: Annotated[int | None, Field(ge=0, le=_MAX_NUMBER)] = None,
        task_id: Annotated[str | None, Field(max_length=100)] = None,
        run_id: Annotated[str | None, Field(max_length=100)] = None,
        follow: bool = True,
        activity: bool = False,
        last_event_id: str | None = None,
    ) -> EventStream[StreamItems]:
        """Stream every event after a number; without a number, future events.

        The events of a run include those of its tasks. With activity, `attempt.activity` tells what
        running agents do, at most four times a second for each; it has no number and no history.
        """
        services = self._services
        if task_id is None and run_id is None:
            # An attempt that names nothing gets the events of its own task.
            task_id = caller.task_id
        ids = [id_ for id_ in (task_id, run_id) if id_]
        await services.callers.require_own(caller, *ids, itself=True)
        if task_id:
            task_id = (await services.tasks.get(task_id)).id
        if run_id:
            run_id = (await services.runs.get(run_id)).id
        start = await self._find_start(after, last_event_id, follow)
        items = services.events.stream(start, task_id or None, follow, run_id or None, activity)
        is_allowed = partial(services.callers.is_valid, caller)
        # A client that loses the connection before the first event continues from this number.
        return EventStream(items, _render_items, is_allowed, **{"X-Last-Event-ID": str(start)})

    async def _find_start(self, after: int | None, last_event_id: str | None, follow: bool) -> int:
        """Return the number after which a stream begins; Last-Event-ID takes precedence."""
        if last_event_id and last_event_id.isascii() and last_event_id.isdigit():
            return min(int(last_event_id), _MAX_NUMBER)
        if after is not None:
            return after
        if follow:
            return await self._services.events.last_seq()
        return 0

    async def transcript(
        self,
        task_id: str,
        caller: Caller,
        query: TranscriptQuery,
        last_event_id: str | None = None,
    ) -> EventStream[TranscriptEvent]:
        """Stream the transcript of a task: what its agents said and did.

        The id of an event is the position after it.
        """
        events = await self._services.transcripts.read(task_id, query, last_event_id)
        is_allowed = partial(self._services.callers.is_valid, caller)
        return EventStream(events, _render_transcript_event, is_allowed)


def _render_items(items: StreamItems) -> bytes:
    return b"".join([_render_item(item) for item in items])


def _render_item(item: Event | Activity) -> bytes:
    if isinstance(item, Activity):
        return f"event: attempt.activity\ndata: {item.model_dump_json()}\n\n".encode()
    return render_event(str(item.seq), item.kind, item.model_dump_json())


def _render_transcript_event(event: TranscriptEvent) -> bytes:
    return render_event(event.position, event.kind, json.dumps(event.body, ensure_ascii=False))
