"""Use cases of schedules: create, show, pause, resume, cancel them, and run them now."""

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
    """The tasks and runs that schedules start."""

    _parts: Parts

    async def examine(self, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Check now that the work can be started; return its columns of the schedule.

        Otherwise a mistake in the specification would show only when the schedule is due.
        """
        valid_spec: TaskSpec | PatternSpec
        if kind == TASK:
            valid_spec = _validate_task(spec)
            await validate_spec(self._parts, valid_spec)
        else:
            full_spec = await with_list(self._parts.db, kind, spec)
            valid_spec, _ = await run_start.examine(self._parts, kind, full_spec)
        settings = self._parts.settings(valid_spec.directory)
        fields = valid_spec.model_dump(mode="json", exclude_unset=True)
        if fields.get("saved"):
            # The items of a saved list are those that it has when the schedule is due.
            del fields["items"]
        # Replaces half surrogate pairs, which no database can store.
        text = json.dumps(fields, ensure_ascii=False).encode(errors="replace")
        return {
            "spec": json.loads(text),
            "title": valid_spec.display_title or kind,
            "directory": os.path.normpath(valid_spec.directory),
            "project": valid_spec.project or settings.project,
        }

    async def start(self, kind: str, spec: dict[str, Any], key: str, schedule_id: str) -> str:
        """Start a task or a run and return its id.

        The idempotency key makes sure that a slot starts its work once, also after a crash.
        """
        belonging = Belonging(schedule_id=schedule_id)
        require_still_there(spec["directory"])
        if kind == TASK:
            return (await submit(self._parts, _validate_task(spec), key, belonging)).id
        spec = await with_list(self._parts.db, kind, spec, key)
        return await run_start.start(self._parts, kind, spec, key, belonging)

    async def cancel(self, subject: str, cause: StopCause) -> None:
        """Cancel a task or run that a schedule started."""
        await end_child(self._parts, subject, cause)


def _validate_task(spec: dict[str, Any]) -> TaskSpec:
    try:
        return TaskSpec.model_validate(spec)
    except ValidationError as error:
        raise invalid_spec(error, f"{TASK}: ") from None


# A repeated request, with the same idempotency key, must agree in these columns.
_COMPARED_COLUMNS = {*ScheduleSpec.model_fields, "directory"}


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
        """Create a schedule; the specification of its work is validated at once."""
        now = self._scheduler.clock()
        _require_future(spec, now)
        work_columns = await self._work.examine(spec.kind, spec.spec)
        values = work_columns | _schedule_columns(spec, now)
        values["id"] = await self._db.glance(make_unused_id, "schedule")
        values["idempotency_key"] = idempotency_key
        with self._secrets.keep_values(values["id"], values["spec"]) as values["spec"]:
            schedule_id = await self._db.write(_insert, values, spec.after)
        if schedule_id != values["id"]:
            # An earlier request with this idempotency key has stored it.
            self._secrets.forget(values["id"])
        return await self.get(schedule_id)

    async def get(self, schedule_id: str) -> Schedule:
        """Get a schedule by its id, or by any unique beginning or end of the id."""
        return _add_reason(await self._db.read(schedules.get, schedule_id))

    async def page(self, query: ScheduleFilter) -> SchedulePage:
        """List schedules, newest first; next_cursor leads to the next page."""
        page, cursor = await self._db.read(schedules.list_page, query)
        page = [_add_reason(schedule) for schedule in page]
        return SchedulePage(schedules=page, next_cursor=cursor)

    async def history(
        self, schedule_id: str, limit: Limit = 50, cursor: Moment | None = None
    ) -> FiringPage:
        """List the firings of a schedule, newest first; next_cursor leads to the next page."""
        schedule_id = (await self.get(schedule_id)).id
        firings, more = await self._db.read(schedules.list_firings, schedule_id, cursor, limit)
        next_cursor = firings[-1].slot if more else None
        return FiringPage(firings=firings, next_cursor=next_cursor)

    async def pause(self, schedule_id: str) -> Schedule:
        """Pause a schedule: it starts nothing until it is resumed. Started work continues."""
        return await self._alter(schedule_id, transitions.pause)

    async def resume(self, schedule_id: str) -> Schedule:
        """Resume a schedule with its next slot; slots in the pause are not made up for."""
        return await self._alter(schedule_id, transitions.resume)

    async def cancel(self, schedule_id: str, body: CancelSchedule | None = None) -> Schedule:
        """Cancel a schedule; with_work also cancels its running tasks and runs."""
        body = body or CancelSchedule()
        schedule_id = (await self.get(schedule_id)).id
        now = self._scheduler.clock()
        subjects = await self._scheduler.alter(transitions.cancel, schedule_id, body.with_work, now)
        for subject in subjects:
            cause = StopCause(Stopper.PERSON, f"cancelled with {schedule_id}")
            await self._work.cancel(subject, cause)
        return await self.get(schedule_id)

    async def run_now(self, schedule_id: str) -> Firing:
        """Start the work of a schedule now, in addition to its slots."""
        schedule_id = (await self.get(schedule_id)).id
        now = self._scheduler.clock()
        slot = await self._scheduler.alter(transitions.run_now, schedule_id, now)
        row = await self._db.read(schedules.find_firing, schedule_id, slot)
        if row is None:
            raise Conflict(f"The history of {schedule_id} no longer has this firing.")
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
            hint="Give a time in the future; `kapelle run` starts a task now.",
        )
    if spec.expires_at is not None and spec.expires_at <= now:
        raise invalid_field("expires_at", f"{spec.expires_at:%Y-%m-%d %H:%M:%S} UTC has passed")


def _schedule_columns(spec: ScheduleSpec, now: datetime) -> dict[str, Any]:
    """Return the columns of a new schedule that do not describe its work."""
    values = spec.model_dump(exclude={"after", "spec"})
    if not spec.title:
        # The title of the work is used.
        del values["title"]
    values |= {"status": ScheduleStatus.ACTIVE, "created_at": now}
    if spec.cron is not None:
        values["next_at"] = next_by_cron(values, now)
        if values["next_at"] is None:
            raise invalid_field("expires_at", "the cron expression has no slot before this time")
    elif spec.every_s is not None:
        values["next_at"] = now
    else:
        values["next_at"] = spec.at
    return values


def _insert(connection: Connection, values: dict[str, Any], after: str | None) -> str:
    """Store a new schedule and return its id.

    A repeated request, with the same idempotency key, gets the id of the first one's schedule.
    """
    values["after"] = None
    if after is not None:
        values["after"] = _resolve_leader(connection, after, values)
    key = values["idempotency_key"]
    if key:
        row = schedules.find_by_key(connection, key)
        if row is not None:
            if any(row[name] != values[name] for name in _COMPARED_COLUMNS):
                raise Conflict(f"This idempotency key was used for another schedule, {row['id']}.")
            return str(row["id"])
    schedules.insert(connection, values)
    events.append(connection, "schedule.created", schedule_id=values["id"], title=values["title"])
    return str(values["id"])


def _resolve_leader(connection: Connection, text: str, values: dict[str, Any]) -> str:
    """Return the full id of the schedule whose work a new schedule waits for.

    Raises InvalidInput if the new schedule would never start anything.
    """
    leader = schedules.load_row(connection, schedules.resolve(connection, text))
    has_no_time = values["cron"] is None and values["at"] is None
    if has_no_time and leader["status"] not in OPEN:
        raise InvalidInput(f"{leader['id']} is {leader['status']}, so no work can follow it.")
    return str(leader["id"])


def _add_reason(schedule: Schedule) -> Schedule:
    """Add the reason why an active schedule has no next time; remove that of a paused one."""
    if schedule.status is ScheduleStatus.PAUSED:
        return schedule.model_copy(update={"next_at": None})
    if schedule.status is not ScheduleStatus.ACTIVE or schedule.next_at is not None:
        return schedule
    if schedule.every_s is not None or schedule.at is not None:
        work = ", ".join(schedule.in_flight) or "its running work"
        reason = f"waits until {work} has ended"
    elif schedule.cron is not None:
        reason = "no further slot comes before it expires"
    else:
        reason = f"waits until work of {schedule.after} has succeeded"
    return schedule.model_copy(update={"reason": schedule.reason or reason})
