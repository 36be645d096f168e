"""The client: everything that the daemon offers to programs."""

from contextlib import aclosing
from datetime import date
from types import TracebackType
from typing import Self

from kapelle.client.address import Address
from kapelle.client.answers import Agents, Patterns
from kapelle.client.asynchronous.connection import AsyncConnection
from kapelle.client.asynchronous.runs import AsyncRuns
from kapelle.client.asynchronous.schedules import AsyncSchedules
from kapelle.client.asynchronous.tasks import AsyncTasks
from kapelle.client.flavours import AsyncStream
from kapelle.client.options import Directory
from kapelle.client.requests import read_as, read_event
from kapelle.client.wishes import absolute
from kapelle.domain.task import Event
from kapelle.domain.views import By, DaemonView, UsageReport


class AsyncClient:
    """A daemon, as programs use it; close it, or use it in a with statement."""

    tasks: AsyncTasks
    runs: AsyncRuns
    schedules: AsyncSchedules

    def __init__(self, address: Address, *, start: bool = True) -> None:
        self._connection = AsyncConnection(address, start=start)
        self.tasks = AsyncTasks(self._connection)
        self.runs = AsyncRuns(self._connection)
        self.schedules = AsyncSchedules(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections; the daemon and its work go on."""
        await self._connection.close()

    async def events(
        self,
        *,
        after: int | None = None,
        task_id: str | None = None,
        run_id: str | None = None,
        follow: bool = True,
    ) -> AsyncStream[Event]:
        """The history behind an event's number, and with follow what comes, for ever.

        Without a number: from now on, or with follow=False from the beginning. The stream is taken
        up again when the daemon was restarted; no event is missed and none comes twice.
        """
        query = {"after": after, "task_id": task_id, "run_id": run_id, "follow": follow}
        async with aclosing(self._connection.stream("/events", query, endless=follow)) as events:
            async for event in events:
                yield read_event(event)

    async def patterns(self, directory: Directory | None = None) -> Patterns:
        """Every pattern that can be run; with a directory also those of its repository."""
        query = {"directory": None if directory is None else absolute(directory)}
        return read_as(Patterns, await self._connection.get("/patterns", query))

    async def agents(self, directory: Directory | None = None) -> Agents:
        """The agents that a task in a directory may use, with their logins and pauses."""
        query = {"directory": None if directory is None else absolute(directory)}
        return read_as(Agents, await self._connection.get("/agents", query))

    async def usage(
        self,
        by: By = "agent",
        *,
        since: date | str | None = None,
        until: date | str | None = None,
        agent: str | None = None,
        model: str | None = None,
        project: str | None = None,
        task: str | None = None,
        run: str | None = None,
    ) -> UsageReport:
        """What the attempts used that started in a time; a day, a datetime or ISO text."""
        query = {
            "by": by,
            "since": since.isoformat() if isinstance(since, date) else since,
            "until": until.isoformat() if isinstance(until, date) else until,
            "agent": agent,
            "model": model,
            "project": project,
            "task": task,
            "run": run,
        }
        return read_as(UsageReport, await self._connection.get("/usage", query))

    async def instance(self) -> DaemonView:
        """What the daemon is and what it is doing."""
        return read_as(DaemonView, await self._connection.get("/daemon"))
