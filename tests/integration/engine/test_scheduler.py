"""Schedules on both databases under a clock that jumps: each policy, and what ends a schedule."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.integration.engine.timetable import DAY, HOUR, MINUTE, NOON, Timetable

from kapelle.domain.errors import Conflict, InvalidInput, KapelleError, Unavailable
from kapelle.domain.schedule import Outcome, ScheduleStatus
from kapelle.engine.schedules import scheduler
from kapelle.store.database import Database

STARTED, SKIPPED, MISSED = Outcome.STARTED, Outcome.SKIPPED, Outcome.MISSED
HELD, FAILED = Outcome.HELD, Outcome.FAILED


@pytest.fixture
def timetable(db: Database, tmp_path: Path) -> Timetable:
    return Timetable(db, tmp_path)


async def test_every_slot_of_a_cron_schedule_starts_its_work_once(timetable: Timetable) -> None:
    nightly = await timetable.create(cron="*/10 * * * *", overlap=True)
    assert (await timetable.get(nightly)).next_at == NOON + 10 * MINUTE
    await timetable.pass_time(31 * MINUTE)
    slots = ["12:10", "12:20", "12:30"]
    assert await timetable.outcomes(nightly) == [(slot, STARTED) for slot in slots]
    assert len(await timetable.started(nightly)) == 3
    schedule = await timetable.get(nightly)
    assert (schedule.started, schedule.next_at) == (3, NOON + 40 * MINUTE)
    assert len(schedule.in_flight) == 3


async def test_what_is_started_gets_its_specification_and_a_key_of_its_slot(
    timetable: Timetable,
) -> None:
    spec = {"prompt": "tidy", "directory": "/", "env": {"TOKEN": "s3cret"}, "mcp": {"d": {}}}
    schedule = await timetable.create(cron="0 13 * * *", spec=spec, kind="loop")
    await timetable.tick(HOUR)
    ((kind, given, key),) = timetable.work.asked
    assert (kind, given) == ("loop", spec)
    assert key == f"{schedule}/2026-06-15T13:00:00+00:00"
    (run,) = await timetable.started(schedule)
    assert run.startswith("run_")


async def test_a_slot_that_comes_while_the_work_before_is_going_is_skipped(
    timetable: Timetable,
) -> None:
    schedule = await timetable.create(cron="* * * * *")
    await timetable.tick(MINUTE)
    await timetable.tick(MINUTE)
    (first,) = await timetable.started(schedule)
    assert (await timetable.history(schedule))[-1].reason == f"{first} is still going"
    await timetable.end_last(schedule, "failed")
    await timetable.tick(MINUTE)
    outcomes = [outcome for _, outcome in await timetable.outcomes(schedule)]
    assert outcomes == [STARTED, SKIPPED, STARTED]


async def test_slots_of_a_downtime_are_skipped_and_told_in_one_row(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="*/15 * * * *")
    await timetable.tick(3 * HOUR + 5 * MINUTE)
    (missed,) = await timetable.history(schedule)
    assert (missed.outcome, missed.slot) == (MISSED, NOON + 3 * HOUR)
    assert missed.reason == "12 slots were missed, the last at 2026-06-15 15:00:00 UTC"
    assert (await timetable.get(schedule)).next_at == NOON + 3 * HOUR + 15 * MINUTE
    assert await timetable.started(schedule) == []


async def test_a_slot_that_is_a_minute_late_is_not_missed_and_one_more_second_is(
    timetable: Timetable,
) -> None:
    for late, outcome in ((60, STARTED), (61, MISSED)):
        schedule = await timetable.create(cron=f"0 {timetable.clock.moment.hour + 1} * * *")
        next_at = (await timetable.get(schedule)).next_at
        assert next_at is not None
        timetable.clock.moment = next_at + timedelta(seconds=late)
        await timetable.tick()
        assert [found for _, found in await timetable.outcomes(schedule)] == [outcome]


async def test_after_a_downtime_the_slot_that_is_just_due_is_started_besides(
    timetable: Timetable,
) -> None:
    schedule = await timetable.create(cron="*/15 * * * *")
    await timetable.tick(HOUR + timedelta(seconds=30))
    assert await timetable.outcomes(schedule) == [("12:45", MISSED), ("13:00", STARTED)]


async def test_one_start_makes_up_for_all_that_a_downtime_left_out(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="*/15 * * * *", missed="catchup", overlap=True)
    await timetable.tick(3 * HOUR + 5 * MINUTE)
    (firing,) = await timetable.history(schedule)
    assert (firing.outcome, firing.slot) == (STARTED, NOON + 3 * HOUR)
    assert firing.reason == "makes up for 12 slots"
    await timetable.tick(10 * MINUTE)
    assert await timetable.outcomes(schedule) == [("15:00", STARTED), ("15:15", STARTED)]


async def test_catching_up_counts_the_slot_that_is_just_due_in(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="*/15 * * * *", missed="catchup", overlap=True)
    await timetable.tick(HOUR)
    (firing,) = await timetable.history(schedule)
    assert (firing.slot, firing.reason) == (NOON + HOUR, "makes up for 3 slots")


async def test_a_schedule_that_may_miss_nothing_fails_when_it_does(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="0 * * * *", missed="fail")
    await timetable.tick(HOUR)
    await timetable.tick(HOUR + 2 * MINUTE)
    reason = "1 slot was missed, at 2026-06-15 14:00:00 UTC"
    assert await timetable.status(schedule) == (ScheduleStatus.FAILED, reason)
    assert await timetable.outcomes(schedule) == [("13:00", STARTED), ("14:00", MISSED)]
    await timetable.pass_time(3 * HOUR, 10 * MINUTE)
    assert len(await timetable.history(schedule)) == 2


async def test_very_many_missed_slots_are_not_counted_to_the_end(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="* * * * *")
    await timetable.tick(400 * DAY + timedelta(seconds=90))
    first, second = await timetable.history(schedule)
    assert first.reason is not None
    assert first.reason.startswith("more than 1000 slots were missed")
    assert second.outcome is STARTED


async def test_at_a_time_starts_once_and_that_completes_it(timetable: Timetable) -> None:
    schedule = await timetable.create(at=NOON + HOUR)
    await timetable.pass_time(HOUR - MINUTE)
    assert await timetable.started(schedule) == []
    await timetable.pass_time(2 * HOUR, MINUTE)
    assert len(await timetable.started(schedule)) == 1
    assert await timetable.status(schedule) == (ScheduleStatus.COMPLETED, None)


@pytest.mark.parametrize(
    ("missed", "status", "outcome"),
    [
        ("skip", ScheduleStatus.EXPIRED, MISSED),
        ("fail", ScheduleStatus.FAILED, MISSED),
        ("catchup", ScheduleStatus.COMPLETED, STARTED),
    ],
)
async def test_a_time_that_passed_unseen(
    timetable: Timetable, missed: str, status: ScheduleStatus, outcome: Outcome
) -> None:
    schedule = await timetable.create(at=NOON + HOUR, missed=missed)
    await timetable.tick(5 * HOUR)
    assert (await timetable.get(schedule)).status is status
    assert await timetable.outcomes(schedule) == [("13:00", outcome)]


async def test_a_time_that_has_passed_cannot_be_asked_for(timetable: Timetable) -> None:
    with pytest.raises(InvalidInput, match="has passed"):
        await timetable.create(at=NOON - 2 * MINUTE)
    with pytest.raises(InvalidInput, match="has passed"):
        await timetable.create(cron="* * * * *", expires_at=NOON)


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
    schedule = await timetable.create(every_s=60, missed="fail")
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


async def test_a_schedule_has_done_its_part_after_so_many_runs(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="* * * * *", max_runs=2, overlap=True)
    await timetable.pass_time(10 * MINUTE)
    assert len(await timetable.started(schedule)) == 2
    assert await timetable.status(schedule) == (ScheduleStatus.COMPLETED, None)
    assert (await timetable.get(schedule)).next_at is None


async def test_a_start_that_fails_is_no_run(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="* * * * *", max_runs=1)
    timetable.work.refusal = KapelleError("There is no directory /gone.", hint="Make it.")
    await timetable.tick(MINUTE)
    (firing,) = await timetable.history(schedule)
    assert (firing.outcome, firing.subject) == (FAILED, None)
    assert firing.reason == "There is no directory /gone. Make it."
    assert (await timetable.get(schedule)).status is ScheduleStatus.ACTIVE
    timetable.work.refusal = None
    await timetable.tick(MINUTE)
    assert (await timetable.get(schedule)).status is ScheduleStatus.COMPLETED
    assert len(await timetable.started(schedule)) == 1


@pytest.mark.parametrize("trigger", [{"at": NOON + MINUTE}, {"every_s": 60}])
async def test_a_start_that_fails_ends_what_has_no_other_slot(
    timetable: Timetable, trigger: dict[str, object]
) -> None:
    schedule = await timetable.create(**trigger)
    timetable.work.refusal = KapelleError("No agent.")
    await timetable.tick(MINUTE)
    expected = (ScheduleStatus.FAILED, "it could not start: No agent.")
    assert await timetable.status(schedule) == expected


async def test_what_cannot_be_started_for_the_moment_is_started_later(
    timetable: Timetable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_PATIENCE_S", 0.0)
    schedule = await timetable.create(at=NOON + MINUTE)
    timetable.work.refusal = Unavailable("The disk is full.")
    await timetable.pass_time(10 * MINUTE, MINUTE)
    assert [outcome for _, outcome in await timetable.outcomes(schedule)] == [Outcome.STARTING]
    timetable.work.refusal = None
    await timetable.tick()
    assert len(await timetable.started(schedule)) == 1
    assert (await timetable.get(schedule)).status is ScheduleStatus.COMPLETED


async def test_a_start_that_breaks_again_and_again_is_given_up_and_keeps_no_other_waiting(
    timetable: Timetable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_PATIENCE_S", 0.0)
    broken = await timetable.create(at=NOON + MINUTE)
    timetable.work.refusal = ZeroDivisionError("what?")
    for _ in range(4):
        await timetable.tick(MINUTE)
    assert [outcome for _, outcome in await timetable.outcomes(broken)] == [Outcome.STARTING]
    await timetable.tick()
    (firing,) = await timetable.history(broken)
    assert firing.outcome is FAILED
    assert firing.reason == "an error ended its start 5 times: ZeroDivisionError: what?"


async def test_nothing_starts_after_the_expiry(timetable: Timetable) -> None:
    schedule = await timetable.create(cron="*/10 * * * *", expires_at=NOON + 20 * MINUTE)
    await timetable.pass_time(9 * MINUTE)
    assert (await timetable.get(schedule)).next_at == NOON + 10 * MINUTE
    await timetable.pass_time(2 * MINUTE)
    shown = await timetable.get(schedule)
    assert (shown.next_at, shown.status) == (None, ScheduleStatus.ACTIVE)
    await timetable.pass_time(HOUR)
    assert await timetable.status(schedule) == (ScheduleStatus.EXPIRED, "its time is over")
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
    with pytest.raises(InvalidInput, match="nothing will come after it"):
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
    assert history[1].reason == "was held back until what it comes after had ended"


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
    cancelled = await timetable.use.cancel(schedule, with_work=with_work)
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
    ended = await timetable.use.cancel(schedule, with_work=True)
    assert (ended.status, ended.in_flight) == (ScheduleStatus.COMPLETED, [])
    assert timetable.work.cancelled == await timetable.started(schedule)
    with pytest.raises(Conflict, match="is completed already"):
        await timetable.use.cancel(schedule, with_work=True)


async def test_a_person_may_have_it_run_besides_its_slots(timetable: Timetable) -> None:
    schedule = await timetable.create(at=NOON + HOUR, max_runs=2)
    firing = await timetable.use.run_now(schedule)
    assert (firing.outcome, firing.reason) == (STARTED, "run by a person")
    with pytest.raises(Conflict, match="is still going"):
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


async def test_what_repeats_does_not_wait_for_the_work_of_another(timetable: Timetable) -> None:
    first = await timetable.create(every_s=60)
    second = await timetable.create(every_s=60)
    await timetable.tick()
    await timetable.end_last(first)
    await timetable.tick(MINUTE)
    assert [len(await timetable.started(found)) for found in (first, second)] == [2, 1]
