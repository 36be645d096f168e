"""What a cron expression means, by brute force over the minutes of UTC; it knows no cronsim."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
_LIMITS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]
_NAMES = {"sun": "0", "mon": "1", "tue": "2", "wed": "3", "thu": "4", "fri": "5", "sat": "6"}


@dataclass(frozen=True)
class Change:
    """A change of a zone's clocks."""

    zone: str
    at: datetime
    before: timedelta
    after: timedelta


class Timeline:
    """Every minute from first to last with what the clocks of a zone show then."""

    # Wider than any change, so that the minutes at the edges are judged by what is around them.
    _MARGIN = timedelta(hours=4)

    def __init__(self, zone: str, first: datetime, last: datetime) -> None:
        self._span = (first, last)
        count = (last - first + 2 * self._MARGIN) // MINUTE
        self._line = [first - self._MARGIN + number * MINUTE for number in range(count + 1)]
        place = ZoneInfo(zone)
        self._clock = [
            moment.astimezone(place).replace(tzinfo=None, fold=0) for moment in self._line
        ]
        self._again, self._left_out = self._irregular()

    def slots(self, cron: str, around: timedelta | None = None) -> list[datetime]:
        """The slots of the whole time, or of that around its middle."""
        first, last = self._span
        if around is not None:
            middle = first + (last - first) / 2
            first, last = middle - around, middle + around
        fits = Matcher(cron)
        hour = cron.split()[1]
        due = {number for number, wall in enumerate(self._clock) if fits(wall)}
        if "*" not in hour:
            due -= self._again
            due |= {number for number, wall in self._left_out if fits(wall)}
        return [slot for number in sorted(due) if first <= (slot := self._line[number]) <= last]

    def _irregular(self) -> tuple[set[int], list[tuple[int, datetime]]]:
        """The minutes whose time of day was shown before, and the times that were never shown."""
        again, left_out = set(), []
        latest = self._clock[0] - MINUTE
        for number, wall in enumerate(self._clock):
            if wall <= latest:
                again.add(number)
                continue
            latest += MINUTE
            while latest < wall:
                left_out.append((number, latest))
                latest += MINUTE
        return again, left_out


class Matcher:
    def __init__(self, cron: str) -> None:
        parts = cron.lower().split()
        sets = [_values(part, *limits) for part, limits in zip(parts, _LIMITS, strict=True)]
        self.minutes, self.hours, self.days, self.months, weekdays = sets
        self.weekdays = {day % 7 for day in weekdays}
        self.both = parts[2].startswith("*") or parts[4].startswith("*")

    def __call__(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours:
            return False
        if wall.month not in self.months:
            return False
        by_date, by_weekday = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        return by_date and by_weekday if self.both else by_date or by_weekday


def _values(part: str, low: int, high: int) -> set[int]:
    if "," in part:
        return set().union(*(_values(piece, low, high) for piece in part.split(",")))
    part, _, step = part.partition("/")
    if part == "*":
        start, end = low, high
    elif "-" in part:
        start, end = (int(_NAMES.get(word, word)) for word in part.split("-"))
    else:
        start = int(_NAMES.get(part, part))
        end = high if step else start
    return set(range(start, end + 1, int(step or 1)))


def changes(zone: str, start: datetime, end: datetime) -> list[Change]:
    """Every change of a zone's clocks, to the minute."""
    place, found, moment = ZoneInfo(zone), [], start
    before = _offset(start, place)
    while moment < end:
        following = moment + timedelta(days=1)
        after = _offset(following, place)
        if after != before:
            low, high = moment, following
            while high - low > MINUTE:
                middle = low + (high - low) // (2 * MINUTE) * MINUTE
                low, high = (middle, high) if _offset(middle, place) == before else (low, middle)
            found.append(Change(zone, high, before, after))
        moment, before = following, after
    return found


def _offset(moment: datetime, place: ZoneInfo) -> timedelta:
    return moment.astimezone(place).utcoffset() or timedelta(0)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
