"""What may be asked of a schedule, and what is said about the rest."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kapelle.domain.schedule import MissedPolicy, ScheduleSpec, require_cron, require_zone
from kapelle.domain.specs import TaskSpec
from kapelle.engine.schedules.calendar import next_slot

AT = "2026-11-01T03:00:00Z"


def spec(**values: Any) -> ScheduleSpec:
    return ScheduleSpec.model_validate({"spec": {}, **values})


def complaint(**values: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        spec(**values)
    return str(caught.value.errors()[0]["msg"]).removeprefix("Value error, ")


def test_little_has_to_be_said() -> None:
    plain = spec(cron=" 0  3 * * mon ")
    assert (plain.kind, plain.cron, plain.timezone) == ("task", "0 3 * * mon", "UTC")
    assert (plain.missed, plain.overlap, plain.max_runs) == (MissedPolicy.SKIP, False, None)


@pytest.mark.parametrize(
    "trigger",
    [
        {"cron": "* * * * *"},
        {"at": AT},
        {"every_s": 1},
        {"after": "schedule_x"},
        {"cron": "* * * * *", "after": "schedule_x"},
        {"at": AT, "after": "schedule_x"},
    ],
)
def test_each_way_to_be_triggered(trigger: dict[str, Any]) -> None:
    assert spec(**trigger)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "a trigger is missing"),
        ({"cron": "* * * * *", "at": AT}, "`cron` and `at` cannot be combined"),
        ({"at": AT, "every_s": 5}, "`at` and `every_s` cannot be combined"),
        ({"every_s": 5, "after": "x"}, "cannot be combined with `every_s`"),
        ({"every_s": 0.1}, "greater than or equal to 1"),
        ({"at": "soon"}, "`at`: 'soon' is not a time: write 2h, 18:30 or 2030-01-31T18:30"),
        ({"at": AT, "expires_at": AT}, "`expires_at` must be later than `at`"),
        ({"at": "9999-12-31T23:59:59-14:00"}, "the year must be between"),
        ({"cron": "0 3 * *"}, "has 4 fields instead of five: minute, hour"),
        ({"cron": "0 0 3 * * *"}, "has 6 fields instead of five"),
        ({"cron": "0 25 * * *"}, "an hour is 0 to 23"),
        ({"cron": "60 * * * *"}, "a minute is 0 to 59"),
        ({"cron": "0 0 31 2 *"}, "must exist in one of the months"),
        ({"cron": "0 0 * 13 *"}, "a month is 1 to 12"),
        ({"cron": "0 0 * * funday"}, "a day of the week is 0 to 7"),
        ({"cron": "0 0 */31 2 mon#5"}, "never matches"),
        ({"cron": "* * * * *", "timezone": "berlin"}, "did you mean Europe/Berlin"),
        ({"cron": "* * * * *", "timezone": "New York"}, "did you mean America/New_York"),
        ({"cron": "* * * * *", "timezone": "Europe/Berln"}, "did you mean Europe/Berlin"),
        ({"cron": "* * * * *", "timezone": "xyzzy"}, "for example, Europe/Berlin or UTC"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "is not a time zone"),
        ({"cron": "* * * * *", "colour": "red"}, "Extra inputs are not permitted"),
        ({"cron": "* * * * *", "max_runs": 0}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_type_instead(
    values: dict[str, Any], said: str
) -> None:
    assert said in complaint(**values)


def test_times_are_kept_in_utc_and_zones_as_they_are_spelled() -> None:
    found = spec(at="2026-11-01T03:00:00+01:00", timezone="europe/berlin")
    assert found.at == datetime(2026, 11, 1, 2, tzinfo=UTC)
    assert found.at.tzinfo is UTC
    assert found.timezone == "Europe/Berlin"


def test_times_are_read_as_on_the_command_line() -> None:
    now = datetime.now(UTC)
    soon: Any = spec(at="2h", expires_at="1d")
    assert abs(soon.at - now - timedelta(hours=2)) < timedelta(minutes=1)
    assert abs(soon.expires_at - now - timedelta(days=1)) < timedelta(minutes=1)
    clock: Any = spec(at="18:30", timezone="Europe/Berlin").at
    assert clock.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") == "18:30"
    assert timedelta(0) < clock - now <= timedelta(days=1, hours=1)
    day = spec(at="2031-11-01T18:30", timezone="Europe/Berlin")
    assert day.at == datetime(2031, 11, 1, 17, 30, tzinfo=UTC)
    assert spec(every_s="2h").every_s == 7200
    task = {"prompt": "x", "directory": "/", "timeout_s": "1h30m"}
    assert TaskSpec.model_validate(task).timeout_s == 5400


def test_short_forms_stand_for_what_they_say() -> None:
    assert [require_cron(text) for text in (" @Daily", "@weekly")] == ["0 0 * * *", "0 0 * * 0"]


_FIELD = st.text("0123456789*/,-L#WmonJAN ", min_size=1, max_size=8)


@given(st.one_of(st.text(max_size=50), st.lists(_FIELD, min_size=5, max_size=5).map(" ".join)))
def test_any_text_is_an_expression_that_comes_or_is_refused(text: str) -> None:
    try:
        expression = require_cron(text)
    except ValueError:
        return
    slot = next_slot(expression, "Europe/Berlin", datetime(2026, 1, 1, tzinfo=UTC))
    assert slot is None or slot > datetime(2026, 1, 1, tzinfo=UTC)


@given(st.text(max_size=30))
def test_any_text_is_a_zone_or_is_refused(text: str) -> None:
    try:
        zone = require_zone(text)
    except ValueError:
        return
    assert zone.casefold() == text.casefold()
    assert require_zone(zone) == zone
