"""Cron expressions and time zones as people type them, and what to type instead."""

import difflib
from datetime import datetime
from functools import cache
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError

_FIVE = "minute, hour, day of month, month and day of week"
_SHORT_FORMS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# By the words in which cronsim complains of a field.
_RANGES = {
    "minute": "a minute is 0 to 59",
    "hour": "an hour is 0 to 23",
    "day-of-month": "a day of the month is 1 to 31 and must exist in one of the months",
    "month": "a month is 1 to 12 or JAN to DEC",
    "day-of-week": "a day of the week is 0 to 7 or SUN to SAT",
}
# A time that has nothing special about it; which one is used does not matter.
_SOME_DAY = datetime(2024, 1, 1)


def require_cron(text: str) -> str:
    """The expression with single spaces; ValueError says what is wrong with it."""
    fields = text.split()
    expression = " ".join(fields)
    if expression.lower() in _SHORT_FORMS:
        raise ValueError(f"write {_SHORT_FORMS[expression.lower()]!r} instead of {text!r}")
    if len(fields) != 5:
        raise ValueError(
            f"{text!r} has {len(fields)} fields instead of five: {_FIVE}; "
            "'0 3 * * *' is every day at three"
        )
    try:
        slots = CronSim(expression, _SOME_DAY)
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")
        raise ValueError(
            f"{text!r}: {_RANGES.get(field, field)}, or *, a list 1,2, a range 1-5 or a step */2"
        ) from None
    if next(slots, None) is None:
        raise ValueError(f"{text!r} never comes")
    return expression


def require_zone(text: str) -> str:
    """The name of a time zone as the database of zones spells it; ValueError suggests some."""
    if text in _zones().values():
        return text
    close = _zones().get(text.casefold())
    if close is not None:
        return close
    city = "/" + text.casefold().replace(" ", "_")
    meant = [name for folded, name in _zones().items() if folded.endswith(city)]
    if not meant:
        near = difflib.get_close_matches(text.casefold(), _zones(), n=2, cutoff=0.6)
        meant = [_zones()[folded] for folded in near]
    advice = f"perhaps {' or '.join(meant)}" if meant else "write one such as Europe/Berlin or UTC"
    raise ValueError(f"{text!r} is not a time zone; {advice}")


@cache
def _zones() -> dict[str, str]:
    """Every zone by its name in small letters."""
    return {name.casefold(): name for name in sorted(available_timezones())}
