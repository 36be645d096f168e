"""Decides which runs are under way; the others wait as rows."""

import logging
from contextlib import suppress
from datetime import UTC, datetime

from kapelle.domain.states import RunStatus
from kapelle.engine.parts import Parts
from kapelle.engine.performers import MAX_PERFORMANCES, Perform, Performers
from kapelle.engine.runs import control
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import runs
from kapelle.store.database import Connection

_log = logging.getLogger("kapelle.runs")
_ALIVE = "alive"


class RunQueue:
    """The runs of one daemon; those inside others are never held back, for their parents wait."""

    def __init__(self, parts: Parts, perform: Perform) -> None:
        self._parts = parts
        self._performers = Performers(perform, self._give_up)

    async def admit(self) -> None:
        """Take up queued runs in order as far as there is room."""
        db = self._parts.db
        room = self._parts.settings().limits.max_runs - await db.glance(runs.running_tops)
        ready = await db.glance(runs.next_queued, room)
        if ready:
            for execution in await db.write(_claim, ready, self._parts.performer):
                failpoint("run_after_take_up")
                self._performers.start(execution)

    async def sweep(self) -> None:
        """Find runs that should be under way and are not."""
        running = await self._parts.db.glance(runs.executions, self._parts.performer)
        await self._performers.restart(running)
        if running:
            with suppress(OSError):  # a full disk
                (self._parts.home.runs / _ALIVE).touch(mode=0o600)

    async def close(self) -> None:
        await self._performers.close()

    async def _give_up(self, execution: str) -> None:
        run_id = execution.partition(".")[0]
        problem = f"an internal error ended it {MAX_PERFORMANCES} times; see {self._parts.home.log}"
        _log.error("%s: %s", run_id, problem)
        for attempt_id, stop in await self._parts.db.write(control.give_up, run_id, problem):
            self._parts.stop(attempt_id, stop)
        await control.end_checks(self._parts, run_id, problem)


def last_alive(parts: Parts) -> datetime | None:
    """When a daemon of this home last looked after runs, to within the time between two sweeps."""
    try:
        moment = (parts.home.runs / _ALIVE).stat().st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(moment, UTC)


def _claim(connection: Connection, ready: list[str], performer: str) -> list[str]:
    executions = []
    for run_id in ready:
        run = runs.row(connection, run_id)
        if run["status"] == RunStatus.QUEUED:
            number = run["executions"] + 1
            claim = {"executions": number, "performer": performer}
            runs.change(connection, run_id, RunStatus.RUNNING, **claim)
            executions.append(f"{run_id}.{number}")
    return executions
