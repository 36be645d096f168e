"""Durations and moments as people and agents write them: 90, 10m, 2h, 18:30, 2030-01-31T18:30."""

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

from kapelle.domain.errors import InvalidInput

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h|d)")
_DURATION = re.compile(f"(?:{_PART.pattern})+")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration with units, such as 90s or 1h30m; None for other texts."""
    duration = text.strip().lower()
    if not _DURATION.fullmatch(duration):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(duration))


def format_duration(seconds: float) -> str:
    """Return a duration as a person would type it: 90 is 1m30s and 3600 is 1h."""
    rest = seconds
    text = ""
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            text += f"{count:.0f}{unit}"
    if rest or not text:
        text += f"{rest:g}s"
    return text


def read_seconds(value: Any) -> Any:
    """Return the seconds of a duration with units; return any other value unchanged.

    The field validates the result.
    """
    if isinstance(value, str) and (seconds := parse_duration(value)) is not None:
        return seconds
    return value


def parse_moment(text: str, now: datetime, place: tzinfo) -> datetime:
    """Return the moment of a duration from now, of a clock time, or of a date with a time.

    A clock time is the next one. place is the zone of times without a zone. Raise ValueError for
    any other text, and OverflowError for a time outside the calendar.
    """
    text = text.strip()
    if (seconds := parse_duration(text)) is not None:
        return now + timedelta(seconds=seconds)
    try:
        if _CLOCK.fullmatch(text):
            return _find_next_time(text, now, place).astimezone(UTC)
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=place)
        return moment.astimezone(UTC)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write 2h, 18:30 or 2030-01-31T18:30") from None


def _find_next_time(clock: str, now: datetime, place: tzinfo) -> datetime:
    """Return the next moment at which clocks of a zone show a time."""
    here = now.astimezone(place)
    hour, minute, *seconds = (int(part) for part in clock.split(":"))
    second = seconds[0] if seconds else 0
    moment = here.replace(hour=hour, minute=minute, second=second, microsecond=0)
    if moment > here:
        return moment
    return moment + timedelta(days=1)


def parse_date_or_time(text: str, name: str, *, ends: bool = False) -> datetime:
    """Return the moment of an ISO time, or of the start of a date in UTC; with ends, of its end.

    Raise InvalidInput with the name of the field for any other text.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name}: {text!r} is neither a date nor a time.",
            hint="Write, for example, 2026-11-01 or 2026-11-01T12:00:00Z.",
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    is_day = not re.search(r"[T: ]", text.upper())
    if ends and is_day and at.date() < date.max:
        return at + timedelta(days=1)
    return at
