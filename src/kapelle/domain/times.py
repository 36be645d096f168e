"""Durations and moments as people and agents write them: 90, 10m, 2h, 18:30, 2030-01-31T18:30."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h|d)")
_DURATION = re.compile(f"(?:{_PART.pattern})+")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration with units, such as 90s or 1h30m; None for other texts."""
    typed = text.strip().lower()
    if not _DURATION.fullmatch(typed):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(typed))


def format_duration(seconds: float) -> str:
    """Return a duration as a person would type it: 90 is 1m30s and 3600 is 1h."""
    left = seconds
    parts = ""
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _UNITS[unit])
        parts += f"{count:.0f}{unit}" if count else ""
    return parts + (f"{left:g}s" if left or not parts else "")


def read_seconds(value: Any) -> Any:
    """Replace a duration with units by its seconds; everything else is left to the field."""
    if isinstance(value, str) and (seconds := parse_duration(value)) is not None:
        return seconds
    return value


def parse_moment(text: str, now: datetime, place: tzinfo) -> datetime:
    """Return the moment of a duration from now, of the next time a clock shows this, or of a date
    with a time; a clock and a date without a zone are meant in this one.

    Raises ValueError for a text that is none of these, and OverflowError outside of the calendar.
    """
    typed = text.strip()
    if (seconds := parse_duration(typed)) is not None:
        return now + timedelta(seconds=seconds)
    try:
        if _CLOCK.fullmatch(typed):
            return _next_time(typed, now, place).astimezone(UTC)
        moment = datetime.fromisoformat(typed)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=place)
        return moment.astimezone(UTC)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write 2h, 18:30 or 2030-01-31T18:30") from None


def _next_time(clock: str, now: datetime, place: tzinfo) -> datetime:
    """Return the next moment at which clocks of a zone show this."""
    here = now.astimezone(place)
    hour, minute, *second = (int(part) for part in clock.split(":"))
    wanted = here.replace(hour=hour, minute=minute, second=(second or [0])[0], microsecond=0)
    if wanted > here:
        return wanted
    return wanted + timedelta(days=1)
