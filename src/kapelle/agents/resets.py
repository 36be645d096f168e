"""When a limit ends, as far as a provider says so."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_UNITS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hour"), 3600),
}
_WAIT = re.compile(
    r"(?:try again|retry|reset\w*|available(?: again)?|wait)\b[^.\n]{0,40}?\b(?:in|after|for)\s+"
    r"((?:\d+(?:\.\d+)?\s*(?:ms|hours?|h|minutes?|min|m|seconds?|sec|s)(?![a-z])[\s,and]*)+)",
    re.IGNORECASE,
)
_PART = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|hour|h|minute|min|m|second|sec|s)s?(?![a-z])", re.IGNORECASE
)
_CLOCK = re.compile(
    r"reset\w*\s+(?:at\s+)?(\d{1,2})(?::(\d{2}))?\s*(am|pm)?\s*(?:\(([A-Za-z_]+(?:/[A-Za-z_+-]+)*)\))?",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"limit reached\|(\d{10})\b")


def reset_stated(value: object) -> datetime | None:
    """A time in a field of its own: ISO text, or seconds since 1970."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 1e9 < value < 1e11:
        return datetime.fromtimestamp(value, UTC)
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
        return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC) if at else None
    except (ValueError, OverflowError):
        return None


def reset_in(text: str, now: datetime | None = None) -> datetime | None:
    """A time that a message names: a span, a time of day with or without a zone, or an epoch."""
    now = now or datetime.now(UTC)
    if found := _EPOCH.search(text):
        return datetime.fromtimestamp(int(found[1]), UTC)
    if found := _WAIT.search(text):
        return now + timedelta(seconds=_seconds(found[1]))
    if found := _CLOCK.search(text):
        return _next(found, now)
    return None


def _seconds(span: str) -> float:
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(span))


def _next(found: re.Match[str], now: datetime) -> datetime | None:
    """The next moment at which a clock in that zone, or here, shows this time."""
    hour, minute = int(found[1]), int(found[2] or 0)
    if found[3]:
        hour = hour % 12 + (12 if found[3].lower() == "pm" else 0)
    elif found[2] is None:
        return None  # a bare number is no time of day
    if hour > 23 or minute > 59:
        return None
    try:
        zone = ZoneInfo(found[4]) if found[4] else None
    except (KeyError, ValueError, OSError):
        zone = None
    local = now.astimezone(zone)
    at = local.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if at <= local:
        at += timedelta(days=1)
    return at.astimezone(UTC)
