"""Use cases of the history: streams of events, read once for all who follow them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext

from kapelle.domain.task import Activity, Event
from kapelle.engine.tasks.activity import Activities
from kapelle.store import events
from kapelle.store.database import Database

_log = logging.getLogger("kapelle.events")
# Other daemons on the same database write events that do not wake this process.
_LOOK_S = 1.0
# So many are told at once, which takes the event loop a millisecond or two.
_AT_ONCE = 200
# What is written within so long, for each of the subscribers, is told together: a few are told at
# once, and a thousand seldom, for to write to each of them takes a hundredth of a second or two.
_TOGETHER_S = 0.0001
_LONGEST_S = 0.3

EventListener = Callable[[tuple[Event, ...]], bool]


class _Subscriber:
    """One who follows the history, or what is in it about one task or run. What it cannot be told
    at once it reads in the database when it has the time."""

    def __init__(
        self, task_id: str | None, run_id: str | None, after: int, told: EventListener
    ) -> None:
        self._task_id = task_id
        self._run_id = run_id
        self._activity: dict[str, Activity] = {}
        self._woken = asyncio.Event()
        self._waits = False
        self._told = told
        self.after = after  # the number of the last event that it was told
        self.behind = True  # whether the database has events that it was not told

    def hand(self, found: tuple[Event, ...]) -> None:
        # Whoever wants everything gets the same tuple, which is rendered once for all of them.
        if found[0].seq <= self.after or self._task_id or self._run_id:
            found = tuple(event for event in found if self._wants(event) and event.seq > self.after)
        if found and self._waits and not self.behind and self._told(found):
            self.after = found[-1].seq
        elif found:
            self.fall_behind()

    def tell(self, activity: Activity) -> None:
        """What an agent does now; of one that is not told in time only the last counts."""
        if self._wants(activity):
            self._activity[activity.attempt_id] = activity
            self._woken.set()

    def fall_behind(self) -> None:
        self.behind = True
        self._woken.set()

    async def wait(self) -> tuple[Activity, ...]:
        """What agents did since the last time, once there is something or it is behind."""
        self._waits = True
        await self._woken.wait()
        self._waits = False
        self._woken.clear()
        activity = self._activity
        self._activity = {}
        return tuple(activity.values())

    def _wants(self, event: Event | Activity) -> bool:
        return self._task_id in {None, event.task_id} and self._run_id in {None, event.run_id}


class EventService:
    def __init__(self, db: Database, activities: Activities) -> None:
        self._db = db
        self._activities = activities
        self._subscribers: set[_Subscriber] = set()
        self._somebody = asyncio.Event()

    async def last_seq(self) -> int:
        return await self._db.read(events.last_seq)

    async def stream(
        self,
        after: int,
        task_id: str | None,
        follow: bool,
        run_id: str | None = None,
        activity: bool = False,
        told: EventListener = lambda _: False,
    ) -> AsyncIterator[tuple[Event, ...] | tuple[Activity, ...]]:
        """Every event behind a number, exactly once and in order, some at a time; with follow, for
        ever, with activity what agents do as well. What can be told at once is not given."""
        if not follow:
            async for found in self._stored(after, task_id, run_id):
                yield found
            return
        with (
            self._subscribed(_Subscriber(task_id, run_id, after, told)) as subscriber,
            self._activities.listen(subscriber.tell) if activity else nullcontext(),
        ):
            while True:
                if subscriber.behind:
                    # From here on events are handed to it again, also some that it reads itself.
                    subscriber.behind = False
                    async for found in self._stored(subscriber.after, task_id, run_id):
                        subscriber.after = found[-1].seq
                        yield found
                elif doing := await subscriber.wait():
                    yield doing

    async def run(self) -> None:
        """Hand new events to the subscribers, until cancelled; what fails is begun again."""
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
                found = await self._db.read(events.after, after)
                if found:
                    after = found[-1].seq
                    await self._hand(tuple(found))
                else:
                    await changed.wait(_LOOK_S)
                await asyncio.sleep(min(len(self._subscribers) * _TOGETHER_S, _LONGEST_S))
        self._somebody.clear()

    async def _hand(self, found: tuple[Event, ...]) -> None:
        told = list(self._subscribers)
        for start in range(0, len(told), _AT_ONCE):
            for subscriber in self._subscribers.intersection(told[start : start + _AT_ONCE]):
                subscriber.hand(found)
            await asyncio.sleep(0)

    async def _stored(
        self, after: int, task_id: str | None, run_id: str | None
    ) -> AsyncIterator[tuple[Event, ...]]:
        """The events that there are behind a number, so many at a time as one read gives."""
        while found := await self._db.read(events.after, after, task_id=task_id, run_id=run_id):
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
