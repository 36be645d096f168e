"""Work that needs a person: found, sorted, and grouped by cause.

Only the columns that the rule in domain/needs.py reads are selected, because all work is examined.
"""

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

# The columns that the rule reads, and those to filter and sort needs by.
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
    """A need for a person: one task or run, or several with one cause, the newest first."""

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
        """Return a key that identifies the need as long as it exists."""
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
    # Completed work without a commit of its own never needs a person.
    has_result = sa.and_(columns.status == "completed", columns.workspace_commit.is_not(None))
    is_unmerged = sa.and_(
        columns.merged_at.is_(None), sa.or_(columns.status == "failed", has_result)
    )
    is_top = sa.and_(around.is_(None), columns.parent_task_id.is_(None))
    has_ended = sa.and_(is_top, sa.or_(is_unmerged, own.owner.is_not(None)))
    is_candidate = sa.or_(is_open, has_ended, columns.flagged_at.is_not(None))
    return Statement(query.select_from(origin).where(columns.archived_at.is_(None), is_candidate))


_CANDIDATES = [(table, _statement(table, around)) for table, around in WORK]
_COUNT_BLOCKED = Statement(
    sa.select(dependencies.c.depends_on, sa.func.count().label("number"))
    .join(tasks, tasks.c.id == dependencies.c.task_id)
    .where(tasks.c.status == TaskStatus.BLOCKED)
    .group_by(dependencies.c.depends_on)
)
_OPEN_QUESTIONS = Statement(
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
    """Return all needs, one for each task or run, in the order of lists."""
    now = datetime.now(UTC)
    path = None
    if repository:
        path = resolve_path(connection, repository)
    question_times = {}
    for row in _OPEN_QUESTIONS.rows(connection):
        question_times[row["task_id"] or row["run_id"]] = row["asked_at"]
    blocked_numbers = {row["depends_on"]: row["number"] for row in _COUNT_BLOCKED.rows(connection)}
    needs = []
    for row in _load_candidates(connection):
        if project is not None and row["project"] != project:
            continue
        if path is not None and row["repository"] != path:
            continue
        kind = _find_kind(row, now, has_question=row["id"] in question_times)
        if kind is None:
            continue
        failure = None
        if kind is NeedKind.FAILURE:
            failure = row.get("failure")
        need = FoundNeed(
            kind=kind,
            cause=find_cause(kind, failure, row.get("agent")),
            failure=failure,
            agent=row.get("agent"),
            at=_find_start(kind, row, question_times),
            blocked=blocked_numbers.get(row["id"], 0),
            ids=[row["id"]],
            repositories=[row["repository"] or row["directory"]],
        )
        needs.append(need)
    return sorted(needs, key=_order)


def list_ids(connection: sa.Connection) -> list[str]:
    """Return the ids of all tasks and runs that need a person."""
    return [need.ids[0] for need in list_needs(connection)]


def fold(needs: Sequence[FoundNeed]) -> list[FoundNeed]:
    """Return the needs with those of one cause joined into the first of them."""
    groups: dict[str, FoundNeed] = {}
    for need in needs:
        group = groups.setdefault(need.key, need)
        if group is not need:
            group.ids.extend(need.ids)
            group.blocked += need.blocked
            if need.repositories[0] not in group.repositories:
                group.repositories.extend(need.repositories)
    return list(groups.values())


def find_next_due(connection: sa.Connection) -> datetime | None:
    """Return when the next snoozed work needs a person again."""
    now = datetime.now(UTC)
    due = [statement.scalar(connection, now=now) for statement in _NEXT_DUE]
    return min((moment for moment in due if moment is not None), default=None)


def _load_candidates(connection: sa.Connection) -> Iterator[Row]:
    for table, statement in _CANDIDATES:
        rows = statement.rows(connection)
        if table is tasks:
            yield from rows
            continue
        completed_ids = [row["id"] for row in rows if row["status"] == "completed"]
        verified_ids = run_rows.find_verified(connection, completed_ids)
        for row in rows:
            yield {**row, "verified": row["id"] in verified_ids}


def _find_kind(row: Row, now: datetime, has_question: bool) -> NeedKind | None:
    delivery = None
    if row["delivery_status"] is not None:
        delivery = {name: row[f"delivery_{name}"] for name in _DELIVERY}
    return find_need(
        row, now, verified=row["verified"], delivery=delivery, has_question=has_question
    )


def _find_start(kind: NeedKind, row: Row, question_times: dict[str, datetime]) -> datetime:
    """Return the time since which the work needs a person."""
    moments = {
        NeedKind.QUESTION: question_times.get(row["id"]),
        NeedKind.DELIVERY: row["delivery_updated_at"],
        NeedKind.FLAG: row["flagged_at"],
    }
    moment: datetime = moments.get(kind) or row["ended_at"] or row["created_at"]
    return moment


def _order(need: FoundNeed) -> tuple[int, int, int, float]:
    """Return the sort key of a need.

    Needs are sorted by kind, failed logins first; then by the number of tasks that they block. The
    oldest question comes first, of all other kinds the newest need.
    """
    login_rank = 1
    if need.failure == "authentication":
        login_rank = 0
    age = -need.at.timestamp()
    if need.kind is NeedKind.QUESTION:
        age = need.at.timestamp()
    return _RANK[need.kind], login_rank, -need.blocked, age
