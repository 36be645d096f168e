"""When a limit ends, as a provider says it: in a field, in the words of a message, in headers.

The standard library alone: bridges load this too.
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
# All repetitions are bounded or end at once: an agent writes these texts.
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
# A time in whole minutes may have just passed when it is read; it does not mean tomorrow then.
_JUST_NOW = timedelta(minutes=10)
_HALF_A_YEAR = timedelta(days=183)


def reset_stated(value: object) -> datetime | None:
    """A time in a field of its own, ISO text or seconds since 1970; None if over a year away."""
    at = None
    if isinstance(value, int | float) and not isinstance(value, bool) and 1e9 < value < 1e11:
        at = datetime.fromtimestamp(value, UTC)
    elif isinstance(value, str):
        at = _date(value, datetime.fromisoformat)
    return _unless_too_late(at, datetime.now(UTC))


def reset_in(text: str, now: datetime | None = None) -> datetime | None:
    """A time that a message names: a span, a date, a time of day, or an epoch; None if over a
    year away."""
    now = now or datetime.now(UTC)
    return _unless_too_late(_named_in(text, now), now)


def _unless_too_late(at: datetime | None, now: datetime) -> datetime | None:
    """Return the time unless no limit lasts so long."""
    if at is None or (at - now).total_seconds() > _LONGEST_S:
        return None
    return at


def _named_in(text: str, now: datetime) -> datetime | None:
    if found := _EPOCH.search(text):
        return datetime.fromtimestamp(int(found[1]), UTC)
    if found := _WAIT.search(text):
        return now + timedelta(seconds=min(_seconds(found[1]), _LONGEST_S))
    found = _DATE.search(text) or _CLOCK.search(text)
    if found:
        return _on_clock(found, now)
    return None


def retry_at(headers: Mapping[str, str], status: int, now: datetime | None = None) -> str | None:
    """The ISO time that headers name; of several limits, the last of those used up."""
    now = now or datetime.now(UTC)
    given = {name.lower(): value.strip() for name, value in headers.items()}
    at = _moment(f"{given.get('retry-after-ms', '')}ms", now)
    at = at or _moment(given.get("retry-after", ""), now)
    if at is None and status == 429:
        names = [name for name in given if "ratelimit" in name and "reset" in name]
        resets = {name: at for name in names if (at := _moment(given[name], now))}
        left = {name: given.get(name.replace("reset", "remaining")) for name in resets}
        used_up = [at for name, at in resets.items() if left[name] in {"0", "0.0"}]
        at = max(used_up or resets.values(), default=None)
    if at and (at - now).total_seconds() < _LONGEST_S:
        return at.isoformat()
    return None


def _seconds(span: str) -> float:
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(span))


def _on_clock(found: re.Match[str], now: datetime) -> datetime | None:
    """The moment at which a clock in that zone, or here, shows this time: on that day, or next."""
    fields = found.groupdict()
    month = fields.get("month")
    year = fields.get("year")
    half = fields["half"]
    if not month and half is None and fields["minute"] is None:
        return None  # a bare number is no time of day
    hour = int(fields["hour"] or 0)
    if half:
        hour = hour % 12 + (12 if half.lower() == "pm" else 0)
    local = now.astimezone(_zone(fields["zone"]))
    try:
        at = local.replace(hour=hour, minute=int(fields["minute"] or 0), second=0, microsecond=0)
        if month:
            number = _MONTHS.index(month.lower()) + 1
            at = at.replace(int(year or at.year), number, int(fields["day"]))
            if not year and at < local - _HALF_A_YEAR:
                at = at.replace(year=at.year + 1)
        # Whoever says "try again at" names the day where it is another one.
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
    """Seconds from now or since 1970, a span such as 6m0s, or a date in either usual form."""
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
