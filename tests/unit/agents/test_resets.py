"""When a limit ends, in the words of those who set it."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from kapelle.agents.resets import find_reset_time, parse_reset_time

NOW = datetime(2026, 11, 15, 11, 7, 17, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Claude AI usage limit reached|1794751637", "2026-11-15T14:07:17"),
        ("You've hit your 5-hour limit · resets 2:07pm (UTC)", "2026-11-15T14:07"),
        ("You've hit your limit · resets 3pm (America/New_York)", "2026-11-15T20:00"),
        ("Session limit reached · resets 12am (Europe/Berlin)", "2026-11-15T23:00"),
        ("limit reached ∙ resets 9am (Etc/GMT+5)", "2026-11-15T14:00"),
        ("resets 3am (UTC)", "2026-11-16T03:00"),
        ("resets 11:07am (UTC)", "2026-11-15T11:07"),
        ("resets at 17:30 (UTC)", "2026-11-15T17:30"),
        ("weekly limit · resets Nov 18, 6:07am (America/New_York)", "2026-11-18T11:07"),
        ("resets Nov 20 at 3pm (UTC)", "2026-11-20T15:00"),
        ("resets Jan 2, 2027, 3pm (UTC)", "2027-01-02T15:00"),
        ("resets Jan 2, 3pm (UTC)", "2027-01-02T15:00"),
        ("resets Nov 14, 3pm (UTC)", "2026-11-14T15:00"),
    ],
)
def test_a_moment(text: str, expected: str) -> None:
    assert find_reset_time(text, NOW) == at(expected)


def test_a_date_without_a_time_is_that_day() -> None:
    found = find_reset_time(
        "spend limit reached · resets Dec 8 · request an increase at https://x", NOW
    )
    assert found is not None
    assert abs(found - at("2026-12-08")) <= timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 20s.", 20),
        ("Rate limit reached. Please retry after 1.5 seconds", 1.5),
        ("Your limit resets in 2 hours and 5 minutes", 7500),
        ("Please wait for 3m20s", 200),
        ("HTTP status 429 (rate_limit); retry 1 of 2 in 1 s", 1),
    ],
)
def test_a_span(text: str, seconds: float) -> None:
    assert find_reset_time(text, NOW) == NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "resets 3", "resets 25:00", "resets soon", "resets Feb 30, 3pm", "preset 2026", "in 5 s"],
)
def test_no_moment(text: str) -> None:
    assert find_reset_time(text, NOW) is None


def test_a_zone_that_is_not_known_is_the_local_one() -> None:
    assert find_reset_time("resets 3pm (Mars/Olympus)", NOW) == find_reset_time("resets 3pm", NOW)


def test_a_field_of_its_own() -> None:
    assert parse_reset_time(1794751637) == at("2026-11-15T14:07:17")
    assert parse_reset_time("2026-11-15T14:07:17") == at("2026-11-15T14:07:17")
    assert parse_reset_time("2026-11-15T15:07:17+01:00") == at("2026-11-15T14:07:17")


@pytest.mark.parametrize("value", [None, True, 17, "soon", [], "9999-12-31T23:59:59-23:00"])
def test_a_field_that_holds_no_time(value: object) -> None:
    assert parse_reset_time(value) is None


@pytest.mark.parametrize("part", ["reset", "reset in ", "resets jan ", "retry in "])
def test_a_long_message_is_read_in_linear_time(part: str) -> None:
    began = time.process_time()
    assert find_reset_time(part * 20_000) is None
    assert time.process_time() - began < 3


def test_no_limit_lasts_for_years() -> None:
    assert parse_reset_time("9999-12-30T00:00:00Z") is None
    assert parse_reset_time(9.9e10) is None
    assert find_reset_time("limit reached|9999999999") is None
    assert find_reset_time("resets Jan 3, 9999") is None
