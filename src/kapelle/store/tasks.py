"""Queries about tasks: insert, find, list, and the order in which they are started."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.specs import Priority
from kapelle.domain.states import FINAL, RunStatus, TaskStatus
from kapelle.domain.task import Attempt, CheckResult, Task
from kapelle.store import attempts, dependencies
from kapelle.store.query import Row, Rows, workspace_of
from kapelle.store.runs import GOING
from kapelle.store.tables import attempts as attempts_table
from kapelle.store.tables import runs, task_tags, tasks

# Built once: putting a statement together costs more than running it.
_INSERT = tasks.insert()
# A run that is paused or is to be, and one that goes on but was not taken up, starts nothing.
_STARTS_NOTHING = sa.or_(
    runs.c.status.in_([RunStatus.PAUSED, RunStatus.QUEUED]), runs.c.stop == "pause"
)
_HELD = sa.select(sa.literal(1)).where(runs.c.id == tasks.c.run_id, _STARTS_NOTHING)
_NEXT_QUEUED = (
    sa.select(tasks.c.id, tasks.c.agent, tasks.c.fallback_agents, tasks.c.directory, tasks.c.env)
    .where(tasks.c.status == TaskStatus.QUEUED)
    .where(sa.or_(tasks.c.not_before.is_(None), tasks.c.not_before <= sa.bindparam("now")))
    .where(sa.or_(tasks.c.run_id.is_(None), ~_HELD.exists()))
    .order_by(tasks.c.priority, tasks.c.id)
    .limit(sa.bindparam("most", type_=sa.Integer))
)
_NEXT_DUE = (
    sa.select(sa.func.min(tasks.c.not_before))
    .where(tasks.c.status.in_([TaskStatus.QUEUED, TaskStatus.WAITING]))
    .where(tasks.c.not_before.is_not(None))
)
_STOP = sa.select(tasks.c.stop).where(tasks.c.id == sa.bindparam("task_id"))

_STORED = tuple(name for name in Task.model_fields if name in tasks.c)

_rows = Rows(tasks, "task", "kapelle list")
row, update, resolve = _rows.row, _rows.update, _rows.resolve
archived_at_of, ids_of_worktrees = _rows.archived_at_of, _rows.ids_of_worktrees


def insert(connection: sa.Connection, values: dict[str, Any], depends_on: Sequence[str]) -> None:
    connection.execute(_INSERT, values)
    tags = [{"tag": tag, "task_id": values["id"]} for tag in dict.fromkeys(values["tags"])]
    if tags:
        connection.execute(task_tags.insert(), tags)
    dependencies.add(connection, values["id"], depends_on)


def stop_requested(connection: sa.Connection, task_id: str) -> str | None:
    """What a person wants of the running attempt: "cancel", "requeue" or nothing."""
    value: str | None = connection.execute(_STOP, {"task_id": task_id}).scalar()
    return value


def get(connection: sa.Connection, text: str) -> Task:
    """A task by id or unique prefix, with its attempts and checks."""
    return _complete(connection, [row(connection, resolve(connection, text))])[0]


def fresh(connection: sa.Connection, task_id: str, depends_on: Sequence[str]) -> Task:
    """A task that was just inserted, which can have no attempts yet."""
    return _task(row(connection, task_id), [], sorted(set(depends_on)), {})


def by_idempotency_key(connection: sa.Connection, key: str) -> Task | None:
    found = _rows.by_idempotency_key(connection, key)
    return None if found is None else _complete(connection, [found])[0]


def page(
    connection: sa.Connection,
    *,
    statuses: Sequence[TaskStatus] = (),
    tag: str | None = None,
    project: str | None = None,
    archived: bool = False,
    before: str | None = None,
    limit: int = 50,
) -> tuple[list[Task], bool]:
    """Tasks, newest first, and whether there are more; before is the last id of the page before."""
    query = sa.select(tasks.c.id)
    if statuses:
        query = query.where(tasks.c.status.in_(statuses))
    if tag is not None:
        query = query.join(task_tags, task_tags.c.task_id == tasks.c.id)
        query = query.where(task_tags.c.tag == tag)
    if project is not None:
        query = query.where(tasks.c.project == project)
    if not archived:
        query = query.where(tasks.c.archived_at.is_(None))
    rows, more = _rows.page(connection, query, sa.func.length(tasks.c.prompt), before, limit)
    return _complete(connection, rows), more


def others_in(connection: sa.Connection, owner: str, task_id: str) -> bool:
    """Whether another task that has not ended works in the same run's worktree."""
    query = sa.select(sa.literal(1)).where(tasks.c.workspace_owner == owner)
    query = query.where(tasks.c.id != task_id, tasks.c.status.not_in(FINAL)).limit(1)
    return connection.execute(query).scalar() is not None


def next_queued(connection: sa.Connection, now: datetime, limit: int) -> list[Row]:
    """The queued tasks that may start now, in order, with what chooses their agent."""
    return list(connection.execute(_NEXT_QUEUED, {"now": now, "most": limit}).mappings())


def is_held(connection: sa.Connection, task: Row) -> bool:
    """Whether a task must not start because of the run that it is part of."""
    if task["run_id"] is None:
        return False
    query = sa.select(sa.literal(1)).where(runs.c.id == task["run_id"], _STARTS_NOTHING)
    return connection.execute(query).scalar() is not None


def next_due(connection: sa.Connection) -> datetime | None:
    """When the earliest delayed or rate-limited task becomes ready."""
    due: datetime | None = connection.execute(_NEXT_DUE).scalar()
    return due


def overdue_waiting(connection: sa.Connection, now: datetime) -> list[str]:
    query = sa.select(tasks.c.id).where(
        tasks.c.status == TaskStatus.WAITING, tasks.c.not_before <= now
    )
    return list(connection.execute(query).scalars())


def wake_limited(connection: sa.Connection, now: datetime) -> None:
    """Have those that wait for a limit looked at again at once: one may have been lifted."""
    limited = tasks.update().where(tasks.c.status == TaskStatus.WAITING)
    limited = limited.where(tasks.c.waiting_for == "rate_limit", tasks.c.not_before > now)
    connection.execute(limited.values(not_before=now))


def waiting_for_input_since(connection: sa.Connection, moment: datetime) -> list[Row]:
    """Tasks whose last attempt ended before that moment with a question nobody has answered."""
    ends = sa.select(sa.func.max(attempts_table.c.ended_at))
    last = ends.where(attempts_table.c.task_id == tasks.c.id).scalar_subquery()
    query = sa.select(tasks).where(tasks.c.status == TaskStatus.WAITING)
    query = query.where(tasks.c.waiting_for == "input", last < moment)
    return list(connection.execute(query).mappings())


def with_status(connection: sa.Connection, status: TaskStatus) -> list[str]:
    query = sa.select(tasks.c.id).where(tasks.c.status == status).order_by(tasks.c.id)
    return list(connection.execute(query).scalars())


def ended_before(connection: sa.Connection, moment: datetime, limit: int) -> list[str]:
    """Tasks to be forgotten, those that ended first first; what an open run did is part of it."""
    free = sa.or_(tasks.c.run_id.is_(None), tasks.c.run_id.not_in(GOING))
    query = sa.select(tasks.c.id).where(tasks.c.ended_at < moment, free)
    query = query.order_by(tasks.c.ended_at, tasks.c.id).limit(limit)
    return list(connection.execute(query).scalars())


def counts(connection: sa.Connection) -> dict[str, int]:
    query = sa.select(tasks.c.status, sa.func.count()).group_by(tasks.c.status)
    return {status: count for status, count in connection.execute(query)}


def _complete(connection: sa.Connection, rows: list[Row]) -> list[Task]:
    ids = [row["id"] for row in rows]
    tries = attempts.of_tasks(connection, ids)
    depends_on = dependencies.of_tasks(connection, ids)
    latest = [tries[task_id][-1].id for task_id in ids if tries.get(task_id)]
    results = attempts.checks_of(connection, latest)
    return [
        _task(row, tries.get(row["id"], []), depends_on.get(row["id"], []), results) for row in rows
    ]


def _task(
    row: Row,
    tries: list[Attempt],
    depends_on: list[str],
    results: dict[str, list[CheckResult]],
) -> Task:
    values = {name: row[name] for name in _STORED}
    values |= {
        "priority": Priority(f"P{row['priority']}"),
        "depends_on": depends_on,
        "workspace": workspace_of(row),
        "attempts": tries,
        "checks": results.get(tries[-1].id, []) if tries else [],
    }
    return Task.model_validate(values)


def delete_archived(connection: sa.Connection, task_id: str) -> bool:
    """Delete a task if it has ended and is archived; says whether it was."""
    query = tasks.delete().where(tasks.c.id == task_id, tasks.c.archived_at.is_not(None))
    return connection.execute(query.where(tasks.c.status.in_(FINAL))).rowcount == 1
