"""Backups of databases in use: sound, one at a time, no more than are wanted; and damage."""

import asyncio
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kapelle.domain.errors import Unavailable
from kapelle.store import backup, events
from kapelle.store.database import Connection, Database, connect, sqlite_url
from kapelle.store.migrate import migrate


async def test_a_backup_made_under_load_is_sound_and_old_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "kapelle.db"
    db = Database(sqlite_url(path))
    migrate(db.engine)

    async def load() -> None:
        for _ in range(200):
            await db.write(events.append, "tick")

    loading = asyncio.create_task(load())
    made = [
        await asyncio.to_thread(backup.create, path, tmp_path / "b", (2, 0, 0)) for _ in range(4)
    ]
    await loading
    assert backup.list_backups(tmp_path / "b") == made[-2:]
    with closing(sqlite3.connect(made[-1] / "kapelle.db")) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert copy.execute("SELECT count(*) FROM alembic_version").fetchone()[0] == 1
    db.close()


def test_a_damaged_database_is_found_on_start_and_the_backup_named(tmp_path: Path) -> None:
    path = tmp_path / "kapelle.db"
    engine = connect(sqlite_url(path))
    migrate(engine)
    with engine.begin() as connection:
        _fill(connection)
    engine.dispose()
    copy = backup.create(path, tmp_path / "backups")
    for leftover in tmp_path.glob("kapelle.db-*"):
        leftover.unlink()
    content = bytearray(path.read_bytes())
    content[8192:20480] = b"\xa5" * 12288
    path.write_bytes(content)
    with pytest.raises(Unavailable, match="damaged") as caught:
        backup.require_sound(path, tmp_path / "backups")
    assert str(copy / "kapelle.db") in (caught.value.hint or "")


def _fill(connection: Connection) -> None:
    for number in range(2000):
        events.append(connection, "tick", number=number)


def _database(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")
        connection.executemany("INSERT INTO numbers VALUES (?)", [(n,) for n in range(50_000)])
        connection.commit()
    return path


def test_backups_made_at_once_are_all_whole(tmp_path: Path) -> None:
    path, directory = _database(tmp_path / "kapelle.db"), tmp_path / "backups"
    with ThreadPoolExecutor(6) as threads:
        made = list(threads.map(lambda _: backup.create(path, directory), range(6)))
    assert backup.list_backups(directory) == sorted(made)
    for copy in made:
        with closing(sqlite3.connect(copy / "kapelle.db")) as connection:
            assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (50_000,)


def test_what_a_dead_process_left_unfinished_is_cleaned_up(tmp_path: Path) -> None:
    path, directory = _database(tmp_path / "kapelle.db"), tmp_path / "backups"
    leftover = directory / ".20200101T000000.000000Z"
    leftover.mkdir(parents=True)
    (leftover / "kapelle.db").write_bytes(b"half")
    made = backup.create(path, directory)
    assert list(directory.iterdir()) == [made]


def test_a_backup_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path, directory = tmp_path / "kapelle.db", tmp_path / "backups"
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        backup.create(path, directory)
    assert list(directory.iterdir()) == []


def test_the_new_backup_is_kept_even_if_none_is_wanted_or_the_clock_went_back(
    tmp_path: Path,
) -> None:
    path, directory = _database(tmp_path / "kapelle.db"), tmp_path / "backups"
    for year in (2020, 2999):
        (directory / f"{year}0101T000000.000000Z").mkdir(parents=True)
    made = backup.create(path, directory, (0, 0, 0))
    assert backup.list_backups(directory) == [made]


def test_the_age_of_a_backup_is_read_from_its_name(tmp_path: Path) -> None:
    assert not backup.has_recent(tmp_path / "missing", 3600)
    (tmp_path / "2 of mine").mkdir()
    (tmp_path / "29990101T000000.000000Z").mkdir()
    assert not backup.has_recent(tmp_path, 3600)
    old = datetime.now(UTC) - timedelta(minutes=10)
    (tmp_path / old.strftime("%Y%m%dT%H%M%S.%fZ")).mkdir()
    assert backup.has_recent(tmp_path, 3600)
    assert not backup.has_recent(tmp_path, 60)


def _named(directory: Path, moment: datetime) -> Path:
    path = directory / moment.strftime("%Y%m%dT%H%M%S.%fZ")
    path.mkdir(parents=True)
    return path


def test_backups_are_graded_by_hours_days_and_weeks(tmp_path: Path) -> None:
    path, directory = _database(tmp_path / "kapelle.db"), tmp_path / "backups"
    now = datetime.now(UTC).replace(microsecond=0)
    hourly = [_named(directory, now - timedelta(hours=age)) for age in range(1, 24 * 40)]
    made = backup.create(path, directory, (24, 7, 4))
    left = backup.list_backups(directory)
    assert made in left
    assert {*hourly[:23]} <= {*left}
    ages = [(now - datetime.strptime(copy.name, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)).days
            for copy in left]  # fmt: skip
    assert 24 + 5 <= len(left) <= 24 + 7 + 4
    assert {1, 2, 3, 4, 5} <= {*ages}
    assert max(ages) in range(14, 29)


def test_a_copy_that_lost_most_rows_never_replaces_a_fuller_one(tmp_path: Path) -> None:
    path, directory = tmp_path / "kapelle.db", tmp_path / "backups"
    engine = connect(sqlite_url(path))
    migrate(engine)
    with engine.begin() as connection:
        _fill(connection)
    full = backup.create(path, directory, (2, 0, 0))
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM events WHERE seq > 900")
    for _ in range(5):
        made = backup.create(path, directory, (2, 0, 0))
    assert full in backup.list_backups(directory)
    assert len(backup.list_backups(directory)) == 3
    assert str(full) in backup.format_advice(path, directory)
    with engine.begin() as connection:
        _fill(connection)
    for _ in range(2):
        made = backup.create(path, directory, (2, 0, 0))
    assert full not in backup.list_backups(directory)
    assert str(made) in backup.format_advice(path, directory)
    engine.dispose()


@pytest.mark.parametrize("what", ["gone", "zero", "new"])
@pytest.mark.parametrize("trace", ["attempts", "backups"])
def test_an_empty_database_beside_traces_of_work_is_refused(
    tmp_path: Path, what: str, trace: str
) -> None:
    path, backups, attempts = (tmp_path / name for name in ("kapelle.db", "backups", "attempts"))
    attempts.mkdir()
    engine = connect(sqlite_url(path))
    migrate(engine)
    with engine.begin() as connection:
        events.append(connection, "tick")
    backup.require_not_lost(path, backups, attempts)
    if trace == "attempts":
        (attempts / "attempt_1").mkdir()
    else:
        backup.create(path, backups)
    backup.require_not_lost(path, backups, attempts)
    engine.dispose()
    path.unlink()
    if what == "zero":
        path.touch()
    elif what == "new":
        migrate(engine)
        engine.dispose()
    with pytest.raises(Unavailable, match="there was work here before"):
        backup.require_not_lost(path, backups, attempts)


async def test_rows_are_rescued_from_a_home_that_is_gone_as_soon_as_they_can_be(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path, backups = home / "kapelle.db", home / "backups"
    db = Database(sqlite_url(path))
    migrate(db.engine)
    db.guard(path, backups)
    await db.write(events.append, "tick")
    shutil.rmtree(home)
    home.touch()  # in the way
    with pytest.raises(FileExistsError):
        await db.rescue()
    home.unlink()
    made = await db.rescue()
    assert made is not None
    assert backup.count_rows(made / "kapelle.db") == 1
    assert [place.stat().st_mode & 0o777 for place in (home, backups)] == [0o700] * 2
    assert await db.rescue() is None, "once is enough"
    db.close()


async def test_backups_are_counted_once_however_often_one_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, backups = _database(tmp_path / "kapelle.db"), tmp_path / "backups"
    old = backup.create(path, backups)
    db = Database(sqlite_url(path))
    db.guard(path, backups)
    assert await db.find_problem() is None
    path.unlink()
    counting: list[bool] = []
    advice = backup.format_advice

    def counted(*places: Path) -> str:
        counting.append(threading.current_thread() is threading.main_thread())
        return advice(*places)

    monkeypatch.setattr(backup, "format_advice", counted)
    assert db.problem is not None
    assert str(backups) in (db.problem.hint or "")
    found = await asyncio.gather(*(db.find_problem() for _ in range(5)))
    assert all(problem and str(old) in (problem.hint or "") for problem in found)
    assert str(old) in (db.problem.hint or "")
    assert counting == [False]
    shutil.rmtree(old)
    await db.find_problem()
    assert counting == [False] * 2, "a backup that is gone is not named"
    assert str(old) not in (db.problem.hint or "")
    db.close()
