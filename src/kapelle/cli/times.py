"""Moments and durations in the few letters a person needs."""

from datetime import UTC, datetime


def moment(text: str | None) -> datetime | None:
    """A time as the API writes it."""
    return datetime.fromisoformat(text) if text else None


def now() -> datetime:
    return datetime.now(UTC)


def short(seconds: float) -> str:
    """A duration such as 0.4s, 12s, 3m05s, 2h10m or 4d03h."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def between(start: str | None, end: str | None) -> str:
    """How long something took, or takes by now; empty when it has not begun."""
    began = moment(start)
    if began is None:
        return ""
    return short(((moment(end) or now()) - began).total_seconds())


def size(count: int) -> str:
    """A number of bytes for people."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return (
                f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
            )
        amount /= 1000
    return f"{amount:.1f} TB"
