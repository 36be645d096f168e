"""Use cases of the daemon itself: describe it, back up its database, stop it."""

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel

from kapelle import __version__
from kapelle.domain.errors import Conflict
from kapelle.domain.specs import Spec
from kapelle.domain.views import DaemonView
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.attempt import AGENT
from kapelle.engine.tasks.queue import TaskQueue
from kapelle.store import runs, tasks
from kapelle.store.search import HAS_FTS5


class BackupView(BaseModel):
    path: str


class Health(BaseModel):
    status: str = "ok"
    version: str = __version__


class StopBody(Spec):
    agents: bool = False


class Stopped(Health):
    agents: int  # the number of agents that are running


@dataclass
class Stopping:
    """The request to stop the daemon; `agents` is true if the agents stop, too."""

    event: asyncio.Event
    agents: bool = False


class DaemonService:
    def __init__(self, parts: Parts, queue: TaskQueue, stopping: Stopping) -> None:
        self._parts = parts
        self._queue = queue
        self._stopping = stopping
        self._started_at = datetime.now(UTC)

    async def describe(self) -> DaemonView:
        """Describe the daemon: its version, its address and what it is doing."""
        counts = await self._parts.db.read(tasks.count_by_status)
        runs_queued = await self._parts.db.read(runs.count_queued)
        return DaemonView(
            version=__version__,
            pid=os.getpid(),
            started_at=self._started_at,
            home=str(self._parts.home.root),
            url=self._parts.url,
            database=self._parts.db.engine.dialect.name,
            full_text=HAS_FTS5,
            running=self._queue.running,
            max_attempts=self._queue.slots,
            queued=counts.get("queued", 0),
            runs_under_way=sum(performer.startswith("run_") for performer in self._parts.live),
            runs_queued=runs_queued,
            held=self._queue.held,
        )

    async def healthz(self) -> Health:
        """Check that the daemon answers and can use its database; needs no token."""
        problem = await self._parts.db.find_problem()
        if problem is not None:
            raise problem
        return Health()

    async def back_up(self) -> BackupView:
        """Back up the database now."""
        if not self._parts.db.is_sqlite:
            raise Conflict(
                "Kapelle does not back up PostgreSQL databases.",
                hint="Use pg_dump.",
            )
        path = await self._parts.db.back_up(self._parts.settings().backup.grades)
        return BackupView(path=str(path))

    async def stop(self, body: StopBody | None = None) -> Stopped:
        """Stop the daemon; running agents continue unless agents is true."""
        body = body or StopBody()
        agents = sum(AGENT in processes.values() for processes in self._parts.live.values())
        self._stopping.agents = body.agents
        self._stopping.event.set()
        return Stopped(status="stopping", agents=agents)
