"""Schedules: start a task or a run later, repeatedly, or after other work; and their firings.

Cron expressions and time zones are accepted as people type them; an error says how to correct them.
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
# By the names of fields in the errors of cronsim.
_RANGES = {
    "minute": "a minute is 0 to 59",
    "hour": "an hour is 0 to 23",
    "day-of-month": "a day of the month is 1 to 31 and must exist in one of the months",
    "month": "a month is 1 to 12 or JAN to DEC",
    "day-of-week": "a day of the week is 0 to 7 or SUN to SAT",
}
# Any ordinary day serves to test whether an expression ever matches.
_SOME_DAY = datetime(2024, 1, 1)


def require_cron(text: str) -> str:
    """Return a cron expression with single spaces; raise ValueError with the mistake."""
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
        raise ValueError(f"{text!r} never matches a time")
    return expression


def require_zone(text: str) -> str:
    """Return the official spelling of a time zone; raise ValueError with suggestions."""
    zones = _load_zones()
    if text.casefold() in zones:
        return zones[text.casefold()]
    cities = {zone.rpartition("/")[2]: zone for zone in zones}
    name = text.casefold().replace(" ", "_")
    similar = difflib.get_close_matches(name, [*zones, *cities], n=2, cutoff=0.6)
    suggestions = [zones[cities.get(one, one)] for one in similar]
    if suggestions:
        advice = f"did you mean {' or '.join(suggestions)}?"
    else:
        advice = "write, for example, Europe/Berlin or UTC"
    raise ValueError(f"{text!r} is not a time zone; {advice}")


@cache
def _load_zones() -> dict[str, str]:
    """Return the names of all time zones by their lower-case spelling."""
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
    """Result of a slot; HELD and STARTING are temporary."""

    HELD = "held"
    STARTING = "starting"
    STARTED = "started"
    SKIPPED = "skipped"
    MISSED = "missed"
    FAILED = "failed"


def _in_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        text = value.isoformat()
        raise ValueError(f"a time zone is missing: write {text}Z or {text}+01:00")
    if not 1970 < value.year < _LAST_YEAR:
        raise ValueError(f"the year must be between 1970 and {_LAST_YEAR}")
    return value.astimezone(UTC)


Moment = Annotated[datetime, AfterValidator(_in_utc)]
Cron = Annotated[Text, Field(max_length=200), AfterValidator(require_cron)]
Zone = Annotated[Text, Field(max_length=100), AfterValidator(require_zone)]


class ScheduleSpec(Spec):
    """Work to start, its trigger and its rules."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Start work later, repeatedly, or after other work.",
            "Write the options of the schedule first, then the command to start.",
        )
    )

    kind: Name = Field(
        "task", description="`task`, or the name of a pattern, for example loop, team or pipeline."
    )
    spec: dict[str, Any] = Field(
        description="Specification of the work: the fields of a task or of the pattern."
    )
    cron: Cron | None = field(
        None,
        "Cron expression: minute, hour, day of month, month, day of week.",
        metavar="EXPRESSION",
    )
    at: Moment | None = field(
        None,
        "Time of a single start: 2h, 18:30 or 2030-01-31T18:30.",
        metavar="TIME",
        kind="moment",
    )
    every_s: Annotated[float, BeforeValidator(read_seconds)] | None = field(
        None, "Delay between the success of one start and the next: seconds, 10m or 2h. The first "
        "start is immediate.", "--every",
        help="Start now, and again this long after each success.", kind="duration", ge=1,
        le=_YEAR_S, allow_inf_nan=False,
    )  # fmt: skip
    after: Text | None = field(
        None, "Schedule whose successful work triggers this one; with cron or at, not before that "
        "time.",
        help="Start when the work of that schedule succeeds; with --cron or --at, not before.",
        metavar="ID", complete="schedules", min_length=1, max_length=100,
    )  # fmt: skip
    timezone: Zone = field(
        "UTC", "Time zone for cron and at, for example Europe/Berlin.", metavar="ZONE",
        help="Time zone for --cron and --at, for example Europe/Berlin.",
    )  # fmt: skip
    missed: MissedPolicy = field(
        MissedPolicy.SKIP, "Policy for slots missed while the daemon was down; catchup starts one."
    )
    overlap: bool = field(False, "Start even if the previous work is still active.")
    max_runs: int | None = field(None, "Maximum number of starts.", ge=1, le=1_000_000)
    expires_at: Moment | None = field(
        None, "End of the schedule: 2h, 18:30 or 2030-01-31T18:30.", "--expires",
        help="End of the schedule.", metavar="TIME", kind="moment",
    )  # fmt: skip
    title: Name | None = field(None, "Short name for lists.", metavar="TEXT")

    @model_validator(mode="before")
    @classmethod
    def _read_moments(cls, values: Any) -> Any:
        """Parse times: a duration, a clock time, or a date with a time."""
        if not isinstance(values, dict):
            return values
        try:
            place = ZoneInfo(require_zone(str(values.get("timezone", "UTC"))))
        except ValueError:
            return values  # the validator of the field reports the invalid zone
        moments = {}
        for name in ("at", "expires_at"):
            if not isinstance(text := values.get(name), str):
                continue
            try:
                moments[name] = parse_moment(text, datetime.now(UTC), place)
            except ValueError as error:
                raise BrokenRule(f"`{name}`: {error}", name) from None
            except OverflowError:
                continue  # the validator of the field reports the invalid year
        return {**values, **moments}

    @model_validator(mode="after")
    def _one_trigger(self) -> "ScheduleSpec":
        triggers = [name for name in ("cron", "at", "every_s") if getattr(self, name)]
        if len(triggers) > 1:
            names = " and ".join(f"`{name}`" for name in triggers)
            raise BrokenRule(f"{names} cannot be combined: give one of them", *triggers)
        if not triggers and self.after is None:
            text = "a trigger is missing: give `cron`, `at`, `every_s` or `after`"
            raise BrokenRule(text, "cron", "at", "every_s", "after")
        if self.every_s is not None and self.after is not None:
            text = "`after` cannot be combined with `every_s`, only with `cron` or `at`"
            raise BrokenRule(text, "after", "cron", "at", "every_s")
        if self.every_s is not None and (self.overlap or self.missed is not MissedPolicy.SKIP):
            raise BrokenRule(
                "with `every_s` a start follows the end of the previous work: "
                "`overlap` and `missed` do not apply",
                "every_s",
                "overlap",
                "missed",
            )
        if self.at is not None and self.expires_at is not None and self.expires_at <= self.at:
            raise BrokenRule("`expires_at` must be later than `at`", "expires_at", "at")
        return self


class Firing(Record):
    """One slot and its result; subject is the task or run that it started."""

    schedule_id: str
    slot: datetime
    at: datetime
    outcome: Outcome
    reason: str | None
    subject: str | None
    subject_status: str | None


class Schedule(Record):
    """A stored schedule."""

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
    """Filter for schedules, newest first; cursor is the last id of the previous page."""

    status: list[ScheduleStatus] | None = None
    project: Name | None = None
    limit: Limit = 50
    cursor: Annotated[str, StringConstraints(pattern="^schedule_[0-9a-z]{26}$")] | None = None


Trigger = Literal["cron", "at", "every", "after"]
