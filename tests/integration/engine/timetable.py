"""Schedules on a real database, under a clock that the test sets."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tests.integration.rows import task_row

from kapelle.domain.ids import new_id
from kapelle.domain.schedule import Firing, Outcome, Schedule, ScheduleSpec, ScheduleStatus
from kapelle.domain.states import RunStatus, StopCause
from kapelle.engine.schedules.scheduler import Scheduler
from kapelle.secrets.specs import SpecSecrets
from kapelle.service.schedules import ScheduledWork, ScheduleService
from kapelle.store import runs, tables, tasks
from kapelle.store.database import Connection, Database

NOON = datetime(2026, 6, 15, 12, 0, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class Clock:
    def __init__(self, moment: datetime = NOON) -> None:
        self.moment = moment

    def __call__(self) -> datetime:
        return self.moment

    def forward(self, by: timedelta) -> None:
        self.moment += by


class Work(ScheduledWork):
    """Starts real rows of tasks and runs, and remembers what it was asked for."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self.db = db
        self._clock = clock
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.cancelled: list[str] = []
        self.refusal: Exception | None = None

    async def examine(self, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        title = str(spec.get("prompt", kind))
        return {"spec": spec, "title": title, "directory": "/", "project": None}

    async def start(self, kind: str, spec: dict[str, Any], key: str, schedule_id: str) -> str:
        self.asked.append((kind, spec, key))
        if self.refusal is not None:
            raise self.refusal
        return await self.db.write(_insert, kind, key, schedule_id, self._clock())

    async def cancel(self, subject: str, cause: StopCause) -> None:
        self.cancelled.append(subject)
        await self.end(subject, "cancelled")

    async def end(self, subject: str, status: str, reason: str | None = None) -> None:
        update = tasks.update if subject.startswith("task_") else runs.update
        values = {"status": status, "ended_at": self._clock(), "reason": reason}
        await self.db.write(update, subject, **values)


def _insert(connection: Connection, kind: str, key: str, schedule_id: str, now: datetime) -> str:
    table = tables.tasks if kind == "task" else tables.runs
    known = connection.execute(sa.select(table.c.id).where(table.c.idempotency_key == key)).scalar()
    if known is not None:
        return str(known)
    common = {
        "title": "scheduled",
        "directory": "/",
        "workspace_kind": "in_place",
        "workspace_path": "/",
        "created_at": now,
        "idempotency_key": key,
        "schedule_id": schedule_id,
    }
    if kind != "task":
        run_id = new_id("run")
        run = {"id": run_id, "pattern": kind, "spec": {}, "progress": {}}
        runs.insert(connection, {**common, **run, "status": RunStatus.QUEUED})
        return run_id
    task = task_row(**common)
    tasks.insert(connection, task, [])
    return str(task["id"])


class Timetable:
    """The scheduler and its use cases, with what a test wants to ask of them."""

    def __init__(self, db: Database, directory: Path, clock: Clock | None = None) -> None:
        self.db = db
        self.clock = clock or Clock()
        self.work = Work(db, self.clock)
        self.secrets = SpecSecrets(directory)
        self.restart()

    def restart(self, db: Database | None = None) -> None:
        """As after a crash: nothing is known but what the database knows."""
        self.scheduler = Scheduler(db or self.db, self.work.start, self.secrets, self.clock)
        self.use = ScheduleService(self.db, self.scheduler, self.work, self.secrets)

    async def create(self, **values: Any) -> str:
        given = {"spec": {"prompt": "do it", "directory": "/"}, **values}
        return (await self.use.create(ScheduleSpec.model_validate(given))).id

    async def tick(self, by: timedelta = timedelta(0)) -> None:
        """Let time pass, then have one pass made."""
        self.clock.forward(by)
        await self.scheduler.tick()

    async def pass_time(self, span: timedelta, step: timedelta = timedelta(seconds=20)) -> None:
        """Let time pass as it does while the daemon runs."""
        end = self.clock.moment + span
        while self.clock.moment < end:
            await self.tick(step)

    async def get(self, schedule_id: str) -> Schedule:
        return await self.use.get(schedule_id)

    async def status(self, schedule_id: str) -> tuple[ScheduleStatus, str | None]:
        schedule = await self.get(schedule_id)
        return schedule.status, schedule.reason

    async def history(self, schedule_id: str) -> list[Firing]:
        """All firings, oldest first."""
        page = await self.use.history(schedule_id, 1000)
        assert page.next_cursor is None
        return page.firings[::-1]

    async def outcomes(self, schedule_id: str) -> list[tuple[str, Outcome]]:
        return [(f"{f.slot:%H:%M}", f.outcome) for f in await self.history(schedule_id)]

    async def started(self, schedule_id: str) -> list[str]:
        """What it started, oldest first; every one of them exists, and no other."""
        subjects = [f.subject for f in await self.history(schedule_id) if f.subject]
        stored = await self.db.read(_of_schedule, schedule_id)
        assert sorted(subjects) == sorted(stored)
        return subjects

    async def end_last(
        self, schedule_id: str, status: str = "completed", reason: str | None = None
    ) -> str:
        subject = (await self.started(schedule_id))[-1]
        await self.work.end(subject, status, reason)
        return subject


def _of_schedule(connection: Connection, schedule_id: str) -> list[str]:
    found: list[str] = []
    for table in (tables.tasks, tables.runs):
        query = sa.select(table.c.id).where(table.c.schedule_id == schedule_id)
        found += connection.execute(query).scalars()
    return found
