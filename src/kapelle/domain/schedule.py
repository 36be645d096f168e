"""A schedule: what starts a task or a run again and again or later, and what its firings did.

Cron expressions and time zones are taken as people type them; a mistake says what to type instead.
"""

import difflib
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from kapelle.domain.errors import BrokenRule
from kapelle.domain.options import command
from kapelle.domain.specs import Name, Spec, Text, field
from kapelle.domain.task import Limit, Record
from kapelle.domain.times import parse_moment, read_seconds

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
    fields = _SHORT_FORMS.get(text.strip().lower(), text).split()
    expression = " ".join(fields)
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
    zones = _zones()
    if text.casefold() in zones:
        return zones[text.casefold()]
    cities = {folded.rpartition("/")[2]: folded for folded in zones}
    typed = text.casefold().replace(" ", "_")
    near = difflib.get_close_matches(typed, [*zones, *cities], n=2, cutoff=0.6)
    meant = [zones[cities.get(one, one)] for one in near]
    if meant:
        advice = f"perhaps {' or '.join(meant)}"
    else:
        advice = "write one such as Europe/Berlin or UTC"
    raise ValueError(f"{text!r} is not a time zone; {advice}")


@cache
def _zones() -> dict[str, str]:
    """Every zone by its name in small letters."""
    return {name.casefold(): name for name in sorted(available_timezones())}


_YEAR_S = 31_536_000
_LAST_YEAR = 3000


class ScheduleStatus(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


OPEN = frozenset({ScheduleStatus.ACTIVE, ScheduleStatus.PAUSED})


class MissedPolicy(StrEnum):
    SKIP = "skip"
    CATCHUP = "catchup"
    FAIL = "fail"


class Outcome(StrEnum):
    """What became of a slot; the first two are still to become one of the others."""

    HELD = "held"
    STARTING = "starting"
    STARTED = "started"
    SKIPPED = "skipped"
    MISSED = "missed"
    FAILED = "failed"


def _in_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        shown = value.isoformat()
        raise ValueError(f"a time zone is missing: write {shown}Z or {shown}+01:00")
    if not 1970 < value.year < _LAST_YEAR:
        raise ValueError(f"the year must lie between 1970 and {_LAST_YEAR}")
    return value.astimezone(UTC)


Moment = Annotated[datetime, AfterValidator(_in_utc)]
Cron = Annotated[Text, Field(max_length=200), AfterValidator(require_cron)]
Zone = Annotated[Text, Field(max_length=100), AfterValidator(require_zone)]


class ScheduleSpec(Spec):
    """What is started, by which trigger, and what holds for it."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Start something later, again and again, or after something else.",
            "The options of the schedule come first, then the command that it is to start.",
        )
    )

    kind: Name = Field(
        "task", description="`task`, or the name of a pattern such as loop, team or pipeline"
    )
    spec: dict[str, Any] = Field(
        description="what is started: the fields of a task, or of that pattern's specification"
    )
    cron: Cron | None = field(
        None, "minute, hour, day of month, month, day of week", metavar="EXPRESSION"
    )
    at: Moment | None = field(
        None, "once: 2h, 18:30 or 2030-01-31T18:30", metavar="TIME", kind="moment"
    )
    every_s: Annotated[float, BeforeValidator(read_seconds)] | None = field(
        None, "at once, then so long after each success: seconds, or 10m or 2h", "--every",
        help="at once, then so long after each success", kind="duration", ge=1, le=_YEAR_S,
        allow_inf_nan=False,
    )  # fmt: skip
    after: Text | None = field(
        None, "when that schedule's work has succeeded; with cron or at, not before that time",
        help="when that schedule's work has succeeded; with --cron or --at, not before",
        metavar="ID", complete="schedules", min_length=1, max_length=100,
    )  # fmt: skip
    timezone: Zone = field(
        "UTC", "for cron and at, as Europe/Berlin", metavar="ZONE",
        help="for --cron and --at, as Europe/Berlin",
    )  # fmt: skip
    missed: MissedPolicy = field(
        MissedPolicy.SKIP, "what becomes of slots that nobody saw; catchup starts one"
    )
    overlap: bool = field(False, "start even while the work before is going")
    max_runs: int | None = field(None, "at most so often", ge=1, le=1_000_000)
    expires_at: Moment | None = field(
        None, "start nothing from then on: 2h, 18:30 or 2030-01-31T18:30", "--expires",
        help="start nothing from then on", metavar="TIME", kind="moment",
    )  # fmt: skip
    title: Name | None = field(None, "a short name for lists", metavar="TEXT")

    @model_validator(mode="before")
    @classmethod
    def _read_moments(cls, values: Any) -> Any:
        """Read the times as the command line does: a duration, a clock, a date with a time."""
        if not isinstance(values, dict):
            return values
        try:
            place = ZoneInfo(require_zone(str(values.get("timezone", "UTC"))))
        except ValueError:
            return values  # the field itself says what is wrong with the zone
        read = {}
        for name in ("at", "expires_at"):
            if not isinstance(text := values.get(name), str):
                continue
            try:
                read[name] = parse_moment(text, datetime.now(UTC), place)
            except ValueError as error:
                raise BrokenRule(f"`{name}`: {error}", name) from None
            except OverflowError:
                continue  # the field itself names the years that there are
        return {**values, **read}

    @model_validator(mode="after")
    def _one_trigger(self) -> "ScheduleSpec":
        triggers = [name for name in ("cron", "at", "every_s") if getattr(self, name)]
        if len(triggers) > 1:
            names = " and ".join(f"`{name}`" for name in triggers)
            raise BrokenRule(f"{names} exclude each other: leave all but one out", *triggers)
        if not triggers and self.after is None:
            text = "a trigger is missing: give `cron`, `at`, `every_s` or `after`"
            raise BrokenRule(text, "cron", "at", "every_s", "after")
        if self.every_s is not None and self.after is not None:
            text = "`after` goes with `cron` or `at`, or alone, but not with `every_s`"
            raise BrokenRule(text, "after", "cron", "at", "every_s")
        if self.every_s is not None and (self.overlap or self.missed is not MissedPolicy.SKIP):
            raise BrokenRule(
                "with `every_s` the next one begins when the one before it has ended: "
                "neither `overlap` nor `missed` apply",
                "every_s",
                "overlap",
                "missed",
            )
        if self.at is not None and self.expires_at is not None and self.expires_at <= self.at:
            raise BrokenRule("`expires_at` must be later than `at`", "expires_at", "at")
        return self


class Firing(Record):
    """One slot and what became of it; subject is the task or run that it started."""

    schedule_id: str
    slot: datetime
    at: datetime
    outcome: Outcome
    reason: str | None
    subject: str | None
    subject_status: str | None


class Schedule(Record):
    id: str
    title: str
    kind: str
    spec: dict[str, Any]
    directory: str
    project: str | None
    cron: str | None
    at: datetime | None
    every_s: float | None
    after: str | None
    timezone: str
    missed: MissedPolicy
    overlap: bool
    max_runs: int | None
    expires_at: datetime | None
    status: ScheduleStatus
    reason: str | None
    next_at: datetime | None
    started: int
    in_flight: list[str]
    created_at: datetime
    ended_at: datetime | None


class ScheduleFilter(Record):
    """Which schedules are listed, newest first; cursor is the last id of the page before."""

    status: list[ScheduleStatus] | None = None
    project: Name | None = None
    limit: Limit = 50
    cursor: Annotated[str, StringConstraints(pattern="^schedule_[0-9a-z]{26}$")] | None = None


Trigger = Literal["cron", "at", "every", "after"]
