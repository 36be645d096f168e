"""The history as a stream."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from kapelle.api.access import UseCases, owner_only
from kapelle.api.sse import STREAM, stream

router = APIRouter(prefix="/events", tags=["events"], dependencies=[Depends(owner_only)])

_MOST = 2**62


@router.get("", response_class=Response, responses=STREAM)
async def events(
    service: UseCases,
    after: Annotated[int | None, Query(ge=0, le=_MOST)] = None,
    task_id: Annotated[str | None, Query(max_length=100)] = None,
    run_id: Annotated[str | None, Query(max_length=100)] = None,
    follow: bool = True,
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """Every event behind a number; without one, those that come from now on.

    Those of a run include the events of its tasks.
    """
    start = after
    if last_event_id and last_event_id.isascii() and last_event_id.isdigit():
        start = min(int(last_event_id), _MOST)
    if start is None:
        start = await service.history.last_seq() if follow else 0
    task = (await service.tasks.get(task_id)).id if task_id else None
    run = (await service.runs.get(run_id)).id if run_id else None
    found = service.history.stream(start, task, follow, run)
    response = stream(found, lambda event: (str(event.seq), event.kind, event.model_dump_json()))
    # Whoever loses the connection before the first event can take it up here.
    response.headers["X-Last-Event-ID"] = str(start)
    return response
