"""Schedules and firings as the database keeps them."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration.engine.timetable import MINUTE, NOON, Timetable

from kapelle.domain.errors import Conflict, InvalidInput, KapelleError, NotFound
from kapelle.domain.schedule import Outcome, ScheduleFilter, ScheduleSpec, ScheduleStatus
from kapelle.store import schedules, tables
from kapelle.store.database import Connection, Database

SECRET = {
    "prompt": "x",
    "directory": "/",
    "env": {"TOKEN": "s3cret"},
    "mcp": {"docs": {"url": "u"}},
}


@pytest.fixture
def timetable(db: Database, tmp_path: Path) -> Timetable:
    return Timetable(db, tmp_path)


async def test_any_unique_prefix_of_an_id_will_do(timetable: Timetable) -> None:
    first = await timetable.create(cron="* * * * *")
    second = await timetable.create(cron="* * * * *")
    for text in (first, first[:-1], first.removeprefix("schedule_").upper()):
        assert (await timetable.get(text)).id == first
    follower = await timetable.create(after=second[:-1])
    assert (await timetable.get(follower)).after == second
    with pytest.raises(InvalidInput, match="Several ids have"):
        await timetable.get(first[: len("schedule_") + 5])
    with pytest.raises(NotFound) as short:
        await timetable.get(first[-3:])
    assert short.value.hint == "Type at least 4 letters of the id."
    for text in ("schedule_zzzz", "?!", "schedule_" + "0" * 26):
        with pytest.raises(NotFound):
            await timetable.get(text)
        with pytest.raises(NotFound):
            await timetable.use.history(text)


async def test_pages_go_from_the_newest_to_the_oldest(timetable: Timetable) -> None:
    ids = [await timetable.create(cron="* * * * *", title=f"{n}") for n in range(5)]
    await timetable.use.pause(ids[2])
    page = await timetable.use.page(ScheduleFilter(limit=3))
    assert ([found.id for found in page.schedules], page.next_cursor) == (ids[:1:-1], ids[2])
    page = await timetable.use.page(ScheduleFilter(limit=3, cursor=page.next_cursor))
    assert ([found.id for found in page.schedules], page.next_cursor) == (ids[1::-1], None)
    page = await timetable.use.page(ScheduleFilter(status=[ScheduleStatus.PAUSED]))
    assert [found.id for found in page.schedules] == [ids[2]]


async def test_history_has_pages_too(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="* * * * *", overlap=True)
    await timetable.pass_time(5 * MINUTE)
    first = await timetable.use.history(schedule, 3)
    rest = await timetable.use.history(schedule, 3, first.next_cursor)
    minutes = [firing.slot.minute for firing in first.firings + rest.firings]
    assert (minutes, rest.next_cursor) == ([5, 4, 3, 2, 1], None)
    assert {firing.subject_status for firing in first.firings} == {"queued"}


async def test_a_key_makes_one_schedule_however_often_it_is_sent(timetable: Timetable) -> None:
    asked = ScheduleSpec.model_validate({"spec": SECRET, "at": NOON + MINUTE, "title": "x"})
    first = await timetable.use.create(asked, "key")
    again = await timetable.use.create(asked, "key")
    assert again == first
    other = asked.model_copy(update={"at": NOON + 2 * MINUTE})
    with pytest.raises(Conflict, match="used for another schedule"):
        await timetable.use.create(other, "key")


async def test_a_slot_is_written_down_once(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="* * * * *")

    def twice(connection: Connection) -> list[bool]:
        values = (schedule, NOON, Outcome.SKIPPED, NOON)
        return [schedules.record_firing(connection, *values) for _ in range(2)]

    assert await timetable.db.write(twice) == [True, False]


async def test_the_history_is_shortened_but_keeps_what_is_still_needed(
    timetable: Timetable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "KEPT", 10)
    schedule = await timetable.create(cron="* * * * *")
    await timetable.pass_time(30 * MINUTE)
    history = await timetable.history(schedule)
    # The first is still going: without its firing a second one would be started beside it.
    assert history[0].outcome is Outcome.STARTED
    assert len(history) == 11
    assert {firing.outcome for firing in history[1:]} == {Outcome.SKIPPED}
    await timetable.end_last(schedule)
    await timetable.pass_time(MINUTE)
    assert history[0] not in await timetable.history(schedule)


async def test_what_was_followed_is_remembered_as_long_as_what_it_followed(
    timetable: Timetable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "KEPT", 3)
    leader = await timetable.create(cron="0 0 1 1 *")
    follower = await timetable.create(after=leader, overlap=True)
    followed = (await timetable.use.run_now(leader)).slot
    await timetable.end_last(leader)
    await timetable.tick()
    for _ in range(6):
        subject = (await timetable.use.run_now(follower)).subject
        assert subject is not None
        await timetable.work.end(subject, "completed")
    (answered,) = [f for f in await timetable.history(follower) if f.slot == followed]
    assert answered.subject is not None
    await timetable.work.end(answered.subject, "completed")
    await timetable.use.run_now(follower)
    await timetable.tick(MINUTE)
    # It is the oldest of all, and without it the work of the leader would be followed again.
    assert answered.slot == (await timetable.history(follower))[0].slot
    assert len(timetable.work.asked) == 1 + 1 + 7


async def test_ended_schedules_are_forgotten_unless_another_comes_after_them(
    timetable: Timetable, db: Database
) -> None:
    led, old, young, going = [await timetable.create(cron="* * * * *") for _ in range(4)]
    follower = await timetable.create(after=led)
    await timetable.pass_time(2 * MINUTE)
    for schedule in (led, old):
        await timetable.use.cancel(schedule)
    await timetable.pass_time(60 * MINUTE)
    await timetable.use.cancel(young)
    await db.write(schedules.delete_ended, NOON + 30 * MINUTE, 100)
    page = await timetable.use.page(ScheduleFilter())
    assert {found.id for found in page.schedules} == {led, young, going, follower}
    assert await db.read(_firings_of, old) == 0
    assert await db.read(_firings_of, led) > 0


def _firings_of(connection: Connection, schedule_id: str) -> int:
    query = sa.select(sa.func.count()).where(tables.firings.c.schedule_id == schedule_id)
    return connection.execute(query).scalar() or 0


async def test_secrets_are_in_a_private_file_and_not_in_the_database(
    timetable: Timetable, tmp_path: Path
) -> None:
    schedule = await timetable.create(cron="* * * * *", spec=SECRET, max_runs=2)
    path = tmp_path / f"{schedule}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    shown = await timetable.get(schedule)
    assert (shown.spec["env"], shown.spec["mcp"]) == (["TOKEN"], ["docs"])
    await timetable.tick(MINUTE)
    assert timetable.work.asked[-1][1] == SECRET
    assert "s3cret" not in await timetable.db.read(_everything)
    await timetable.end_last(schedule)
    await timetable.tick(MINUTE)
    assert timetable.work.asked[-1][1] == SECRET
    assert not path.exists()


def _everything(connection: Connection) -> str:
    found: list[Any] = []
    for table in tables.metadata.sorted_tables:
        found += connection.execute(sa.select(table)).all()
    return repr(found)


@pytest.mark.parametrize("end", ["cancel", "expire"])
async def test_the_secrets_of_an_ended_schedule_are_deleted(
    timetable: Timetable, tmp_path: Path, end: str
) -> None:
    expires_at = NOON + 30 * MINUTE
    schedule = await timetable.create(cron="0 0 * * *", spec=SECRET)
    await timetable.db.write(schedules.update, schedule, expires_at=expires_at)
    if end == "cancel":
        await timetable.use.cancel(schedule)
    else:
        await timetable.tick(30 * MINUTE)
    assert list(tmp_path.glob("schedule_*.json")) == []


async def test_secrets_that_a_crash_left_are_deleted_and_others_stay(
    timetable: Timetable, tmp_path: Path
) -> None:
    going = await timetable.create(cron="0 0 * * *", spec=SECRET)
    ended = await timetable.create(cron="0 0 * * *", spec=SECRET)
    await timetable.db.write(schedules.update, ended, status=ScheduleStatus.COMPLETED)
    for name in ("schedule_lost", "schedule_new", "task_other"):
        (tmp_path / f"{name}.json").write_text("{}", encoding="utf-8")
    for path in tmp_path.glob("*.json"):
        if path.stem != "schedule_new":
            os.utime(path, (0, 0))
    timetable.restart()
    await timetable.tick()
    left = {path.stem for path in tmp_path.glob("*.json")}
    assert left == {going, "schedule_new", "task_other"}


async def test_a_schedule_whose_secrets_are_gone_says_so(
    timetable: Timetable, tmp_path: Path
) -> None:
    schedule = await timetable.create(cron="* * * * *", spec=SECRET)
    (tmp_path / f"{schedule}.json").unlink()
    await timetable.tick(MINUTE)
    (firing,) = await timetable.history(schedule)
    assert firing.outcome is Outcome.FAILED
    assert "were deleted" in str(firing.reason)


async def test_a_refused_schedule_leaves_nothing_behind(
    timetable: Timetable, tmp_path: Path
) -> None:
    with pytest.raises(KapelleError):
        await timetable.create(after="schedule_zzzz", spec=SECRET)
    assert list(tmp_path.glob("*.json")) == []
    assert (await timetable.use.page(ScheduleFilter())).schedules == []


async def test_text_that_no_database_keeps_is_replaced(timetable: Timetable) -> None:
    spec = {"prompt": "half \ud800", "directory": "/", "env": {"A": "half \ud800"}}
    schedule = await timetable.create(at=NOON + timedelta(seconds=30), spec=spec, title="x")
    shown = await timetable.get(schedule)
    shown.model_dump_json().encode()
    assert shown.spec["prompt"] == "half ?"
