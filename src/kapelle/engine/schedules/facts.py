"""What is known of a schedule at one moment, read from the database."""

from datetime import datetime

from kapelle.domain.schedule import OPEN, Outcome
from kapelle.domain.states import TaskStatus
from kapelle.engine.schedules.rules import Leader, Situation, trigger_of
from kapelle.store import schedules
from kapelle.store.database import Connection
from kapelle.store.schedules import Row


def situation(
    connection: Connection, schedule_id: str, now: datetime, but: datetime | None = None
) -> Situation:
    """All that decides about a schedule; but is a slot of its own that is being decided about."""
    schedule = schedules.row(connection, schedule_id)
    unsettled = [
        row for row in schedules.unsettled_firings(connection, schedule_id) if row["slot"] != but
    ]
    starting = sum(row["outcome"] == Outcome.STARTING for row in unsettled)
    leader = schedule["after"]
    return Situation(
        schedule=schedule,
        now=now,
        going=_going(connection, schedule_id, bool(starting)),
        holding=len(unsettled) > starting,
        starting=starting,
        latest=schedules.latest_firing(connection, schedule_id),
        last_slot=schedules.last_slot(connection, schedule_id),
        leader=None if leader is None else _leader(connection, schedule, leader),
    )


def _leader(connection: Connection, schedule: Row, leader_id: str) -> Leader:
    to_follow: list[datetime] = []
    if trigger_of(schedule) == "after":
        since = schedule["created_at"]
        to_follow = schedules.to_follow(connection, schedule["id"], leader_id, since)
    return Leader(
        id=leader_id,
        is_open=schedules.row(connection, leader_id)["status"] in OPEN,
        going=_going(
            connection, leader_id, bool(schedules.unsettled_firings(connection, leader_id))
        ),
        failed=_failure(leader_id, schedules.latest_firing(connection, leader_id)),
        to_follow=tuple(to_follow),
    )


def _going(connection: Connection, schedule_id: str, unsettled: bool) -> str | None:
    subjects = schedules.in_flight(connection, [schedule_id]).get(schedule_id, [])
    if subjects:
        return subjects[-1]
    return "the start of an earlier slot" if unsettled else None


def _failure(leader_id: str, latest: Row | None) -> str | None:
    """Why the last work of a schedule is nothing to build on."""
    if latest is None:
        return None
    if latest["outcome"] == Outcome.FAILED:
        return f"{leader_id} could not start its work: {latest['reason']}"
    if latest["subject_status"] == TaskStatus.FAILED:
        return f"{latest['subject']} of {leader_id} failed"
    if latest["subject_status"] == TaskStatus.CANCELLED:
        return f"{latest['subject']} of {leader_id} was cancelled"
    return None
