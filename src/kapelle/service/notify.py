"""Notifications for a person who is elsewhere, by a signed webhook or a command of theirs.

Each channel follows the history from a stored position, which advances after each delivery. So an
event is delivered at least once, later if the channel fails meanwhile.
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
from kapelle.service.request import read_key, send_request
from kapelle.settings.models import NotifySettings
from kapelle.store import events, runs, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row

_log = logging.getLogger("kapelle.notify")
_KINDS = {
    "task.waiting": "question", "run.waiting": "question", "task.failed": "failed",
    "run.failed": "failed", "schedule.failed": "failed", "run.completed": "finished",
    "attempt.failed": "budget",
}  # fmt: skip
# A change of the settings, or of another daemon on the same database, does not wake this one.
_LOOK_S = 5.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 600.0
# A notification that cannot be delivered for so long is dropped.
_STALE = timedelta(days=1)
_TIMEOUT_S = 60.0
_MAX_TEXT = 10_000
_NO_POSITION = -1
Way = Literal["webhook", "command"]
NotificationMessage = dict[str, Any]


class NotificationService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # The position of each channel in the history, as stored.
        self._positions: dict[Way, int] = {}

    def _is_set(self, way: Way) -> bool:
        settings = self._parts.settings().notify
        if way == "webhook":
            return settings.url is not None and settings.url != ""
        return bool(settings.command)

    async def test(self) -> list[NotifyView]:
        """Send a test notification through every configured channel, and report the results."""
        ways: list[Way] = [way for way in get_args(Way) if self._is_set(way)]
        if not ways:
            hint = "Type `kapelle config set notify.url https://…` or `notify.command`."
            raise InvalidInput("No notifications are configured.", hint=hint)
        message = {"id": f"test-{time.time_ns()}", "kind": "test", "title": "Kapelle can reach you"}
        return [NotifyView(way=way, problem=await self._try_to_send(way, message)) for way in ways]

    async def run(self) -> None:
        """Send notifications through every configured channel, until cancelled."""
        ways: tuple[Way, ...] = get_args(Way)
        loops = []
        for way in ways:
            watch = self._parts.db.watch(*_KINDS)
            loops.append(repeat(_log, partial(self._send_new, way), watch, _LOOK_S))
        await asyncio.gather(*loops)

    async def _send_new(self, way: Way) -> None:
        """Send the events since the last time; the first time, start with future events."""
        db = self._parts.db
        if not self._is_set(way):
            if self._positions.get(way) != _NO_POSITION:
                # When the channel is configured again, it starts with future events.
                await db.write(events.forget_reader, way)
                self._positions[way] = _NO_POSITION
            return
        position = self._positions.get(way, _NO_POSITION)
        if position == _NO_POSITION:
            position = await db.write(events.move_reader, way)
        while new_events := await db.read(_list_after, position):
            for event, kind in new_events:
                if kind not in self._parts.settings().notify.on:
                    continue
                repository = await db.read(_repository_of, event)
                message = self._message(event, kind, repository)
                await self._deliver(way, message, event.at)
                await db.write(events.move_reader, way, event.seq)
            last_event = new_events[-1][0]
            position = await db.write(events.move_reader, way, last_event.seq)
            self._positions[way] = position

    def _message(self, event: Event, kind: str, repository: str | None) -> NotificationMessage:
        work = event.task_id or event.run_id or event.data.get("schedule_id")
        if event.task_id:
            noun = "tasks"
        elif event.run_id:
            noun = "runs"
        else:
            noun = "schedules"
        # The variables of a command cannot hold a NUL.
        text = str(event.data.get("reason") or "")[:_MAX_TEXT].replace("\0", "")
        return {
            "id": f"event-{event.seq}",
            "kind": kind,
            "at": event.at.isoformat(),
            "work": work,
            "title": event.data.get("title") or "",
            "repository": repository or "",
            "text": text,
            "url": f"{self._parts.url}/{noun}/{work}",
        }

    async def _deliver(self, way: Way, message: NotificationMessage, at: datetime) -> None:
        """Send a message, with retries after growing pauses, until it is delivered or stale."""
        pause_s = _FIRST_PAUSE_S
        while problem := await self._try_to_send(way, message):
            if not self._is_set(way) or datetime.now(UTC) - at > _STALE:
                return
            _log.warning("%s: retry by %s in %g s: %s", message["id"], way, pause_s, problem)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _try_to_send(self, way: Way, message: NotificationMessage) -> str | None:
        """Send a message and return the problem, if there is one."""
        try:
            await asyncio.to_thread(self._send, way, message)
        except KapelleError as error:
            return error.with_hint
        except Exception as error:  # a person's server or command may do anything
            return repr(error)
        return None

    def _send(self, way: Way, message: NotificationMessage) -> None:
        settings = self._parts.settings().notify
        body = json.dumps(message).encode()
        if way == "webhook":
            self._call_webhook(settings, message["id"], body)
            return
        env = dict(self._parts.environ)
        for name, text in message.items():
            env[f"KAPELLE_NOTIFY_{name.upper()}"] = str(text)
        home = self._parts.home.root
        command = Command(settings.command, env, home, _TIMEOUT_S, 10_000, body)
        result = RunningCommand(command).run()
        if not result.timed_out and result.code == 0:
            return
        output = result.stderr[-500:].decode("utf-8", "replace")
        if result.timed_out:
            problem = f"took longer than {_TIMEOUT_S:.0f} s"
        else:
            problem = f"ended with {result.code}"
        raise KapelleError(f"{settings.command[0]} {problem}: {output}")

    def _call_webhook(self, settings: NotifySettings, message_id: str, body: bytes) -> None:
        timestamp = str(int(time.time()))
        key = read_key(settings, "notify").encode()
        # The receiver can verify the sender, and refuse old messages that somebody sends again.
        digest = hmac.new(key, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "X-Kapelle-Id": message_id,
            "X-Kapelle-Timestamp": timestamp,
            "X-Kapelle-Signature": f"sha256={digest}",
        }
        send_request(settings.url or "", headers, body)


def _list_after(connection: Connection, position: int) -> list[tuple[Event, str]]:
    """Return the next events of the history, each with the kind of its notification."""
    pairs = []
    for event in events.list_after(connection, position):
        kind = _notification_kind(connection, event)
        pairs.append((_add_title(connection, event), kind))
    return pairs


def _repository_of(connection: Connection, event: Event) -> str | None:
    """Return the path of the repository of an event's task or run; None if that was deleted."""
    row: Row | None = None
    if event.task_id is not None:
        row = tasks.find(connection, event.task_id)
    elif event.run_id is not None:
        row = runs.find(connection, event.run_id)
    return row["repository"] if row else None


def _add_title(connection: Connection, event: Event) -> Event:
    """Add the title of its task to the event of an attempt, which has none."""
    if event.kind != "attempt.failed" or event.task_id is None:
        return event
    row = tasks.find(connection, event.task_id)  # None if it was deleted
    title = row["title"] if row else ""
    return event.model_copy(update={"data": {**event.data, "title": title}})


def _notification_kind(connection: Connection, event: Event) -> str:
    """Return the kind of notification that an event causes, empty for none.

    Events inside a run cause none, because the run has events of its own. Only questions and
    budgets are the exception.
    """
    kind = _KINDS.get(event.kind, "")
    if event.kind == "task.waiting" and event.data.get("waiting_for") != "input":
        return ""
    if event.kind == "attempt.failed" and event.data.get("failure") != "limit":
        return ""
    if event.kind == "task.failed" and event.run_id:
        return ""
    if event.kind in {"run.completed", "run.failed"} and event.run_id:
        return _kind_of_ended_run(connection, event.run_id, kind)
    return kind


def _kind_of_ended_run(connection: Connection, run_id: str, kind: str) -> str:
    run = runs.find(connection, run_id)
    if run is None:
        return kind
    if run["parent_id"]:
        return ""
    if isinstance(run["result"], dict) and run["result"].get("stopped_by") == "budget":
        return "budget"
    return kind
