"""Schedules that repeat so long after each success, on both databases."""

from datetime import timedelta

from tests.integration.engine.timetable import DAY, HOUR, MINUTE, Timetable

from kapelle.domain.schedule import ScheduleStatus


async def test_what_repeats_begins_at_once_and_goes_on_so_long_after_each_success(
    timetable: Timetable,
) -> None:
    schedule = await timetable.create(every_s=600)
    await timetable.tick()
    assert len(await timetable.started(schedule)) == 1
    await timetable.pass_time(HOUR, 5 * MINUTE)
    assert len(await timetable.started(schedule)) == 1
    assert "waits until task_" in str((await timetable.get(schedule)).reason)
    await timetable.end_last(schedule)
    await timetable.pass_time(9 * MINUTE + timedelta(seconds=40))
    assert len(await timetable.started(schedule)) == 1
    await timetable.tick(timedelta(seconds=20))
    assert len(await timetable.started(schedule)) == 2


async def test_what_repeats_makes_no_haste_after_a_downtime_and_misses_nothing(
    timetable: Timetable,
) -> None:
    schedule = await timetable.create(every_s=60)
    await timetable.tick()
    await timetable.end_last(schedule)
    await timetable.tick(5 * HOUR)
    await timetable.tick()
    assert len(await timetable.started(schedule)) == 2
    assert (await timetable.get(schedule)).status is ScheduleStatus.ACTIVE


async def test_what_repeats_fails_with_its_work(timetable: Timetable) -> None:
    schedule = await timetable.create(every_s=60)
    await timetable.tick()
    task = await timetable.end_last(schedule, "failed", "the check broke")
    await timetable.tick(MINUTE)
    expected = (ScheduleStatus.FAILED, f"{task} failed: the check broke")
    assert await timetable.status(schedule) == expected
    await timetable.pass_time(HOUR, 5 * MINUTE)
    assert len(await timetable.started(schedule)) == 1


async def test_what_repeats_pauses_when_a_person_cancels_its_work_and_can_be_resumed(
    timetable: Timetable,
) -> None:
    schedule = await timetable.create(every_s=60)
    await timetable.tick()
    task = await timetable.end_last(schedule, "cancelled")
    await timetable.tick(MINUTE)
    assert await timetable.status(schedule) == (ScheduleStatus.PAUSED, f"{task} was cancelled")
    await timetable.use.resume(schedule)
    await timetable.tick()
    assert len(await timetable.started(schedule)) == 2
    assert (await timetable.get(schedule)).status is ScheduleStatus.ACTIVE


async def test_what_repeats_does_not_wait_for_a_clock_that_went_back(timetable: Timetable) -> None:
    schedule = await timetable.create(every_s=600)
    await timetable.tick()
    await timetable.end_last(schedule)
    await timetable.tick()
    timetable.clock.forward(-DAY)
    await timetable.pass_time(9 * MINUTE)
    assert len(await timetable.started(schedule)) == 1
    await timetable.pass_time(2 * MINUTE)
    assert len(await timetable.started(schedule)) == 2
    # The second is the last one, although the clock had shown a later time before.
    await timetable.end_last(schedule)
    await timetable.pass_time(11 * MINUTE)
    assert len(await timetable.started(schedule)) == 3


async def test_what_repeats_does_not_wait_for_the_work_of_another(timetable: Timetable) -> None:
    first = await timetable.create(every_s=60)
    second = await timetable.create(every_s=60)
    await timetable.tick()
    await timetable.end_last(first)
    await timetable.tick(MINUTE)
    assert [len(await timetable.started(found)) for found in (first, second)] == [2, 1]
