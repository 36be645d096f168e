"""Use cases of the event history: streams of events, read once for all subscribers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager

from kapelle.domain.task import Activity, Event
from kapelle.engine.tasks.activity import Activities
from kapelle.store import events
from kapelle.store.database import Database

_log = logging.getLogger("kapelle.events")
# Events of other daemons on the same database do not wake this process, so it looks for them.
_LOOK_S = 1.0
# A subscriber with more waiting events than this drops them and reads them from the database.
_MAX_WAITING = 1000
# The pause after new events, multiplied by the number of subscribers. Each of them needs time to
# send the events, and those that are written meanwhile are sent together.
_PAUSE_S = 0.0002

StreamItems = tuple[Event, ...] | tuple[Activity, ...]


class _Subscriber:
    """A client that follows the history, or the events of one task or run."""

    def __init__(self, task_id: str | None, run_id: str | None, after: int) -> None:
        self._task_id = task_id
        self._run_id = run_id
        # The number of the last event that the client got.
        self.after = after
        # Whether the database has events that are neither sent nor waiting here.
        self.is_behind = True
        self._events: list[Event] = []
        self._activity: dict[str, Activity] = {}
        self._wake_up = asyncio.Event()

    def add_events(self, new: tuple[Event, ...]) -> None:
        """Add new events of the history to those that wait."""
        if self.is_behind:
            return
        self._events += [event for event in new if self._follows(event)]
        if len(self._events) > _MAX_WAITING:
            self.fall_behind()
        elif self._events:
            self._wake_up.set()

    def add_activity(self, activity: Activity) -> None:
        """Add the current activity of an agent; it replaces an earlier one of the attempt."""
        if self._follows(activity):
            self._activity[activity.attempt_id] = activity
            self._wake_up.set()

    def fall_behind(self) -> None:
        """Drop the waiting events; the subscriber reads them from the database."""
        self._events.clear()
        self.is_behind = True
        self._wake_up.set()

    async def wait(self) -> None:
        """Return when events or activities wait, or when the subscriber is behind."""
        await self._wake_up.wait()
        self._wake_up.clear()

    def take_events(self) -> tuple[Event, ...]:
        """Return the waiting events, without those that were read from the database."""
        waiting = tuple(event for event in self._events if event.seq > self.after)
        self._events.clear()
        if waiting:
            self.after = waiting[-1].seq
        return waiting

    def take_activity(self) -> tuple[Activity, ...]:
        """Return the waiting activities."""
        waiting = tuple(self._activity.values())
        self._activity.clear()
        return waiting

    def _follows(self, event: Event | Activity) -> bool:
        return self._task_id in {None, event.task_id} and self._run_id in {None, event.run_id}


class EventService:
    def __init__(self, db: Database, activities: Activities) -> None:
        self._db = db
        self._activities = activities
        self._subscribers: set[_Subscriber] = set()
        self._has_subscribers = asyncio.Event()

    async def last_seq(self) -> int:
        """Return the number of the last event."""
        return await self._db.read(events.load_last_seq)

    async def stream(
        self,
        after: int,
        task_id: str | None,
        follow: bool,
        run_id: str | None = None,
        activity: bool = False,
    ) -> AsyncIterator[StreamItems]:
        """Yield every event after a number, exactly once and in order, several at a time.

        With follow it never ends; with activity it also yields what running agents do.
        """
        if not follow:
            async for events_read in self._read_stored(after, task_id, run_id):
                yield events_read
            return
        subscriber = _Subscriber(task_id, run_id, after)
        with ExitStack() as stack:
            stack.enter_context(self._subscribe(subscriber))
            if activity:
                stack.enter_context(self._activities.listen(subscriber.add_activity))
            while True:
                while subscriber.is_behind:
                    # From here on it gets new events again, also some that it reads here itself.
                    subscriber.is_behind = False
                    async for events_read in self._read_stored(subscriber.after, task_id, run_id):
                        subscriber.after = events_read[-1].seq
                        yield events_read
                await subscriber.wait()
                if new_events := subscriber.take_events():
                    yield new_events
                if activities := subscriber.take_activity():
                    yield activities

    async def run(self) -> None:
        """Publish new events to the subscribers until cancelled; after an error, start again."""
        while True:
            await self._has_subscribers.wait()
            try:
                await self._publish()
            except Exception:
                _log.exception("the history could not be read and will be read again")
                await asyncio.sleep(_LOOK_S)

    async def _publish(self) -> None:
        """Read every new event once, as long as there are subscribers."""
        with self._db.watch() as changes:
            after = await self.last_seq()
            for subscriber in self._subscribers:
                # Events up to this number are not published; subscribers read them themselves.
                subscriber.fall_behind()
            while self._subscribers:
                new_events = tuple(await self._db.read(events.list_after, after))
                if new_events:
                    after = new_events[-1].seq
                    for subscriber in self._subscribers:
                        subscriber.add_events(new_events)
                else:
                    await changes.wait(_LOOK_S)
                await asyncio.sleep(len(self._subscribers) * _PAUSE_S)
        self._has_subscribers.clear()

    async def _read_stored(
        self, after: int, task_id: str | None, run_id: str | None
    ) -> AsyncIterator[tuple[Event, ...]]:
        """Yield the stored events after a number, as many at a time as one read returns."""
        while True:
            page = await self._db.read(events.list_after, after, task_id=task_id, run_id=run_id)
            if not page:
                return
            after = page[-1].seq
            yield tuple(page)

    @contextmanager
    def _subscribe(self, subscriber: _Subscriber) -> Iterator[None]:
        self._subscribers.add(subscriber)
        self._has_subscribers.set()
        try:
            yield
        finally:
            self._subscribers.discard(subscriber)
