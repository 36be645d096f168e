"""Cron slots against an oracle that looks at every minute, around every change of clocks."""

import random
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from zoneinfo import available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.cron_oracle import MINUTE, Change, Timeline, at, changes

from kapelle.engine.schedules.calendar import count_slots, next_slot, slots_after

_FIRST, _LAST = at("2024-01-01T00:00"), at("2029-01-01T00:00")
# Each with the hours around a change in which it is compared.
EXPRESSIONS = {
    "* * * * *": 4,
    "*/20 * * * *": 8,
    "7-59/13 * * * *": 8,
    "30 * * * *": 27,
    "0 */2 * * *": 27,
    "*/15 0 * * *": 27,
    "*/15 2 * * *": 27,
    "5,35 1-3 * * *": 27,
    "0 0 * * *": 27,
    "30 0 * * *": 27,
    "30 1 * * *": 27,
    "0,30 2 * * *": 27,
    "0 2,3 * * *": 27,
    "15 23 * * *": 27,
    "0-59 2 * * *": 27,
    "0 0 * * sun": 27,
    "30 2 * * 5-7": 27,
    "0 3 13 * fri": 27,
    "45 22 25-31 3,9,10 *": 27,
    "*/10 * 29-31 * sat,sun": 8,
}


@lru_cache(maxsize=1)
def all_changes() -> list[Change]:
    """One zone for each distinct change of the clocks of any zone in the world."""
    distinct: dict[object, Change] = {}
    for zone in sorted(available_timezones()):
        for change in changes(zone, _FIRST, _LAST):
            distinct.setdefault((change.at, change.before, change.after), change)
    return list(distinct.values())


def found(cron: str, zone: str, first: datetime, last: datetime) -> list[datetime]:
    slots = []
    for slot in slots_after(cron, zone, first - timedelta(microseconds=1)):
        if slot > last:
            break
        slots.append(slot)
    return slots


def test_there_is_something_to_compare() -> None:
    kinds = {change.after - change.before for change in all_changes()}
    assert len(all_changes()) > 100
    assert {timedelta(hours=1), timedelta(hours=-1), timedelta(minutes=30)} <= kinds


def test_no_slot_is_doubled_or_missed_at_any_change_of_clocks_in_the_world(
    exhaustive: bool, sampling: random.Random
) -> None:
    widest = timedelta(hours=max(EXPRESSIONS.values()))
    tried = (
        all_changes() if exhaustive else sampling.sample(all_changes(), len(all_changes()) // 10)
    )
    for change in tried:
        timeline = Timeline(change.zone, change.at - widest, change.at + widest)
        for cron, hours in EXPRESSIONS.items():
            around = timedelta(hours=hours)
            slots = found(cron, change.zone, change.at - around, change.at + around)
            where = f"{cron} in {change.zone} around {change.at}"
            assert slots == timeline.slots(cron, around), where


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("cron", "zone", "after", "slots"),
    [
        # 02:30 does not exist on the 29th: it runs right after the gap.
        ("30 2 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        # Both do not exist and fall together: they run once.
        ("0,30 2 * * *", BERLIN, "2026-03-29T00:00", ["2026-03-29T01:00", "2026-03-30T00:00"]),
        # 02:30 comes twice on the 25th: it runs the first time.
        ("30 2 * * *", BERLIN, "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        # Asked within the hour that is repeated, the first 02:30 is over.
        ("30 2 * * *", BERLIN, "2026-10-25T01:10", ["2026-10-26T01:30"]),
        # Every hour stays every hour.
        ("30 * * * *", BERLIN, "2026-10-25T00:00", ["2026-10-25T00:30", "2026-10-25T01:30"]),
        # Half an hour, as only Lord Howe Island has it.
        ("*/9 3 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-03T16:00"]),
        # Midnight itself is left out.
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", ["2026-04-23T22:00"]),
        ("0 0 29 2 *", "UTC", "2024-03-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
    ],
)
def test_slots_as_a_person_would_work_them_out(
    cron: str, zone: str, after: str, slots: list[str]
) -> None:
    assert list(islice(slots_after(cron, zone, at(after)), len(slots))) == [at(s) for s in slots]


def test_a_time_that_never_comes_has_no_slot() -> None:
    # A February with five Mondays is rare; one whose fifth is the 1st does not exist.
    assert next_slot("0 0 * 2 mon#5", "UTC", at("2026-01-01T00:00")) == at("2044-02-29T00:00")
    assert next_slot("0 0 */31 2 mon#5", "UTC", at("2026-01-01T00:00")) is None


@given(
    cron=st.sampled_from(sorted(EXPRESSIONS)),
    change=st.deferred(lambda: st.sampled_from(all_changes())),
    seconds=st.integers(-100_000, 100_000),
    micros=st.integers(0, 999_999),
)
@settings(max_examples=150, deadline=None)
def test_the_next_slot_is_the_same_from_whichever_moment_one_asks(
    cron: str, change: Change, seconds: int, micros: int
) -> None:
    moment = change.at + timedelta(seconds=seconds, microseconds=micros)
    window = timedelta(hours=2)
    first = moment.replace(second=0, microsecond=0)
    in_window = [s for s in Timeline(change.zone, first, first + window).slots(cron) if s > moment]
    slot = next_slot(cron, change.zone, moment)
    assert slot is not None
    assert slot > moment
    assert in_window[:1] == ([slot] if slot <= first + window else [])


@given(
    cron=st.sampled_from(sorted(EXPRESSIONS)),
    change=st.deferred(lambda: st.sampled_from(all_changes())),
    start=st.integers(-3000, 3000),
    length=st.integers(0, 4000),
)
@settings(max_examples=60, deadline=None)
def test_what_has_passed_between_two_moments_is_counted(
    cron: str, change: Change, start: int, length: int
) -> None:
    first = change.at + start * MINUTE
    last = first + length * MINUTE
    due = Timeline(change.zone, first, last).slots(cron)
    told = count_slots(cron, change.zone, first, last)
    if told is None:
        assert due == []
    else:
        assert told.newest == due[-1]
        assert (told.count, told.more) == (min(len(due), 1000), len(due) > 1000)


def test_the_newest_of_very_many_is_found() -> None:
    first, last = at("2020-01-01T00:00"), at("2026-06-15T12:34")
    told = count_slots("* * * 1 *", "Europe/Berlin", first, last)
    assert told is not None
    assert told.more
    assert told.newest == at("2026-01-31T22:59")


def test_moments_of_any_zone_are_taken_and_utc_is_given() -> None:
    berlin = datetime.fromisoformat("2026-06-01T12:30:00+02:00")
    slot = next_slot("0 13 * * *", "Europe/Berlin", berlin)
    assert slot == at("2026-06-01T11:00")
    assert slot.tzinfo is UTC
