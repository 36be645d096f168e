"""Schedules that come after another one, on both databases."""

import pytest
from tests.integration.engine.timetable import DAY, MINUTE, NOON, Timetable

from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.schedule import Outcome, ScheduleStatus

STARTED, SKIPPED, HELD = Outcome.STARTED, Outcome.SKIPPED, Outcome.HELD


async def test_a_follower_starts_once_for_each_success_of_the_other(timetable: Timetable) -> None:
    leader = await timetable.create(cron="*/10 * * * *")
    follower = await timetable.create(after=leader)
    await timetable.pass_time(15 * MINUTE)
    assert await timetable.started(follower) == []
    await timetable.end_last(leader)
    await timetable.pass_time(2 * MINUTE)
    assert len(await timetable.started(follower)) == 1
    await timetable.end_last(follower)
    await timetable.pass_time(5 * MINUTE)
    await timetable.end_last(leader, "failed")
    await timetable.pass_time(5 * MINUTE)
    assert len(await timetable.started(follower)) == 1
    assert [firing.slot for firing in await timetable.history(follower)] == [NOON + 10 * MINUTE]


async def test_a_follower_does_not_answer_what_was_before_it(timetable: Timetable) -> None:
    leader = await timetable.create(cron="*/10 * * * *")
    await timetable.pass_time(15 * MINUTE)
    await timetable.end_last(leader)
    timetable.clock.forward(MINUTE)
    follower = await timetable.create(after=leader)
    await timetable.tick()
    assert await timetable.started(follower) == []


async def test_a_follower_ends_when_nothing_can_come_any_more(timetable: Timetable) -> None:
    leader = await timetable.create(at=NOON + MINUTE)
    follower = await timetable.create(after=leader)
    await timetable.tick(MINUTE)
    assert (await timetable.get(leader)).status is ScheduleStatus.COMPLETED
    await timetable.tick(MINUTE)
    assert (await timetable.get(follower)).status is ScheduleStatus.ACTIVE
    await timetable.end_last(leader)
    await timetable.tick(MINUTE)
    assert len(await timetable.started(follower)) == 1
    await timetable.tick(MINUTE)
    reason = f"{leader}, which it follows, has ended"
    assert await timetable.status(follower) == (ScheduleStatus.COMPLETED, reason)
    with pytest.raises(InvalidInput, match="no work can follow it"):
        await timetable.create(after=leader)


async def test_a_slot_is_held_back_while_the_work_of_the_other_is_going(
    timetable: Timetable,
) -> None:
    leader = await timetable.create(cron="0 * * * *")
    follower = await timetable.create(cron="0,30 * * * *", after=leader)
    await timetable.pass_time(45 * MINUTE)
    await timetable.end_last(follower)
    # Both are due in the same pass, and still the leader comes first.
    await timetable.pass_time(40 * MINUTE)
    (firing,) = (await timetable.history(follower))[1:]
    (work,) = await timetable.started(leader)
    assert (firing.outcome, firing.reason) == (HELD, f"waits for {work} of {leader}")
    # Half an hour later the next slot comes, and there is one that waits already.
    await timetable.pass_time(10 * MINUTE)
    assert [outcome for _, outcome in await timetable.outcomes(follower)][1:] == [HELD, SKIPPED]
    await timetable.end_last(leader)
    await timetable.tick(MINUTE)
    history = await timetable.history(follower)
    assert history[1].outcome is STARTED
    assert history[1].reason == "was held back until the followed schedule's work had ended"


async def test_what_is_held_back_is_not_missed_by_a_downtime(timetable: Timetable) -> None:
    leader = await timetable.create(at=NOON + MINUTE)
    follower = await timetable.create(at=NOON + 2 * MINUTE, after=leader, missed="fail")
    await timetable.pass_time(3 * MINUTE)
    timetable.restart()
    await timetable.tick(DAY)
    assert await timetable.outcomes(follower) == [("12:02", HELD)]
    await timetable.end_last(leader)
    await timetable.tick(MINUTE)
    assert await timetable.outcomes(follower) == [("12:02", STARTED)]
    assert (await timetable.get(follower)).status is ScheduleStatus.COMPLETED


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
async def test_a_slot_is_skipped_when_the_work_of_the_other_was_no_success(
    timetable: Timetable, ending: str
) -> None:
    leader = await timetable.create(at=NOON + MINUTE)
    once = await timetable.create(at=NOON + 2 * MINUTE, after=leader)
    often = await timetable.create(cron="* * * * *", after=leader)
    await timetable.pass_time(2 * MINUTE)
    task = await timetable.end_last(leader, ending)
    await timetable.pass_time(2 * MINUTE)
    verb = "failed" if ending == "failed" else "was cancelled"
    reason = f"{task} of {leader} {verb}"
    (firing,) = await timetable.history(once)
    assert (firing.outcome, firing.reason) == (SKIPPED, reason)
    assert await timetable.status(once) == (ScheduleStatus.FAILED, reason)
    assert {f.outcome for f in await timetable.history(often)} == {SKIPPED}
    assert (await timetable.get(often)).status is ScheduleStatus.ACTIVE
    # Work that succeeds at last is something to come after.
    await timetable.work.end(task, "completed")
    await timetable.pass_time(2 * MINUTE)
    assert len(await timetable.started(often)) == 1


async def test_a_slot_is_skipped_when_the_other_could_not_start(timetable: Timetable) -> None:
    leader = await timetable.create(cron="* * * * *", max_runs=1)
    timetable.work.refusal = KapelleError("No agent.")
    await timetable.tick(MINUTE)
    timetable.work.refusal = None
    await timetable.use.pause(leader)
    follower = await timetable.create(cron="* * * * *", after=leader)
    await timetable.tick(MINUTE)
    (firing,) = await timetable.history(follower)
    assert firing.reason == f"{leader} could not start its work: No agent."
