"""Read when a rate limit ends: from a field, from the text of a message, or from HTTP headers.

Bridges load this module, too, so it uses the standard library only.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo

_UNITS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hour"), 3600),
    "d": 86_400,
}
_LONGEST_S = 366 * 86_400.0
# All repetitions are bounded or end at once, because an agent may write any text.
_WAIT = re.compile(
    r"(?:try again|retry|reset\w{0,20}|available(?: again)?|wait)\b"
    r"[^.\n]{0,40}?\b(?:in|after|for)\s+"
    r"((?:\d+(?:\.\d+)?\s*(?:ms|hours?|h|minutes?|min|m|seconds?|sec|s)(?![a-z])[\s,and]*)+)",
    re.IGNORECASE,
)
_PART = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|d|hour|h|minute|min|m|second|sec|s)s?(?![a-z])", re.IGNORECASE
)
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|d|h|m|s))+")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>am|pm)?"
_ZONE = r"(?:\s*\((?P<zone>[A-Za-z_]+(?:/[\w+-]+)*)\))?"
_AT = r"(?:reset\w{0,20}|(?P<again>try again))\s+(?:(?:at|on)\s+)?"
_CLOCK = re.compile(rf"{_AT}{_TIME}{_ZONE}", re.IGNORECASE)
_DATE = re.compile(
    rf"{_AT}(?P<month>{'|'.join(_MONTHS)})[a-z]*\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b"
    rf"(?:,\s*(?P<year>\d{{4}})\b)?(?:(?:,|\s+at)?\s+{_TIME})?{_ZONE}",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"limit reached\|(\d{10})\b")
# A time in whole minutes may have passed just before it is read; it is today's time all the same.
_JUST_NOW = timedelta(minutes=10)
_HALF_A_YEAR = timedelta(days=183)


def parse_reset_time(value: object) -> datetime | None:
    """Return the time in a field, ISO text or seconds since 1970; None if over a year away."""
    at = None
    if isinstance(value, int | float) and not isinstance(value, bool) and 1e9 < value < 1e11:
        at = datetime.fromtimestamp(value, UTC)
    elif isinstance(value, str):
        at = _date(value, datetime.fromisoformat)
    return _unless_too_late(at, datetime.now(UTC))


def find_reset_time(text: str, now: datetime | None = None) -> datetime | None:
    """Return the time that a message names; None if there is none, or one over a year away.

    The message may name a span, a date, a time of day, or seconds since 1970.
    """
    now = now or datetime.now(UTC)
    return _unless_too_late(_find_time(text, now), now)


def _unless_too_late(at: datetime | None, now: datetime) -> datetime | None:
    """Return the time, or None if it is later than any limit lasts."""
    if at is None or (at - now).total_seconds() > _LONGEST_S:
        return None
    return at


def _find_time(text: str, now: datetime) -> datetime | None:
    if epoch := _EPOCH.search(text):
        return datetime.fromtimestamp(int(epoch[1]), UTC)
    if span := _WAIT.search(text):
        return now + timedelta(seconds=min(_seconds(span[1]), _LONGEST_S))
    clock = _DATE.search(text) or _CLOCK.search(text)
    if clock:
        return _on_clock(clock, now)
    return None


def read_retry_headers(
    headers: Mapping[str, str], status: int, now: datetime | None = None
) -> str | None:
    """Return the ISO time at which HTTP headers allow the next request."""
    now = now or datetime.now(UTC)
    values = {name.lower(): value.strip() for name, value in headers.items()}
    at = _moment(f"{values.get('retry-after-ms', '')}ms", now)
    at = at or _moment(values.get("retry-after", ""), now)
    if at is None and status == 429:
        at = _reset_of_limits(values, now)
    if at and (at - now).total_seconds() < _LONGEST_S:
        return at.isoformat()
    return None


def _reset_of_limits(values: Mapping[str, str], now: datetime) -> datetime | None:
    """Return the latest reset among the rate limits that are used up, else among all."""
    resets = []
    used_up = []
    for name, value in values.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        at = _moment(value, now)
        if at is None:
            continue
        resets.append(at)
        if values.get(name.replace("reset", "remaining")) in {"0", "0.0"}:
            used_up.append(at)
    return max(used_up or resets, default=None)


def _seconds(span: str) -> float:
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(span))


def _on_clock(match: re.Match[str], now: datetime) -> datetime | None:
    """Return the next moment at which a clock shows the time of a match of _CLOCK or _DATE."""
    fields = match.groupdict()
    month = fields.get("month")
    year = fields.get("year")
    half = fields["half"]
    if not month and half is None and fields["minute"] is None:
        return None  # a bare number is no time of day
    hour = int(fields["hour"] or 0)
    if half:
        hour %= 12
        if half.lower() == "pm":
            hour += 12
    local = now.astimezone(_zone(fields["zone"]))
    try:
        at = local.replace(hour=hour, minute=int(fields["minute"] or 0), second=0, microsecond=0)
        if month:
            number = _MONTHS.index(month.lower()) + 1
            at = at.replace(int(year or at.year), number, int(fields["day"]))
            if not year and at < local - _HALF_A_YEAR:
                at = at.replace(year=at.year + 1)
        # A message with "try again at" names the date unless it is today.
        elif at <= local - _JUST_NOW and not fields["again"]:
            at += timedelta(days=1)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _zone(name: str | None) -> ZoneInfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, ValueError, OSError):
        return None


def _moment(value: str, now: datetime) -> datetime | None:
    """Return the time that a header names.

    That is seconds from now or since 1970, a span such as 6m0s, or a date in ISO or HTTP form.
    """
    span = value.replace(" ", "")
    if _SPAN.fullmatch(span):
        return now + timedelta(seconds=min(_seconds(span), _LONGEST_S))
    try:
        number = float(value)
    except ValueError:
        return _date(value, datetime.fromisoformat) or _date(value, parsedate_to_datetime)
    if number > 1e11:
        number /= 1000
    try:
        if number > 1e9:
            return datetime.fromtimestamp(number, UTC)
        return now + timedelta(seconds=max(number, 0.0))
    except (ValueError, OverflowError, OSError):
        return None


def _date(value: str, read: Callable[[str], datetime]) -> datetime | None:
    try:
        at = read(value)
        return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None
