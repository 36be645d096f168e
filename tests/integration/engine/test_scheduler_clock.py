"""Schedules under a clock that jumps, on both databases: expiry, zones, there and back."""

from datetime import timedelta

import pytest
from tests.integration.engine.timetable import DAY, HOUR, MINUTE, NOON, Timetable

from kapelle.domain.schedule import Outcome, ScheduleStatus

STARTED, MISSED = Outcome.STARTED, Outcome.MISSED


async def test_nothing_starts_after_the_expiry(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="*/10 * * * *", expires_at=NOON + 20 * MINUTE)
    await timetable.pass_time(9 * MINUTE)
    assert (await timetable.get(schedule)).next_at == NOON + 10 * MINUTE
    await timetable.pass_time(2 * MINUTE)
    shown = await timetable.get(schedule)
    assert (shown.next_at, shown.status) == (None, ScheduleStatus.ACTIVE)
    await timetable.pass_time(HOUR)
    assert await timetable.status(schedule) == (ScheduleStatus.EXPIRED, "expired")
    assert await timetable.outcomes(schedule) == [("12:10", STARTED)]


async def test_a_slot_before_the_expiry_that_is_found_just_after_it_counts(
    timetable: Timetable,
) -> None:
    schedule = await timetable.create(
        cron="* * * * *", expires_at=NOON + timedelta(seconds=61), missed="catchup"
    )
    await timetable.tick(timedelta(seconds=70))
    assert await timetable.outcomes(schedule) == [("12:01", STARTED)]
    assert (await timetable.get(schedule)).status is ScheduleStatus.EXPIRED


@pytest.mark.parametrize("missed", ["skip", "catchup"])
async def test_what_was_missed_is_not_made_up_for_after_the_expiry(
    timetable: Timetable, missed: str
) -> None:
    schedule = await timetable.create(
        cron="*/10 * * * *", expires_at=NOON + 35 * MINUTE, missed=missed
    )
    await timetable.tick(HOUR)
    assert await timetable.outcomes(schedule) == [("12:30", MISSED)]
    assert (await timetable.get(schedule)).status is ScheduleStatus.EXPIRED


async def test_a_paused_schedule_expires_too_and_so_does_one_that_waits(
    timetable: Timetable,
) -> None:
    expires_at = NOON + HOUR
    paused = await timetable.create(cron="* * * * *", expires_at=expires_at)
    repeating = await timetable.create(every_s=60, expires_at=expires_at)
    follower = await timetable.create(after=repeating, expires_at=expires_at)
    await timetable.use.pause(paused)
    await timetable.tick()
    await timetable.tick(HOUR)
    for schedule in (paused, repeating, follower):
        assert (await timetable.get(schedule)).status is ScheduleStatus.EXPIRED
    assert len(await timetable.started(repeating)) == 1


async def test_zones_are_kept_across_a_change_of_clocks(timetable: Timetable) -> None:
    timetable.clock.moment = NOON.replace(month=10, day=24)
    schedule = await timetable.create(cron="30 2 * * *", timezone="Europe/Berlin")
    for _ in range(4 * 60):
        await timetable.tick(15 * MINUTE)
        for subject in (await timetable.get(schedule)).in_flight:
            await timetable.work.end(subject, "completed")
    slots = [f"{firing.slot:%d %H:%M}" for firing in await timetable.history(schedule)]
    # Summer time ends in the night to the 25th.
    assert slots == ["25 00:30", "26 01:30"]


@pytest.mark.parametrize("jump", [HOUR, DAY])
@pytest.mark.parametrize("missed", ["skip", "catchup"])
async def test_a_clock_that_goes_back_has_no_slot_started_twice(
    timetable: Timetable, jump: timedelta, missed: str
) -> None:
    schedule = await timetable.create(cron="*/20 * * * *", overlap=True, missed=missed)
    await timetable.pass_time(HOUR)
    before = await timetable.history(schedule)
    assert [firing.outcome for firing in before] == [STARTED] * 3
    timetable.clock.forward(-jump)
    await timetable.pass_time(jump, 10 * MINUTE)
    assert await timetable.history(schedule) == before
    await timetable.pass_time(21 * MINUTE)
    assert len(await timetable.started(schedule)) == 4


@pytest.mark.parametrize("jump", [HOUR, DAY])
async def test_a_clock_that_goes_forward_and_back_loses_and_doubles_nothing(
    timetable: Timetable, jump: timedelta
) -> None:
    schedule = await timetable.create(cron="*/20 * * * *", overlap=True)
    await timetable.pass_time(25 * MINUTE)
    await timetable.tick(jump)
    first, missed = await timetable.history(schedule)
    assert (first.outcome, missed.outcome) == (STARTED, MISSED)
    assert missed.reason is not None
    assert missed.reason.startswith(f"{jump // (20 * MINUTE)} slots were missed")
    timetable.clock.forward(-jump)
    # These were told as missed, so they are not started now.
    await timetable.pass_time(jump, 10 * MINUTE)
    assert await timetable.started(schedule) == [first.subject]
    await timetable.pass_time(21 * MINUTE)
    assert len(await timetable.started(schedule)) == 2
