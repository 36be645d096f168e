"""Slots on both databases: each policy, what is missed, and starts that fail."""

from datetime import timedelta

import pytest
from tests.integration.engine.timetable import DAY, HOUR, MINUTE, NOON, Timetable

from kapelle.domain.errors import InvalidInput, KapelleError, Unavailable
from kapelle.domain.schedule import Outcome, ScheduleStatus
from kapelle.engine.schedules import scheduler

STARTED, SKIPPED, MISSED, FAILED = Outcome.STARTED, Outcome.SKIPPED, Outcome.MISSED, Outcome.FAILED


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
    assert (await timetable.history(schedule))[-1].reason == f"{first} is still running"
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
