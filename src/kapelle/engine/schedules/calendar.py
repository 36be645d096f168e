"""Times at which a cron expression is due, in UTC, across the clock changes of a zone.

cronsim matches times of day; this module places them on the UTC time line. A fixed local time that
a clock change skips is due at the end of the gap; one that occurs twice is due the first time. If
the hour field contains `*`, every minute shown by the clock counts: such a schedule follows elapsed
time, so that "every 20 minutes" stays every 20 minutes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim

_SECOND = timedelta(seconds=1)
# No zone changes its clocks twice within a day.
_DAY = timedelta(days=1)
# Limit of counting: the minutes of a year would take long, and nobody needs their number.
_MOST_COUNTED = 1000


@dataclass(frozen=True)
class PassedSlots:
    """The slots between two moments: their number, or a lower bound of it, and the newest."""

    count: int
    more: bool
    newest: datetime


def next_slot(cron: str, zone: str, moment: datetime) -> datetime | None:
    """Return the first slot after a moment; None if there is none within fifty years."""
    return next(slots_after(cron, zone, moment), None)


def slots_after(cron: str, zone: str, moment: datetime) -> Iterator[datetime]:
    """Yield all slots after a moment, in order, each once."""
    hour = cron.split()[1]
    place = _by_clock if "*" in hour else _by_date
    return place(cron, ZoneInfo(zone), moment.astimezone(UTC))


def count_slots(cron: str, zone: str, first: datetime, last: datetime) -> PassedSlots | None:
    """Return the slots from first to last, both included; None if there are none."""
    before = first - timedelta(microseconds=1)
    slots = list(islice(slots_between(cron, zone, before, last), _MOST_COUNTED + 1))
    if not slots:
        return None
    if len(slots) <= _MOST_COUNTED:
        return PassedSlots(len(slots), False, slots[-1])
    return PassedSlots(_MOST_COUNTED, True, _newest(cron, zone, slots[-1], last))


def _newest(cron: str, zone: str, earliest: datetime, last: datetime) -> datetime:
    """Return the last slot up to a moment, searched in a window that grows backwards."""
    window = timedelta(hours=2)
    while last - window > earliest:
        *_, newest = [None, *slots_between(cron, zone, last - window, last)]
        if newest is not None:
            return newest
        window *= 8
    *_, newest = [earliest, *slots_between(cron, zone, earliest, last)]
    return newest


def slots_between(cron: str, zone: str, moment: datetime, last: datetime) -> Iterator[datetime]:
    """Yield the slots after a moment, up to and including a last moment."""
    for slot in slots_after(cron, zone, moment):
        if slot > last:
            return
        yield slot


def _by_date(cron: str, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
    latest = moment
    for wall in CronSim(cron, _wall(moment, zone)):
        slot = _place_in_utc(wall, zone)
        # Times in one gap fall on one slot, and in a repeated hour some slots have passed already.
        if slot > latest:
            latest = slot
            yield slot


def _by_clock(cron: str, zone: ZoneInfo, moment: datetime) -> Iterator[datetime]:
    start = _wall(moment, zone)
    while True:
        offset = _offset(moment, zone)
        for wall in CronSim(cron, start):
            slot = wall.replace(tzinfo=UTC) - offset
            change = _first_change(zone, moment, slot)
            if change is not None:
                break
            moment = slot
            yield slot
        else:
            return
        # Continue from the change itself, with the new clock.
        moment = change
        start = _wall(change, zone) - _SECOND


def _place_in_utc(wall: datetime, zone: ZoneInfo) -> datetime:
    slot = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _wall(slot, zone) == wall:
        return slot
    # In a gap, the two readings of a time lie on both sides of the change.
    other = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _first_change(zone, other, slot) or slot


def _first_change(zone: ZoneInfo, moment: datetime, last: datetime) -> datetime | None:
    """Return the first moment in (moment, last] at which the clocks of the zone change."""
    while moment < last:
        step = min(moment + _DAY, last)
        if _offset(step, zone) != _offset(moment, zone):
            return _change_between(zone, moment.replace(microsecond=0), step)
        moment = step
    return None


def _change_between(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    while high - low > _SECOND:
        middle = low + (high - low) // (2 * _SECOND) * _SECOND
        if _offset(middle, zone) == _offset(low, zone):
            low = middle
        else:
            high = middle
    return high


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)
