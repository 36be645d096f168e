"""The scheduler dies before and after each of its writes and starts; every slot is started once."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.integration.engine.timetable import DAY, HOUR, MINUTE, NOON, Timetable

from kapelle.domain.errors import Conflict
from kapelle.domain.schedule import Outcome
from kapelle.store import tables
from kapelle.store.database import Database, sqlite_url
from kapelle.store.migrate import migrate

STEPS = 14


class Crash(BaseException):
    """As final as kill -9: nothing in between catches it."""


class Brittle:
    """A database at one of whose writes the process dies, before it is made or right after."""

    def __init__(self, db: Database, dies_at: int, made: bool) -> None:
        self._db = db
        self._dies_at = dies_at
        self._made = made
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    async def write(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.writes += 1
        if self.writes == self._dies_at and not self._made:
            raise Crash
        result = await self._db.write(work, *args, **kwargs)
        if self.writes == self._dies_at:
            raise Crash
        return result


async def play(db: Database, directory: Path, dies_at: int = 0, made: bool = False) -> Any:
    """A quarter of an hour with every kind of schedule; work that was started takes two minutes."""
    brittle = Brittle(db, dies_at, made)
    timetable = Timetable(db, directory)
    kinds: dict[str, dict[str, Any]] = {
        "minutes": {"cron": "*/2 * * * *", "max_runs": 3, "overlap": True},
        "caught": {"cron": "*/5 * * * *", "missed": "catchup", "kind": "loop"},
        "once": {"at": NOON + 3 * MINUTE},
        "again": {"every_s": 60},
    }
    ids = {name: await timetable.create(**values) for name, values in kinds.items()}
    ids["after"] = await timetable.create(after=ids["once"])
    ids["held"] = await timetable.create(at=NOON + 3 * MINUTE, after=ids["once"])
    # What starts the work dies with the scheduler.
    timetable.work.db = brittle  # type: ignore[assignment]
    timetable.restart(brittle)  # type: ignore[arg-type]
    begun: dict[str, int] = {}
    for step in range(STEPS):
        timetable.clock.forward(MINUTE if step != 7 else 7 * MINUTE)
        try:
            await timetable.scheduler.tick()
        except Crash:
            timetable.restart(brittle)  # type: ignore[arg-type]
            await timetable.scheduler.tick()
        timetable.work.db = db
        for schedule in ids.values():
            for subject in (await timetable.get(schedule)).in_flight:
                if begun.setdefault(subject, step) <= step - 2:
                    await timetable.work.end(subject, "completed")
        timetable.work.db = brittle  # type: ignore[assignment]
    story = {}
    for name, schedule in ids.items():
        history = await timetable.history(schedule)
        shown = await timetable.get(schedule)
        assert len(await timetable.started(schedule)) == shown.started
        firings = [(firing.slot, firing.outcome) for firing in history]
        story[name] = (shown.status, shown.started, firings)
    keys = [key for _, _, key in timetable.work.asked]
    assert len(set(keys)) == sum(started for _, started, _ in story.values())
    return story, brittle.writes


async def clear(db: Database) -> None:
    def delete(connection: sa.Connection) -> None:
        for table in reversed(tables.metadata.sorted_tables):
            connection.execute(table.delete())

    await db.write(delete)


async def test_each_slot_is_started_once_whichever_write_is_the_last(
    db: Database, tmp_path: Path, exhaustive: bool, sampling: random.Random
) -> None:
    undisturbed, writes = await play(db, tmp_path)
    assert {name: started for name, (_, started, _) in undisturbed.items()} == {
        "minutes": 3, "caught": 3, "once": 1, "again": 5, "after": 1, "held": 1,
    }  # fmt: skip
    # Right after one write is as good as right before the next.
    deaths = range(writes + 1)
    for dies_at in deaths if exhaustive else sampling.sample(deaths, 12 if db.is_sqlite else 4):
        await clear(db)
        disturbed, _ = await play(db, tmp_path, dies_at or 1, made=dies_at > 0)
        assert disturbed == undisturbed, f"write {dies_at}"


@pytest.fixture(scope="module")
def own_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Path]]:
    directory = tmp_path_factory.mktemp("timetable")
    database = Database(sqlite_url(directory / "kapelle.db"))
    migrate(database.engine)
    yield database, directory
    database.close()


Action = tuple[str, Any]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 90)),
        st.tuples(st.just("jump"), st.sampled_from([-DAY, -HOUR, HOUR, DAY])),
        st.tuples(st.just("end"), st.sampled_from(["completed", "failed", "cancelled"])),
        st.tuples(st.sampled_from(["pause", "resume", "run_now", "restart"]), st.none()),
        st.tuples(st.just("crash"), st.tuples(st.integers(1, 4), st.booleans())),
    ),
    max_size=25,
)


@given(
    actions=ACTIONS,
    missed=st.sampled_from(["skip", "catchup"]),
    overlap=st.booleans(),
    max_runs=st.one_of(st.none(), st.integers(1, 4)),
)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_no_slot_is_started_twice_and_no_work_overlaps(
    own_database: tuple[Database, Path],
    actions: list[Action],
    missed: str,
    overlap: bool,
    max_runs: int | None,
) -> None:
    asyncio.run(_explore(*own_database, actions, missed, overlap, max_runs))


async def _explore(
    db: Database,
    directory: Path,
    actions: list[Action],
    missed: str,
    overlap: bool,
    max_runs: int | None,
) -> None:
    await clear(db)
    timetable = Timetable(db, directory)
    schedule = await timetable.create(
        cron="*/10 * * * *", missed=missed, overlap=overlap, max_runs=max_runs
    )
    for name, value in actions:
        await _act(timetable, schedule, name, value)
        shown = await timetable.get(schedule)
        assert overlap or len(shown.in_flight) <= 1
        assert shown.started == len(await timetable.started(schedule))
        assert max_runs is None or shown.started <= max_runs
    history = await timetable.history(schedule)
    assert Outcome.STARTING not in {firing.outcome for firing in history}
    by_person = {firing.slot for firing in history if firing.reason == "run by a person"}
    slots = {firing.slot for firing in history} - by_person
    assert all((slot - NOON) % (10 * MINUTE) == 0 * MINUTE for slot in slots)


async def _act(timetable: Timetable, schedule: str, name: str, value: Any) -> None:
    match name:
        case "wait":
            await timetable.tick(value * MINUTE)
        case "jump":
            await timetable.tick(value)
        case "end":
            for subject in (await timetable.get(schedule)).in_flight[:1]:
                await timetable.work.end(subject, value)
        case "restart":
            timetable.restart()
        case "crash":
            brittle = Brittle(timetable.db, *value)
            timetable.work.db = brittle  # type: ignore[assignment]
            timetable.restart(brittle)  # type: ignore[arg-type]
            with contextlib.suppress(Crash):
                await timetable.tick(10 * MINUTE)
            timetable.work.db = timetable.db
            timetable.restart()
            await timetable.tick()
        case _:
            try:
                await getattr(timetable.use, name)(schedule)
            except Conflict:
                return
