"""The database itself: concurrency, watching."""

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from tests.integration.rows import task_row

from kapelle.domain.errors import Conflict
from kapelle.secrets.specs import SpecSecrets
from kapelle.store import events, tables
from kapelle.store.database import Connection, Database, connect, sqlite_url
from kapelle.store.migrate import migrate


async def test_a_write_wakes_a_watch_and_numbers_grow_without_reuse(db: Database) -> None:
    with db.watch() as changed:
        waiting = asyncio.create_task(changed.wait(30))
        await asyncio.sleep(0)
        await db.write(events.append, "one")
        await asyncio.wait_for(waiting, 5)
    first = await db.read(events.load_last_seq)
    await db.write(lambda c: c.execute(sa.text("DELETE FROM events")))
    await db.write(events.append, "two")
    assert await db.read(events.load_last_seq) > first


async def test_a_watch_for_keys_is_woken_by_events_about_them_and_by_nothing_else(
    db: Database,
) -> None:
    async def wakes(watched: tuple[str, ...], *event: str, within: float = 60) -> bool:
        with db.watch(*watched) as changed:
            await db.write(events.append, *event)
            begun = time.monotonic()
            await changed.wait(within)
            return time.monotonic() - begun < within

    row = task_row(id="task_a", run_id="run_a")
    await db.write(lambda connection: connection.execute(tables.tasks.insert(), row))
    assert await wakes(("task_a",), "attempt.started", "task_a")
    assert await wakes(("task_b", "run_a"), "attempt.started", "task_a")
    assert await wakes(("run_a",), "run.progress", "run_a")
    assert await wakes(("run.progress",), "run.progress", "run_a")
    assert not await wakes(("task_b", "run_b"), "attempt.started", "task_a", within=0.2)
    with db.watch("task_a") as changed, suppress(Conflict):
        await db.write(_append_and_fail)
        begun = time.monotonic()
        await changed.wait(0.2)
        assert time.monotonic() - begun >= 0.2


async def test_what_is_stored_though_nobody_awaits_it_any_more_wakes_and_keeps_its_secrets(
    db: Database, tmp_path: Path
) -> None:
    begun, secrets = threading.Event(), SpecSecrets(tmp_path)

    def store(connection: Connection) -> None:
        begun.set()
        time.sleep(0.2)
        events.append(connection, "run.created", "run_a")

    async def create() -> None:
        with secrets.keep_values("run_a", {"env": {"TOKEN": "very-secret"}}):
            await db.write(store)

    with db.watch("run_a") as changed:
        creation = asyncio.create_task(create())
        await asyncio.to_thread(begun.wait, 10)
        creation.cancel()
        async with asyncio.timeout(10):
            await changed.wait(60)
    assert [event.kind for event in await db.read(events.list_after, 0)] == ["run.created"]
    assert secrets.env("run_a") == {"TOKEN": "very-secret"}


def _append_and_fail(connection: Connection) -> None:
    events.append(connection, "attempt.started", "task_a")
    raise Conflict("taken back")


async def test_readers_see_event_numbers_in_the_order_of_commits(db: Database) -> None:
    other = Database(db.url)
    seen: list[int] = []

    async def writer(database: Database, number: int) -> None:
        for _ in range(20):
            await database.write(events.append, "tick", None, None, by=number)

    async def reader() -> None:
        while len(seen) < 80:
            after = seen[-1] if seen else 0
            seen.extend(event.seq for event in await db.read(events.list_after, after))
            await asyncio.sleep(0)

    await asyncio.gather(*(writer(d, n) for n, d in enumerate((db, other, db, other))), reader())
    assert seen == sorted(set(seen))
    assert len(seen) == 80
    other.close()


_WRITER = """
import sys
from kapelle.store.database import connect
from kapelle.store import events
engine = connect(sys.argv[1])
for number in range(100):
    with engine.begin() as connection:
        last = events.load_last_seq(connection)
        events.append(connection, "tick", number=last)
"""


def test_processes_write_at_once_without_a_lock_error(tmp_path: Path, exhaustive: bool) -> None:
    count = 8 if exhaustive else 4
    url = sqlite_url(tmp_path / "kapelle.db")
    engine = connect(url)
    migrate(engine)
    command = [sys.executable, "-c", _WRITER, url]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(count)]
    problems = [process.communicate()[1] for process in writers]
    assert [process.returncode for process in writers] == [0] * count, problems
    with engine.connect() as connection:
        assert events.load_last_seq(connection) == 100 * count
    engine.dispose()
