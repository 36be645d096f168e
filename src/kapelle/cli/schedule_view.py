"""Schedules and their firings for people."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from kapelle.cli.format import (
    STATUS_STYLE,
    clean,
    command_lines,
    field,
    heading,
    one_line,
    table,
    until,
)
from kapelle.cli.values import typed_duration, zone
from kapelle.domain.errors import InvalidInput

_STYLES = {**STATUS_STYLE, "active": "cyan", "expired": "dim", "started": "green", "missed": "red"}
_MISSED = {"skip": "skipped", "catchup": "made up for by one start", "fail": "the schedule fails"}
_ENDED = frozenset({"completed", "failed", "cancelled", "expired"})

Schedule = dict[str, Any]
Firing = dict[str, Any]


def rows(schedules: Sequence[Schedule]) -> list[str]:
    cells = [
        [
            schedule["id"],
            schedule["status"],
            one_line(trigger(schedule), 50),
            until(schedule["next_at"]),
            _runs(schedule),
            one_line(_title(schedule)),
        ]
        for schedule in schedules
    ]
    styles = [_STYLES.get(schedule["status"]) for schedule in schedules]
    return table(["ID", "STATUS", "WHEN", "NEXT", "RUNS", "TITLE"], cells, styles, fold=(2, 3, 4))


def describe(schedule: Schedule, firings: Sequence[Firing]) -> Iterator[str]:
    """The lines of the human view, ready for the terminal."""
    yield from heading(schedule, schedule["reason"], _STYLES)
    # The first words of what it is about.
    words = schedule["spec"].get("prompt") or schedule["spec"].get("goal") or ""
    yield field("starts", one_line(f"{schedule['kind']} {words}", 100))
    yield field("directory", clean(schedule["directory"]))
    yield field("when", one_line(trigger(schedule)))
    if schedule["next_at"]:
        yield field(
            "next", f"{_clock(schedule['next_at'], schedule)}, {until(schedule['next_at'])}"
        )
    if schedule["cron"] or schedule["at"]:
        yield field("missed", _MISSED[schedule["missed"]])
    yield field("overlap", "allowed" if schedule["overlap"] else "no")
    if schedule["expires_at"]:
        yield field("expires", _clock(schedule["expires_at"], schedule))
    yield field("runs", _runs(schedule))
    if schedule["in_flight"]:
        yield field("going", " ".join(schedule["in_flight"]))
    if firings:
        yield field("firings", "")
        yield from history(firings, schedule, indent=4)
    yield from command_lines(_commands(schedule))


def history(firings: Sequence[Firing], schedule: Schedule, indent: int = 0) -> list[str]:
    rows = [
        [
            _clock(firing["slot"], schedule),
            firing["outcome"],
            firing["subject"] or "",
            firing["subject_status"] or "",
            one_line(firing["reason"] or ""),
        ]
        for firing in firings
    ]
    styles = [_STYLES.get(firing["outcome"]) for firing in firings]
    header = ["SLOT", "OUTCOME", "STARTED", "STATUS", "REASON"]
    return table(header, rows, styles, indent, fold=(2, 3, 4))


def trigger(schedule: Schedule) -> str:
    """When it starts something, in a few words."""
    follows = f" after {schedule['after']}" if schedule["after"] else ""
    if schedule["cron"]:
        zone = "" if schedule["timezone"] == "UTC" else f" {schedule['timezone']}"
        return f"{schedule['cron']}{zone}{follows}"
    if schedule["at"]:
        return f"at {_clock(schedule['at'], schedule)}{follows}"
    if schedule["every_s"]:
        return f"every {typed_duration(schedule['every_s'])}"
    return follows.strip()


def upcoming(schedule: Schedule) -> str:
    """What comes next, as the beginning of a sentence."""
    if schedule["next_at"] is None:
        return f"It {schedule['reason'] or 'waits'}"
    return f"Next at {_clock(schedule['next_at'], schedule)}, {until(schedule['next_at'])}"


def _title(schedule: Schedule) -> str:
    waits = schedule["reason"] and schedule["status"] not in {"completed", "cancelled"}
    return f"{schedule['title']} ({schedule['reason']})" if waits else str(schedule["title"])


def _runs(schedule: Schedule) -> str:
    most = f" of {schedule['max_runs']}" if schedule["max_runs"] else ""
    return f"{schedule['started']}{most}"


def _clock(text: str, schedule: Schedule) -> str:
    """A moment in the schedule's own zone."""
    try:
        place = zone(schedule["timezone"])
    except InvalidInput:
        place = UTC  # the daemon may know zones that this machine does not
    return f"{datetime.fromisoformat(text).astimezone(place):%Y-%m-%d %H:%M:%S %Z}"


def _commands(schedule: Schedule) -> list[tuple[str, str]]:
    name = schedule["id"]
    found = [(f"kapelle schedule history {name}", "what became of its slots")]
    if schedule["status"] == "active":
        found.append((f"kapelle schedule pause {name}", "start nothing until it is resumed"))
    elif schedule["status"] == "paused":
        found.append((f"kapelle schedule resume {name}", "go on with the next slot"))
    if schedule["status"] not in _ENDED:
        found.append((f"kapelle schedule run {name}", "start it now, besides its slots"))
        found.append((f"kapelle schedule cancel {name}", "end it"))
    return found
