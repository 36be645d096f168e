"""When a provider's limit ends, as the headers of its refusal say."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

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
