"""Use cases of schedules: create, look, pause, resume, cancel, run now."""

import json
import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from kapelle.domain.errors import Conflict, InvalidInput, invalid_field, invalid_spec
from kapelle.domain.schedule import (
    OPEN,
    Firing,
    Moment,
    Schedule,
    ScheduleFilter,
    ScheduleSpec,
    ScheduleStatus,
)
from kapelle.domain.specs import Spec, TaskSpec
from kapelle.domain.states import StopCause, Stopper
from kapelle.domain.task import Limit
from kapelle.engine.parts import Parts
from kapelle.engine.runs import start as run_start
from kapelle.engine.runs.control import end_child
from kapelle.engine.schedules import transitions
from kapelle.engine.schedules.rules import GRACE, next_by_cron
from kapelle.engine.schedules.scheduler import Scheduler
from kapelle.engine.tasks.submit import Belonging, require_still_there, submit, validate_spec
from kapelle.patterns.spec import PatternSpec
from kapelle.secrets.specs import SpecSecrets
from kapelle.service.batches import with_list
from kapelle.store import events, schedules
from kapelle.store.database import Connection, Database
from kapelle.store.ids import make_unused_id

TASK = "task"


@dataclass
class ScheduledWork:
    _parts: Parts

    async def examine(self, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Find out now what would otherwise be found out in the night: what can be started as
        things are now, as columns of a schedule."""
        checked: TaskSpec | PatternSpec
        if kind == TASK:
            checked = _task(spec)
            await validate_spec(self._parts, checked)
        else:
            listed = await with_list(self._parts.db, kind, spec)
            checked, _ = await run_start.examine(self._parts, kind, listed)
        settings = self._parts.settings(checked.directory)
        asked = checked.model_dump(mode="json", exclude_unset=True)
        if asked.get("saved"):
            del asked["items"]  # of a saved list those that it has when its time has come
        return {
            # What no database can keep (half a surrogate pair) is replaced.
            "spec": json.loads(json.dumps(asked, ensure_ascii=False).encode(errors="replace")),
            "title": checked.display_title or kind,
            "directory": os.path.normpath(checked.directory),
            "project": checked.project or settings.project,
        }

    async def start(self, kind: str, spec: dict[str, Any], key: str, schedule_id: str) -> str:
        belonging = Belonging(schedule_id=schedule_id)
        require_still_there(spec["directory"])
        if kind == TASK:
            return (await submit(self._parts, _task(spec), key, belonging)).id
        spec = await with_list(self._parts.db, kind, spec, key)
        return await run_start.start(self._parts, kind, spec, key, belonging)

    async def cancel(self, subject: str, cause: StopCause) -> None:
        await end_child(self._parts, subject, cause)


def _task(spec: dict[str, Any]) -> TaskSpec:
    try:
        return TaskSpec.model_validate(spec)
    except ValidationError as error:
        raise invalid_spec(error, f"{TASK}: ") from None


# What tells one schedule from another, besides its id.
_COMPARED = {*ScheduleSpec.model_fields, "directory"}


class SchedulePage(BaseModel):
    schedules: list[Schedule]
    next_cursor: str | None


class FiringPage(BaseModel):
    firings: list[Firing]
    next_cursor: datetime | None


class CancelSchedule(Spec):
    with_work: bool = False


@dataclass
class ScheduleService:
    _db: Database
    _scheduler: Scheduler
    _work: ScheduledWork
    _secrets: SpecSecrets

    async def create(self, spec: ScheduleSpec, idempotency_key: str | None = None) -> Schedule:
        """Create a schedule; what it is to start is examined at once."""
        now = self._scheduler.clock()
        _require_future(spec, now)
        examined = await self._work.examine(spec.kind, spec.spec)
        values = examined | _values(spec, now)
        values["id"] = await self._db.glance(make_unused_id, "schedule")
        values["idempotency_key"] = idempotency_key
        with self._secrets.keep_values(values["id"], values["spec"]) as values["spec"]:
            stored = await self._db.write(_insert, values, spec.after)
        if stored != values["id"]:
            self._secrets.forget(values["id"])
        return await self.get(stored)

    async def get(self, schedule_id: str) -> Schedule:
        """One schedule, by its id or any unique end or beginning of it."""
        return _shown(await self._db.read(schedules.get, schedule_id))

    async def page(self, wanted: ScheduleFilter) -> SchedulePage:
        """Schedules, newest first; next_cursor leads to the next page."""
        found, cursor = await self._db.read(schedules.list_page, wanted)
        return SchedulePage(schedules=[_shown(one) for one in found], next_cursor=cursor)

    async def history(
        self, schedule_id: str, limit: Limit = 50, cursor: Moment | None = None
    ) -> FiringPage:
        """What became of its slots, newest first; next_cursor leads to the next page."""
        schedule_id = (await self.get(schedule_id)).id
        found, more = await self._db.read(schedules.list_firings, schedule_id, cursor, limit)
        return FiringPage(firings=found, next_cursor=found[-1].slot if more else None)

    async def pause(self, schedule_id: str) -> Schedule:
        """Start nothing until it is resumed; what was started goes on."""
        return await self._alter(schedule_id, transitions.pause)

    async def resume(self, schedule_id: str) -> Schedule:
        """Go on with the next slot; those that came meanwhile are not made up for."""
        return await self._alter(schedule_id, transitions.resume)

    async def cancel(self, schedule_id: str, body: CancelSchedule | None = None) -> Schedule:
        """End a schedule; with_work also ends what it started and what is still going."""
        with_work = body.with_work if body else False
        schedule_id = (await self.get(schedule_id)).id
        now = self._scheduler.clock()
        going = await self._scheduler.alter(transitions.cancel, schedule_id, with_work, now)
        for subject in going:
            cause = StopCause(Stopper.PERSON, f"cancelled with {schedule_id}")
            await self._work.cancel(subject, cause)
        return await self.get(schedule_id)

    async def run_now(self, schedule_id: str) -> Firing:
        """Start at once what it starts, besides its slots."""
        schedule_id = (await self.get(schedule_id)).id
        now = self._scheduler.clock()
        slot = await self._scheduler.alter(transitions.run_now, schedule_id, now)
        row = await self._db.read(schedules.find_firing, schedule_id, slot)
        if row is None:
            raise Conflict(f"The firing of {schedule_id} is not in its history any more.")
        return schedules.read_firing(row)

    async def _alter(self, schedule_id: str, change: Any) -> Schedule:
        schedule_id = (await self.get(schedule_id)).id
        await self._scheduler.alter(change, schedule_id, self._scheduler.clock())
        return await self.get(schedule_id)


def _require_future(spec: ScheduleSpec, now: datetime) -> None:
    if spec.at is not None and spec.at < now - GRACE:
        raise invalid_field(
            "at",
            f"{spec.at:%Y-%m-%d %H:%M:%S} UTC has passed",
            hint="Name a time to come; `kapelle run` starts something now.",
        )
    if spec.expires_at is not None and spec.expires_at <= now:
        raise invalid_field("expires_at", f"{spec.expires_at:%Y-%m-%d %H:%M:%S} UTC has passed")


def _values(spec: ScheduleSpec, now: datetime) -> dict[str, Any]:
    left_out = {"after", "spec"} | ({"title"} if not spec.title else set())
    values = spec.model_dump(exclude=left_out)
    values |= {"status": ScheduleStatus.ACTIVE, "created_at": now}
    if spec.cron is not None:
        values["next_at"] = next_by_cron(values, now)
        if values["next_at"] is None:
            raise invalid_field("expires_at", "no slot of its cron comes before that")
    else:
        values["next_at"] = now if spec.every_s is not None else spec.at
    return values


def _insert(connection: Connection, values: dict[str, Any], after: str | None) -> str:
    values["after"] = None if after is None else _leader(connection, after, values)
    key = values["idempotency_key"]
    if key:
        known = schedules.find_by_key(connection, key)
    else:
        known = None
    if known is not None:
        if any(known[name] != values[name] for name in _COMPARED):
            raise Conflict(f"This idempotency key was used for another schedule, {known['id']}.")
        return str(known["id"])
    schedules.insert(connection, values)
    events.append(connection, "schedule.created", schedule_id=values["id"], title=values["title"])
    return str(values["id"])


def _leader(connection: Connection, text: str, values: dict[str, Any]) -> str:
    """The schedule that a new one comes after."""
    leader = schedules.load_row(connection, schedules.resolve(connection, text))
    alone = values["cron"] is None and values["at"] is None
    if alone and leader["status"] not in OPEN:
        text = f"{leader['id']} is {leader['status']}: nothing will come after it any more."
        raise InvalidInput(text)
    return str(leader["id"])


def _shown(schedule: Schedule) -> Schedule:
    """An active schedule says what it waits for where that is no time; a paused one has none."""
    if schedule.status is ScheduleStatus.PAUSED:
        return schedule.model_copy(update={"next_at": None})
    if schedule.status is not ScheduleStatus.ACTIVE or schedule.next_at is not None:
        return schedule
    if schedule.every_s is not None or schedule.at is not None:
        going = ", ".join(schedule.in_flight) or "what it has started"
        reason = f"waits until {going} has ended"
    elif schedule.cron is not None:
        reason = "no further slot comes before it expires"
    else:
        reason = f"waits until work of {schedule.after} has succeeded"
    return schedule.model_copy(update={"reason": schedule.reason or reason})
