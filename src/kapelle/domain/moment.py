"""Moments as people and programs name them."""

import re
from datetime import UTC, date, datetime, timedelta

from kapelle.domain.errors import InvalidInput


def moment(text: str, name: str, *, ends: bool = False) -> datetime:
    """An ISO time, or a date, which stands for its beginning or end in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name}: {text!r} is neither a date nor a time.",
            hint="Write it like 2026-11-01 or 2026-11-01T12:00:00Z.",
        ) from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    is_day = not re.search(r"[T: ]", text.upper())
    return at + timedelta(days=1) if ends and is_day and at.date() < date.max else at
