"""Schedules, as a program uses them."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from kapelle.client.answers import Page
from kapelle.client.asynchronous.connection import AsyncConnection
from kapelle.client.asynchronous.reading import pages
from kapelle.client.flavours import AsyncStream
from kapelle.client.options import ScheduleOptions
from kapelle.client.requests import path_of, read_as
from kapelle.client.wishes import schedule_wish
from kapelle.domain.schedule import Firing, Schedule, ScheduleSpec, ScheduleStatus
from kapelle.domain.specs import TaskSpec
from kapelle.patterns.spec import PatternSpec


class AsyncSchedules:
    """Every schedule of a daemon. An id may be any prefix that only one schedule has."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(
        self,
        kind: str | ScheduleSpec,
        spec: TaskSpec | PatternSpec | Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Schedule a task (kind "task") or a run of a pattern (its name).

        spec is what is started each time, as a spec or its fields; its directory is the current
        one if none is given. One of cron, at, every_s and after says when.
        """
        body = schedule_wish(kind, spec, options)
        key = options.get("idempotency_key")
        return read_as(Schedule, await self._connection.create("/schedules", body, key))

    async def get(self, schedule_id: str) -> Schedule:
        """The schedule as it is now."""
        return read_as(Schedule, await self._connection.get(path_of("schedules", schedule_id)))

    def list(
        self,
        *,
        status: ScheduleStatus | str | Sequence[ScheduleStatus | str] | None = None,
        project: str | None = None,
    ) -> AsyncStream[Schedule]:
        """Schedules, newest first; pages are asked for as they are needed."""
        query = {"status": status, "project": project}
        return pages(self._connection, "/schedules", Page[Schedule], query)

    def firings(self, schedule_id: str) -> AsyncStream[Firing]:
        """What became of its slots, newest first."""
        path = path_of("schedules", schedule_id, "firings")
        return pages(self._connection, path, Page[Firing], {})

    async def pause(self, schedule_id: str) -> Schedule:
        """Start nothing until it is resumed; what was started goes on."""
        return await self._turn(schedule_id, "pause")

    async def resume(self, schedule_id: str) -> Schedule:
        """Go on with the next slot; those that came meanwhile are not made up for."""
        return await self._turn(schedule_id, "resume")

    async def cancel(self, schedule_id: str, *, with_work: bool = False) -> Schedule:
        """End a schedule; with_work also ends what it started and what is still going."""
        return await self._turn(schedule_id, "cancel", with_work=with_work)

    async def run(self, schedule_id: str) -> Firing:
        """Start at once what it starts, besides its slots."""
        path = path_of("schedules", schedule_id, "run")
        return read_as(Firing, await self._connection.post(path))

    async def _turn(self, schedule_id: str, action: str, **body: bool) -> Schedule:
        path = path_of("schedules", schedule_id, action)
        return read_as(Schedule, await self._connection.post(path, body))
