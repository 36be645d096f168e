"""When a limit ends, as far as a provider says so."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo

_UNITS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hour"), 3600),
}
_LONGEST_S = 366 * 86_400.0
_WAIT = re.compile(
    r"(?:try again|retry|reset\w*|available(?: again)?|wait)\b[^.\n]{0,40}?\b(?:in|after|for)\s+"
    r"((?:\d+(?:\.\d+)?\s*(?:ms|hours?|h|minutes?|min|m|seconds?|sec|s)(?![a-z])[\s,and]*)+)",
    re.IGNORECASE,
)
_PART = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|hour|h|minute|min|m|second|sec|s)s?(?![a-z])", re.IGNORECASE
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>am|pm)?"
_ZONE = r"(?:\s*\((?P<zone>[A-Za-z_]+(?:/[\w+-]+)*)\))?"
_CLOCK = re.compile(rf"reset\w*\s+(?:at\s+)?{_TIME}{_ZONE}", re.IGNORECASE)
_DATE = re.compile(
    rf"reset\w*\s+(?:on\s+)?(?P<month>{'|'.join(_MONTHS)})[a-z]*\.?\s+(?P<day>\d{{1,2}})\b"
    rf"(?:,\s*(?P<year>\d{{4}})\b)?(?:(?:,|\s+at)\s+{_TIME})?{_ZONE}",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"limit reached\|(\d{10})\b")
# A time in whole minutes may have just passed when it is read; it does not mean tomorrow then.
_JUST_NOW = timedelta(minutes=10)
_HALF_A_YEAR = timedelta(days=183)


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
    """A time that a message names: a span, a date, a time of day, or an epoch."""
    now = now or datetime.now(UTC)
    if found := _EPOCH.search(text):
        return datetime.fromtimestamp(int(found[1]), UTC)
    if found := _WAIT.search(text):
        return now + timedelta(seconds=min(_seconds(found[1]), _LONGEST_S))
    if found := _DATE.search(text):
        return _on_day(found, now)
    if found := _CLOCK.search(text):
        return _next(found, now)
    return None


def _seconds(span: str) -> float:
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(span))


def _next(found: re.Match[str], now: datetime) -> datetime | None:
    """The next moment at which a clock in that zone, or here, shows this time."""
    if found["half"] is None and found["minute"] is None:
        return None  # a bare number is no time of day
    local = now.astimezone(_zone(found))
    try:
        at = _at_time(local, found)
    except ValueError:
        return None
    if at <= local - _JUST_NOW:
        at += timedelta(days=1)
    return at.astimezone(UTC)


def _on_day(found: re.Match[str], now: datetime) -> datetime | None:
    """That day in that zone, or here, in the year that is nearest when none is named."""
    local = now.astimezone(_zone(found))
    month, year = _MONTHS.index(found["month"].lower()) + 1, int(found["year"] or local.year)
    try:
        at = _at_time(local.replace(year=year, month=month, day=int(found["day"])), found)
        if found["year"] is None and at < local - _HALF_A_YEAR:
            at = at.replace(year=year + 1)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _at_time(day: datetime, found: re.Match[str]) -> datetime:
    hour = int(found["hour"] or 0)
    if found["half"]:
        hour = hour % 12 + (12 if found["half"].lower() == "pm" else 0)
    return day.replace(hour=hour, minute=int(found["minute"] or 0), second=0, microsecond=0)


def _zone(found: re.Match[str]) -> ZoneInfo | None:
    try:
        return ZoneInfo(found["zone"]) if found["zone"] else None
    except (KeyError, ValueError, OSError):
        return None


_SPAN = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_LONGEST = timedelta(days=366)


def retry_at(headers: Mapping[str, str], status: int, now: datetime | None = None) -> str | None:
    """The ISO time from which to try again; of several limits, the last of those used up."""
    now = now or datetime.now(UTC)
    given = {name.lower(): value.strip() for name, value in headers.items()}
    at = _millis(given.get("retry-after-ms"), now) or _moment(given.get("retry-after", ""), now)
    if at is None and status == 429:
        resets = dict(_resets(given, now))
        used_up = [at for name, at in resets.items() if _none_left(name, given)]
        at = max(used_up or resets.values(), default=None)
    return at.isoformat() if at and at - now < _LONGEST else None


def _resets(headers: Mapping[str, str], now: datetime) -> Iterator[tuple[str, datetime]]:
    for name, value in headers.items():
        if "ratelimit" in name and "reset" in name:
            at = _moment(value, now)
            if at:
                yield name, at


def _none_left(name: str, headers: Mapping[str, str]) -> bool:
    return headers.get(name.replace("reset", "remaining")) in {"0", "0.0"}


def _moment(value: str, now: datetime) -> datetime | None:
    """Seconds from now or since 1970, a span such as 6m0s, or a date in either usual form."""
    try:
        number = float(value)
    except ValueError:
        return _span(value, now) or _date(value)
    if number > 1e11:
        number /= 1000
    try:
        return datetime.fromtimestamp(number, UTC) if number > 1e9 else now + _ahead(number)
    except (ValueError, OverflowError, OSError):
        return None


def _millis(value: str | None, now: datetime) -> datetime | None:
    try:
        return now + _ahead(float(value) / 1000) if value else None
    except (ValueError, OverflowError):
        return None


def _ahead(seconds: float) -> timedelta:
    return timedelta(seconds=max(seconds, 0.0))


def _span(value: str, now: datetime) -> datetime | None:
    found = _SPAN.fullmatch(value.replace(" ", ""))
    if not value or not found:
        return None
    days, hours, minutes, seconds, millis = (float(part or 0) for part in found.groups())
    try:
        return now + timedelta(days, seconds, 0, millis, minutes, hours)
    except OverflowError:
        return None


def _date(value: str) -> datetime | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = read(value)
        except (ValueError, TypeError):
            continue
        return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    return None
