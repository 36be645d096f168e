"""Times to come, as people type them."""

import re
from datetime import UTC, datetime, timedelta, tzinfo

from kapelle.cli.times import now
from kapelle.cli.values import duration_s
from kapelle.domain.errors import InvalidInput

_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")
_DURATION = re.compile(r"(?:(?:\d+(?:\.\d+)?|\.\d+)(?:ms|s|m|h|d))+")


def time_to_come(text: str | None, option: str, zone: str | None) -> str | None:
    """A moment for the API: in so long, the next time a clock shows this, or a date with a time.

    What says no zone of its own is meant in the zone that is given, or in UTC.
    """
    if text is None:
        return None
    typed = text.strip()
    if _DURATION.fullmatch(typed.lower()):
        return (now() + timedelta(seconds=duration_s(typed, option))).isoformat()
    place = _zone(zone)
    try:
        found = _next(typed, place) if _CLOCK.fullmatch(typed) else datetime.fromisoformat(typed)
        found = (found if found.tzinfo else found.replace(tzinfo=place)).astimezone(UTC)
    except (ValueError, OverflowError):
        found = now()
    if found <= now():
        raise InvalidInput(
            f"{option} {text!r} is not a time to come.",
            hint=f"Write {option} 2h, {option} 18:30 or {option} 2026-11-01T18:30.",
        )
    return found.isoformat()


def _next(clock: str, place: tzinfo) -> datetime:
    """The next moment at which clocks of a zone show this."""
    here = now().astimezone(place)
    hour, minute, *second = (int(part) for part in clock.split(":"))
    wanted = here.replace(hour=hour, minute=minute, second=(second or [0])[0], microsecond=0)
    return wanted if wanted > here else wanted + timedelta(days=1)


def _zone(name: str | None) -> tzinfo:
    if name is None:
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise InvalidInput(
            f"--timezone: {name!r} is not a time zone.",
            hint="Write one such as Europe/Berlin or UTC.",
        ) from None
