"""The history is read once for all who follow it, and each is told everything once, in order."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from kapelle.domain.task import Event
from kapelle.engine.tasks.activity import Activities
from kapelle.service import events as streams
from kapelle.service.events import EventService
from kapelle.store import events
from kapelle.store.database import Connection, Database

MANY = 200


@pytest.fixture
async def history(db: Database) -> AsyncIterator[EventService]:
    service = EventService(db, Activities())
    publishing = asyncio.create_task(service.run())
    yield service
    publishing.cancel()


def _append(connection: Connection, numbers: range, run_id: str | None = None) -> None:
    for number in numbers:
        events.append(connection, "test", run_id, number=number)


async def follow(
    history: EventService,
    count: int,
    after: int = 0,
    pause: Callable[[], float] = float,
    **about: Any,
) -> list[int]:
    """The numbers of the next events; pause says how many seconds it takes to send some."""
    about = {"task_id": None, "run_id": None, **about}
    seen: list[int] = []
    async with aclosing(history.stream(after, follow=True, **about)) as stream:  # type: ignore[type-var]
        async for some in stream:
            seen += [event.seq for event in some if isinstance(event, Event)]
            if len(seen) >= count:
                break
            await asyncio.sleep(pause())
    return seen


@contextmanager
def statements(db: Database) -> Iterator[list[str]]:
    """What is asked of the history meanwhile."""
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM events" in statement:
            asked.append(statement)

    sa.event.listen(db.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        sa.event.remove(db.engine, "before_cursor_execute", note)


async def test_an_event_is_read_once_for_all_subscribers(
    db: Database, history: EventService
) -> None:
    with statements(db) as asked:
        following = [asyncio.create_task(follow(history, 20)) for _ in range(MANY)]
        before = -1
        # Until each has read what there was before it came, which takes a statement at least.
        while before != len(asked) or before < MANY:
            before = len(asked)
            await asyncio.sleep(0.3)
        asked.clear()
        for number in range(20):
            await db.write(_append, range(number, number + 1))
        assert all(seen == [*range(1, 21)] for seen in await asyncio.gather(*following))
    assert len(asked) <= 45  # each once, and a look that finds nothing after each


async def test_whoever_comes_amid_the_writing_misses_and_repeats_nothing(
    db: Database, history: EventService
) -> None:
    chance = random.Random(1)

    async def write() -> None:
        for number in range(0, 300, 5):
            await db.write(_append, range(number, number + 5))

    async def come() -> None:
        for _ in range(5):
            await asyncio.sleep(chance.random() / 50)
            after = chance.randrange(100)
            seen = await follow(history, 50, after, lambda: chance.random() / 100)
            assert seen == [*range(after + 1, after + 1 + len(seen))]

    await asyncio.gather(write(), *(come() for _ in range(20)))


async def test_a_slow_subscriber_goes_on_where_it_was(db: Database, history: EventService) -> None:
    seen: list[int] = []
    async with aclosing(history.stream(0, None, follow=True)) as found:  # type: ignore[type-var]
        await db.write(_append, range(1))
        async for some in found:
            seen += [event.seq for event in some if isinstance(event, Event)]
            assert len(some) <= 500
            if len(seen) == 1:
                for number in range(1, 200):
                    await db.write(_append, range(number, number + 1))
            if len(seen) == 200:
                break
    assert seen == [*range(1, 201)]


async def test_one_run_can_be_followed_alone(db: Database, history: EventService) -> None:
    following = asyncio.create_task(follow(history, 3, run_id="run_1"))
    await asyncio.sleep(0.2)
    for number in range(9):
        await db.write(_append, range(number, number + 1), f"run_{number % 3}")
    assert await following == [2, 5, 8]


async def test_a_history_that_cannot_be_read_for_a_while_loses_nothing(
    db: Database, history: EventService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_LOOK_S", 0.05)
    broken = [True]

    def after(*args: Any, **kwargs: Any) -> list[Event]:
        rows = found(*args, **kwargs)
        if rows and broken and broken.pop():
            raise RuntimeError("the disk is away")
        return rows

    found = events.list_after
    monkeypatch.setattr(events, "list_after", after)
    with statements(db) as asked:
        following = asyncio.create_task(follow(history, 2))
        while len(asked) < 5:  # noqa: ASYNC110  it follows, and looks again and again
            await asyncio.sleep(0.05)
    await db.write(_append, range(2))
    assert await following == [1, 2]
    assert not broken


async def test_nobody_reads_when_nobody_follows(db: Database, history: EventService) -> None:
    assert [event async for event in history.stream(0, None, follow=False)] == []
    with statements(db) as asked:
        await db.write(_append, range(3))
        await asyncio.sleep(0.2)
    assert asked == []
    await db.write(_append, range(1))
    assert await follow(history, 2, after=2) == [3, 4]
