"""Tells a person elsewhere what they should know: by a signed webhook, by a command of theirs.

Each way follows the history from a stored position, which moves on when something was delivered:
what happened while it could not be told is told later, once at least.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, get_args

from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.task import Event
from kapelle.domain.views import NotifyView
from kapelle.engine.background import repeat
from kapelle.engine.parts import Parts
from kapelle.runner.command import Command, RunningCommand
from kapelle.service.integrations import key_of, request
from kapelle.store import events, runs, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row

_log = logging.getLogger("kapelle.notify")
_KINDS = {
    "task.waiting": "question", "run.waiting": "question", "task.failed": "failed",
    "run.failed": "failed", "schedule.failed": "failed", "run.completed": "finished",
    "attempt.failed": "budget",
}  # fmt: skip
# Who changes the settings, or another daemon on the same database, wakes nobody here.
_LOOK_S = 5.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 600.0
_STALE = timedelta(days=1)
_TIMEOUT_S = 60.0
_MOST_TEXT = 10_000
_NOT_SET = -1
Way = Literal["webhook", "command"]
NotificationMessage = dict[str, Any]


class NotificationService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._at: dict[Way, int] = {}

    def _is_set(self, way: Way) -> bool:
        settings = self._parts.settings().notify
        return bool(settings.url if way == "webhook" else settings.command)

    async def test(self) -> list[NotifyView]:
        """Tell you something by every way that is set, and say what came of it."""
        ways: list[Way] = [way for way in get_args(Way) if self._is_set(way)]
        if not ways:
            hint = "Type `kapelle config set notify.url https://…` or `notify.command`."
            raise InvalidInput("No way to notify you is set.", hint=hint)
        told = {"id": f"test-{time.time_ns()}", "kind": "test", "title": "Kapelle can reach you"}
        return [NotifyView(way=way, problem=await self._problem(way, told)) for way in ways]

    async def run(self) -> None:
        """Tell what happens by every way that is set, until cancelled."""
        ways: tuple[Way, ...] = get_args(Way)
        watch = self._parts.db.watch
        await asyncio.gather(
            *(repeat(_log, partial(self._tell_all, w), watch(*_KINDS), _LOOK_S) for w in ways)
        )

    async def _tell_all(self, way: Way) -> None:
        """Tell what happened since the last time; the first time, nothing of the past."""
        db = self._parts.db
        if not self._is_set(way):
            if self._at.get(way) != _NOT_SET:
                # Set again, it begins with what happens from then on.
                await db.write(events.forget_reader, way)
                self._at[way] = _NOT_SET
            return
        if (position := self._at.get(way, _NOT_SET)) == _NOT_SET:
            position = await db.write(events.move_reader, way)
        while found := await db.read(_after, position):
            for event, kind in found:
                if kind in self._parts.settings().notify.on:
                    repository = await db.read(_repository_of, event)
                    message = self._message(event, kind, repository)
                    await self._deliver(way, message, event.at)
                    await db.write(events.move_reader, way, event.seq)
            position = self._at[way] = await db.write(events.move_reader, way, found[-1][0].seq)

    def _message(self, event: Event, kind: str, repository: str | None) -> NotificationMessage:
        work = event.task_id or event.run_id or event.data.get("schedule_id")
        if event.task_id:
            place = "tasks"
        elif event.run_id:
            place = "runs"
        else:
            place = "schedules"
        return {
            "id": f"event-{event.seq}", "kind": kind, "at": event.at.isoformat(), "work": work,
            "title": event.data.get("title") or "", "repository": repository or "",
            "text": str(event.data.get("reason") or "")[:_MOST_TEXT].replace("\0", ""),
            "url": f"{self._parts.url}/{place}/{work}",
        }  # fmt: skip

    async def _deliver(self, way: Way, message: NotificationMessage, at: datetime) -> None:
        """Tell it, again and again with growing pauses; after a day nobody wants to know."""
        pause_s = _FIRST_PAUSE_S
        while problem := await self._problem(way, message):
            if not self._is_set(way) or datetime.now(UTC) - at > _STALE:
                return
            _log.warning("%s is told by %s in %g s: %s", message["id"], way, pause_s, problem)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _problem(self, way: Way, message: NotificationMessage) -> str | None:
        try:
            await asyncio.to_thread(self._send, way, json.dumps(message).encode(), message)
        except Exception as error:  # whatever a person's server or command does
            if isinstance(error, KapelleError):
                return error.with_hint
            return repr(error)
        return None

    def _send(self, way: Way, body: bytes, message: NotificationMessage) -> None:
        settings = self._parts.settings().notify
        home = self._parts.home.root
        if way == "webhook":
            stamp = str(int(time.time()))
            key = key_of(settings, "notify").encode()
            digest = hmac.new(key, f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
            headers = {"X-Kapelle-Id": message["id"], "X-Kapelle-Timestamp": stamp}
            headers["X-Kapelle-Signature"] = f"sha256={digest}"
            request(settings.url or "", headers, body)
            return
        told = {f"KAPELLE_NOTIFY_{name.upper()}": str(text) for name, text in message.items()}
        env = {**self._parts.environ, **told}
        done = RunningCommand(Command(settings.command, env, home, _TIMEOUT_S, 10_000, body)).run()
        if done.timed_out or done.code:
            said = done.stderr[-500:].decode("utf-8", "replace")
            if done.timed_out:
                how = "took too long"
            else:
                how = f"ended with {done.code}"
            raise KapelleError(f"{settings.command[0]} {how}: {said}")


def _after(connection: Connection, position: int) -> list[tuple[Event, str]]:
    found = events.list_after(connection, position)
    return [(_titled(connection, event), _kind(connection, event)) for event in found]


def _repository_of(connection: Connection, event: Event) -> str | None:
    """Return the path of the repository of an event's task or run, which may be deleted since."""
    row: Row | None = None
    if event.task_id is not None:
        row = tasks.find(connection, event.task_id)
    elif event.run_id is not None:
        row = runs.find(connection, event.run_id)
    return row["repository"] if row else None


def _titled(connection: Connection, event: Event) -> Event:
    if event.kind != "attempt.failed" or event.task_id is None:
        return event
    row = tasks.find(connection, event.task_id)  # which may be deleted since
    title = row["title"] if row else ""
    return event.model_copy(update={"data": {**event.data, "title": title}})


def _kind(connection: Connection, event: Event) -> str:
    """What an event is to a person, or nothing; what happens inside a run is the run's to tell,
    but for questions and money."""
    kind = _KINDS.get(event.kind, "")
    data = event.data
    if event.kind == "task.waiting":
        if data.get("waiting_for") == "input":
            return kind
        return ""
    if event.kind == "attempt.failed":
        if data.get("failure") == "limit":
            return kind
        return ""
    if event.kind == "task.failed":
        return "" if event.run_id else kind
    if kind and event.run_id:
        run = runs.find(connection, event.run_id)
    else:
        run = None
    if run is not None and event.kind != "run.waiting":
        spent = isinstance(run["result"], dict) and run["result"].get("stopped_by") == "budget"
        if run["parent_id"]:
            return ""
        if spent:
            return "budget"
        return kind
    return kind
