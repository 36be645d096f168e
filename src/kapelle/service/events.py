"""Use cases of the history: streams of events, read once for all who follow them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext

from kapelle.domain.task import Activity, Event
from kapelle.engine.tasks.activity import Activities
from kapelle.store import events
from kapelle.store.database import Database

_log = logging.getLogger("kapelle.events")
# Other daemons on the same database write events that do not wake this process.
_LOOK_S = 1.0
# A subscriber for whom more events wait than this reads them in the database when it has the time.
_MAX_WAITING = 1000
# The pause after events were handed out, for each subscriber: to send them costs each of them some
# time, and what is written meanwhile is sent together.
_PAUSE_S = 0.0002

StreamItems = tuple[Event, ...] | tuple[Activity, ...]


class _Subscriber:
    """Somebody who follows the history, or what it has about one task or run."""

    def __init__(self, task_id: str | None, run_id: str | None, after: int) -> None:
        self._task_id = task_id
        self._run_id = run_id
        # The number of the last event that the subscriber got.
        self.after = after
        # Whether the database has events that are neither sent nor waiting here.
        self.is_behind = True
        self._events: list[Event] = []
        self._activity: dict[str, Activity] = {}
        self._woken = asyncio.Event()

    def hand(self, new: tuple[Event, ...]) -> None:
        """Take new events of the history."""
        if self.is_behind:
            return
        self._events += [event for event in new if self._follows(event)]
        if len(self._events) > _MAX_WAITING:
            self.fall_behind()
        elif self._events:
            self._woken.set()

    def tell(self, activity: Activity) -> None:
        """Take what an agent does now; only the last activity of an attempt is kept."""
        if self._follows(activity):
            self._activity[activity.attempt_id] = activity
            self._woken.set()

    def fall_behind(self) -> None:
        """Have the subscriber read the database from where it is."""
        self._events.clear()
        self.is_behind = True
        self._woken.set()

    async def wait(self) -> None:
        """Return when there is something to take, or when the subscriber is behind."""
        await self._woken.wait()
        self._woken.clear()

    def take_events(self) -> tuple[Event, ...]:
        """Return the events that wait, without those that the subscriber read itself."""
        waiting = tuple(event for event in self._events if event.seq > self.after)
        self._events.clear()
        if waiting:
            self.after = waiting[-1].seq
        return waiting

    def take_activity(self) -> tuple[Activity, ...]:
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
        self._somebody = asyncio.Event()

    async def last_seq(self) -> int:
        return await self._db.read(events.load_last_seq)

    async def stream(
        self,
        after: int,
        task_id: str | None,
        follow: bool,
        run_id: str | None = None,
        activity: bool = False,
    ) -> AsyncIterator[StreamItems]:
        """Yield every event behind a number, exactly once and in order, several at a time.

        With follow it goes on for ever, with activity it also yields what agents do.
        """
        if not follow:
            async for found in self._stored(after, task_id, run_id):
                yield found
            return
        with (
            self._subscribed(_Subscriber(task_id, run_id, after)) as subscriber,
            self._activities.listen(subscriber.tell) if activity else nullcontext(),
        ):
            while True:
                while subscriber.is_behind:
                    # From here on events are handed to it again, also some that it reads itself.
                    subscriber.is_behind = False
                    async for found in self._stored(subscriber.after, task_id, run_id):
                        subscriber.after = found[-1].seq
                        yield found
                await subscriber.wait()
                if new := subscriber.take_events():
                    yield new
                if doing := subscriber.take_activity():
                    yield doing

    async def run(self) -> None:
        """Hand new events to the subscribers, until cancelled; after an error begin again."""
        while True:
            await self._somebody.wait()
            try:
                await self._publish()
            except Exception:
                _log.exception("the history could not be read and will be read again")
                await asyncio.sleep(_LOOK_S)

    async def _publish(self) -> None:
        """Read every new event once, as long as there are subscribers."""
        with self._db.watch() as changed:
            after = await self.last_seq()
            for subscriber in self._subscribers:
                subscriber.fall_behind()  # what was written before this moment is not handed out
            while self._subscribers:
                new = tuple(await self._db.read(events.list_after, after))
                if new:
                    after = new[-1].seq
                    for subscriber in self._subscribers:
                        subscriber.hand(new)
                else:
                    await changed.wait(_LOOK_S)
                await asyncio.sleep(len(self._subscribers) * _PAUSE_S)
        self._somebody.clear()

    async def _stored(
        self, after: int, task_id: str | None, run_id: str | None
    ) -> AsyncIterator[tuple[Event, ...]]:
        """Yield the stored events behind a number, as many at a time as one read returns."""
        while found := await self._db.read(
            events.list_after, after, task_id=task_id, run_id=run_id
        ):
            after = found[-1].seq
            yield tuple(found)

    @contextmanager
    def _subscribed(self, subscriber: _Subscriber) -> Iterator[_Subscriber]:
        self._subscribers.add(subscriber)
        self._somebody.set()
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)
