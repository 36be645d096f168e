"""What needs a person, over all rows: found with few columns, folded by cause, in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.needs import NeedKind, find_cause, find_need
from kapelle.domain.states import TaskStatus
from kapelle.store import runs as run_rows
from kapelle.store.attempts import LOOKS_AT_WORK
from kapelle.store.query import Row
from kapelle.store.repository import resolve_path
from kapelle.store.statements import Statement
from kapelle.store.tables import (
    WORK,
    attempts,
    checks,
    deliveries,
    dependencies,
    questions,
    tasks,
)

# What the rule reads of a task or a run, and what its needs are filtered and ordered by.
_COLUMNS = (
    "id", "status", "waiting_for", "parent_task_id", "project", "repository", "directory",
    "workspace_branch", "workspace_commit", "workspace_base_commit", "workspace_owner",
    "created_at", "ended_at", "archived_at", "merged_at", "seen_at", "flagged_at",
    "snoozed_until",
)  # fmt: skip
_DELIVERY = ("status", "reason", "state", "ci", "updated_at")
_RANK = {kind: rank for rank, kind in enumerate(NeedKind)}


@dataclass(slots=True)
class FoundNeed:
    """One thing that needs a person: a task or run, or several with one cause, newest first."""

    kind: NeedKind
    cause: str | None
    failure: str | None
    agent: str | None
    at: datetime
    blocked: int
    ids: list[str]
    repositories: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Return what tells it from the others, for as long as it is there."""
        return f"{self.kind} {self.cause or self.ids[0]}"


def _statement(table: sa.Table, around: sa.Column[Any]) -> Statement:
    """Select the rows that may need a person; the rule decides about each."""
    columns = table.c
    own = deliveries.c
    query = sa.select(*(columns[name] for name in _COLUMNS), around)
    query = query.add_columns(*(own[name].label(f"delivery_{name}") for name in _DELIVERY))
    is_own = sa.and_(own.owner == columns.id, own.mode != "branch")
    origin = table.outerjoin(deliveries, is_own)
    is_open: sa.ColumnElement[bool] = columns.status.in_(["waiting", "paused"])
    if table is tasks:
        query = query.add_columns(attempts.c.failure, attempts.c.agent)
        looked_at = sa.exists().where(checks.c.attempt_id == attempts.c.id, LOOKS_AT_WORK)
        query = query.add_columns(looked_at.label("verified"))
        last = sa.select(sa.func.max(attempts.c.number)).where(attempts.c.task_id == columns.id)
        is_last = attempts.c.number == last.correlate(tasks).scalar_subquery()
        is_last = sa.and_(attempts.c.task_id == columns.id, is_last)
        origin = origin.outerjoin(attempts, is_last)
    else:
        asks = sa.exists().where(questions.c.run_id == columns.id, questions.c.status == "open")
        is_open = sa.or_(is_open, sa.and_(columns.status == "running", asks))
    # Work without a commit of its own can need nobody once it is completed.
    has_result = sa.and_(columns.status == "completed", columns.workspace_commit.is_not(None))
    is_unmerged = sa.and_(
        columns.merged_at.is_(None), sa.or_(columns.status == "failed", has_result)
    )
    is_top = sa.and_(around.is_(None), columns.parent_task_id.is_(None))
    ended = sa.and_(is_top, sa.or_(is_unmerged, own.owner.is_not(None)))
    which = sa.or_(is_open, ended, columns.flagged_at.is_not(None))
    return Statement(query.select_from(origin).where(columns.archived_at.is_(None), which))


_CANDIDATES = [(table, _statement(table, around)) for table, around in WORK]
_BLOCKED = Statement(
    sa.select(dependencies.c.depends_on, sa.func.count().label("number"))
    .join(tasks, tasks.c.id == dependencies.c.task_id)
    .where(tasks.c.status == TaskStatus.BLOCKED)
    .group_by(dependencies.c.depends_on)
)
_ASKED = Statement(
    sa.select(questions.c.task_id, questions.c.run_id, questions.c.asked_at)
    .where(questions.c.status == "open")
    .order_by(questions.c.asked_at.desc())
)
_NEXT_DUE = [
    Statement(
        sa.select(sa.func.min(table.c.snoozed_until)).where(
            table.c.snoozed_until > sa.bindparam("now"), table.c.archived_at.is_(None)
        )
    )
    for table, _ in WORK
]


def list_needs(
    connection: sa.Connection, project: str | None = None, repository: str | None = None
) -> list[FoundNeed]:
    """Return everything that needs a person, one by one, in the order in which it is listed."""
    now = datetime.now(UTC)
    if repository:
        path = resolve_path(connection, repository)
    else:
        path = None
    asked = {row["task_id"] or row["run_id"]: row["asked_at"] for row in _ASKED.rows(connection)}
    blocked = {row["depends_on"]: row["number"] for row in _BLOCKED.rows(connection)}
    found = []
    for row in _candidates(connection):
        if project is not None and row["project"] != project:
            continue
        if path is not None and row["repository"] != path:
            continue
        kind = _kind(row, now, has_question=row["id"] in asked)
        if kind is None:
            continue
        if kind is NeedKind.FAILURE:
            failure = row.get("failure")
        else:
            failure = None
        need = FoundNeed(
            kind=kind,
            cause=find_cause(kind, failure, row.get("agent")),
            failure=failure,
            agent=row.get("agent"),
            at=_moment(kind, row, asked),
            blocked=blocked.get(row["id"], 0),
            ids=[row["id"]],
            repositories=[row["repository"] or row["directory"]],
        )
        found.append(need)
    return sorted(found, key=_order)


def list_ids(connection: sa.Connection) -> list[str]:
    """Return the ids of all tasks and runs that need a person."""
    return [need.ids[0] for need in list_needs(connection)]


def fold(needs: Sequence[FoundNeed]) -> list[FoundNeed]:
    """Return the needs with those of one cause as one, in the place of the first of them."""
    folded: dict[str, FoundNeed] = {}
    for need in needs:
        group = folded.setdefault(need.key, need)
        if group is not need:
            group.ids.extend(need.ids)
            group.blocked += need.blocked
            if need.repositories[0] not in group.repositories:
                group.repositories.extend(need.repositories)
    return list(folded.values())


def find_next_due(connection: sa.Connection) -> datetime | None:
    """Return when the next snoozed work needs a person again."""
    now = datetime.now(UTC)
    due = [statement.scalar(connection, now=now) for statement in _NEXT_DUE]
    return min((moment for moment in due if moment is not None), default=None)


def _candidates(connection: sa.Connection) -> Iterator[Row]:
    for table, statement in _CANDIDATES:
        rows = statement.rows(connection)
        if table is tasks:
            yield from rows
            continue
        completed = [row["id"] for row in rows if row["status"] == "completed"]
        verified = run_rows.find_verified(connection, completed)
        for row in rows:
            yield {**row, "verified": row["id"] in verified}


def _kind(row: Row, now: datetime, has_question: bool) -> NeedKind | None:
    delivery = None
    if row["delivery_status"] is not None:
        delivery = {name: row[f"delivery_{name}"] for name in _DELIVERY}
    return find_need(
        row, now, verified=row["verified"], delivery=delivery, has_question=has_question
    )


def _moment(kind: NeedKind, row: Row, asked: dict[str, datetime]) -> datetime:
    """Return since when it needs a person."""
    moments = {
        NeedKind.QUESTION: asked.get(row["id"]),
        NeedKind.DELIVERY: row["delivery_updated_at"],
        NeedKind.FLAG: row["flagged_at"],
    }
    moment: datetime = moments.get(kind) or row["ended_at"] or row["created_at"]
    return moment


def _order(need: FoundNeed) -> tuple[int, int, int, float]:
    """Sort by kind, refused logins first among failures; then what holds up most; questions by
    age, all else the newest first."""
    is_refused = need.failure == "authentication"
    seconds = need.at.timestamp()
    if need.kind is NeedKind.QUESTION:
        age = seconds
    else:
        age = -seconds
    return _RANK[need.kind], 0 if is_refused else 1, -need.blocked, age
