"""What people do to schedules, on both databases: pause, resume, cancel, run now."""

import pytest
from tests.integration.engine.timetable import HOUR, MINUTE, NOON, Timetable

from kapelle.domain.errors import Conflict, KapelleError
from kapelle.domain.schedule import Outcome, ScheduleStatus
from kapelle.service.schedules import CancelSchedule

STARTED, SKIPPED, HELD, FAILED = Outcome.STARTED, Outcome.SKIPPED, Outcome.HELD, Outcome.FAILED


async def test_while_paused_nothing_starts_and_nothing_is_made_up_for(
    timetable: Timetable,
) -> None:
    leader = await timetable.create(cron="*/10 * * * *", overlap=True)
    follower = await timetable.create(after=leader)
    repeating = await timetable.create(every_s=60)
    once = await timetable.create(at=NOON + 20 * MINUTE)
    await timetable.tick(11 * MINUTE)
    for schedule in (follower, repeating, once):
        await timetable.use.pause(schedule)
    await timetable.end_last(leader)
    await timetable.end_last(repeating)
    await timetable.use.pause(leader)
    with pytest.raises(Conflict, match="is paused already"):
        await timetable.use.pause(leader)
    await timetable.pass_time(HOUR, 5 * MINUTE)
    counts = [len(await timetable.started(s)) for s in (leader, follower, repeating, once)]
    assert counts == [1, 0, 1, 0]
    for schedule in (leader, follower, repeating, once):
        await timetable.use.resume(schedule)
    with pytest.raises(Conflict, match="is not paused"):
        await timetable.use.resume(leader)
    await timetable.tick(MINUTE)
    counts = [len(await timetable.started(s)) for s in (leader, follower, repeating, once)]
    assert counts == [1, 0, 2, 0]
    assert (await timetable.history(follower))[0].reason == "the schedule was paused"
    expected = (ScheduleStatus.EXPIRED, "its time passed while it was paused")
    assert await timetable.status(once) == expected
    await timetable.pass_time(10 * MINUTE)
    assert len(await timetable.started(leader)) == 2


async def test_pausing_survives_a_restart_and_lets_go_of_what_is_held_back(
    timetable: Timetable,
) -> None:
    leader = await timetable.create(at=NOON + MINUTE)
    follower = await timetable.create(cron="* * * * *", after=leader)
    await timetable.pass_time(MINUTE)
    assert await timetable.outcomes(follower) == [("12:01", HELD)]
    await timetable.use.pause(follower)
    await timetable.end_last(leader)
    timetable.restart()
    await timetable.pass_time(5 * MINUTE)
    assert await timetable.outcomes(follower) == [("12:01", SKIPPED)]
    assert await timetable.status(follower) == (ScheduleStatus.PAUSED, "paused by a person")


@pytest.mark.parametrize("with_work", [False, True])
async def test_cancelling_ends_a_schedule_with_its_work_or_without(
    timetable: Timetable, with_work: bool
) -> None:
    schedule = await timetable.create(cron="* * * * *", overlap=True)
    await timetable.pass_time(2 * MINUTE)
    started = await timetable.started(schedule)
    cancelled = await timetable.use.cancel(schedule, CancelSchedule(with_work=with_work))
    assert cancelled.status is ScheduleStatus.CANCELLED
    assert cancelled.in_flight == ([] if with_work else started)
    assert timetable.work.cancelled == (started if with_work else [])
    await timetable.pass_time(5 * MINUTE)
    assert await timetable.started(schedule) == started
    for action in (timetable.use.pause, timetable.use.resume, timetable.use.run_now):
        with pytest.raises(Conflict, match="is cancelled and cannot be"):
            await action(schedule)


async def test_what_an_ended_schedule_left_going_can_still_be_cancelled(
    timetable: Timetable,
) -> None:
    schedule = await timetable.create(at=NOON + MINUTE)
    await timetable.tick(MINUTE)
    with pytest.raises(Conflict, match="is completed already"):
        await timetable.use.cancel(schedule)
    ended = await timetable.use.cancel(schedule, CancelSchedule(with_work=True))
    assert (ended.status, ended.in_flight) == (ScheduleStatus.COMPLETED, [])
    assert timetable.work.cancelled == await timetable.started(schedule)
    with pytest.raises(Conflict, match="is completed already"):
        await timetable.use.cancel(schedule, CancelSchedule(with_work=True))


async def test_a_person_may_have_it_run_besides_its_slots(timetable: Timetable) -> None:
    schedule = await timetable.create(at=NOON + HOUR, max_runs=2)
    firing = await timetable.use.run_now(schedule)
    assert (firing.outcome, firing.reason) == (STARTED, "run by a person")
    with pytest.raises(Conflict, match="is still running"):
        await timetable.use.run_now(schedule)
    await timetable.end_last(schedule)
    await timetable.pass_time(HOUR + MINUTE, MINUTE)
    assert len(await timetable.started(schedule)) == 2
    assert (await timetable.get(schedule)).status is ScheduleStatus.COMPLETED


async def test_running_now_counts_and_works_while_paused(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="0 3 * * *", overlap=True, max_runs=2)
    await timetable.use.pause(schedule)
    first = await timetable.use.run_now(schedule)
    second = await timetable.use.run_now(schedule)
    assert first.slot < second.slot
    assert await timetable.started(schedule) == [first.subject, second.subject]
    assert (await timetable.get(schedule)).status is ScheduleStatus.COMPLETED


async def test_running_what_repeats_begins_its_pause_anew(timetable: Timetable) -> None:
    schedule = await timetable.create(every_s=600)
    await timetable.tick()
    await timetable.end_last(schedule)
    await timetable.tick(5 * MINUTE)
    await timetable.use.run_now(schedule)
    await timetable.pass_time(HOUR, 5 * MINUTE)
    assert len(await timetable.started(schedule)) == 2
    await timetable.end_last(schedule)
    await timetable.pass_time(9 * MINUTE)
    assert len(await timetable.started(schedule)) == 2
    await timetable.pass_time(MINUTE)
    assert len(await timetable.started(schedule)) == 3


async def test_running_now_tells_why_it_could_not(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="0 3 * * *")
    timetable.work.refusal = KapelleError("No agent.")
    firing = await timetable.use.run_now(schedule)
    assert (firing.outcome, firing.reason) == (FAILED, "No agent.")
    assert (await timetable.get(schedule)).status is ScheduleStatus.ACTIVE
