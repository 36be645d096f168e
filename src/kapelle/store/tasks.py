"""Tasks: stored, listed, their order in the queue, dependencies and changes of status."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.errors import InvalidInput
from kapelle.domain.failures import FailureClass
from kapelle.domain.needs import find_need
from kapelle.domain.specs import DepsPolicy, Priority
from kapelle.domain.states import (
    FINAL,
    AttemptStatus,
    RunStatus,
    Stopper,
    TaskStatus,
    require_transition,
)
from kapelle.domain.task import Task, TaskFilter
from kapelle.domain.text import excerpt
from kapelle.store import attempts, deliveries, events, projects, questions
from kapelle.store.database import notify_watches
from kapelle.store.query import Conditions, group, has_row
from kapelle.store.query import Row as Row
from kapelle.store.rows import TASKS, view_workspace
from kapelle.store.runs import GOING
from kapelle.store.statements import Statement
from kapelle.store.tables import attempts as attempts_table
from kapelle.store.tables import dependencies, runs, task_tags, tasks

_INSERT = Statement(tasks.insert())
# The tasks of a run do not start while it is paused or to be paused, or queued to continue.
_STARTS_NOTHING = sa.or_(
    runs.c.status.in_([RunStatus.PAUSED, RunStatus.QUEUED]), runs.c.stop == "pause"
)
_HELD = sa.exists().where(runs.c.id == tasks.c.run_id, _STARTS_NOTHING)
_MAY_START = sa.and_(
    tasks.c.status == TaskStatus.QUEUED,
    sa.or_(tasks.c.not_before.is_(None), tasks.c.not_before <= sa.bindparam("now")),
    sa.or_(tasks.c.run_id.is_(None), ~_HELD),
)
_AGENT_COLUMNS = ("agent", "model", "directory")
_NEXT_QUEUED = Statement(
    sa.select(tasks.c.id, tasks.c.agent, tasks.c.model, tasks.c.fallback_agents)
    .add_columns(tasks.c.directory, tasks.c.env)
    .where(_MAY_START)
    .order_by(tasks.c.priority, tasks.c.id)
    .limit(sa.bindparam("most", type_=sa.Integer))
)
_delayed = sa.and_(tasks.c.status == TaskStatus.QUEUED, tasks.c.not_before > sa.bindparam("now"))
_waits = sa.and_(tasks.c.status == TaskStatus.WAITING, tasks.c.not_before.is_not(None))
_NEXT_DUE = Statement(sa.select(sa.func.min(tasks.c.not_before)).where(sa.or_(_delayed, _waits)))
# The key of watches that a write notifies when it ends waits.
WOKEN = "tasks.woken"
_DEPENDENCIES_OF = (
    sa.select(dependencies.c.task_id, dependencies.c.depends_on)
    .where(dependencies.c.task_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(dependencies.c.depends_on)
)
_BLOCKED_BY = Statement(
    sa.select(dependencies.c.task_id)
    .join(tasks, tasks.c.id == dependencies.c.task_id)
    .where(dependencies.c.depends_on == sa.bindparam("other"))
    .where(tasks.c.status == TaskStatus.BLOCKED)
    .order_by(dependencies.c.task_id)
)
_last_end = (
    sa.select(sa.func.max(attempts_table.c.ended_at))
    .where(attempts_table.c.task_id == tasks.c.id)
    .scalar_subquery()
)


def load_row(connection: sa.Connection, task_id: str) -> Row:
    """Return the stored row of a task; raise NotFound if there is none."""
    return TASKS.load(connection, task_id)


def find(connection: sa.Connection, task_id: str) -> Row | None:
    """Return the stored row of a task, if there is one."""
    return TASKS.find(connection, task_id)


def update(connection: sa.Connection, task_id: str, /, **values: Any) -> None:
    """Change columns of a task."""
    TASKS.update(connection, task_id, **values)


def resolve(connection: sa.Connection, text: str) -> str:
    """Return the whole id of a task for the part that a person typed, or raise NotFound."""
    return TASKS.resolve(connection, text)


def insert(connection: sa.Connection, values: dict[str, Any], depends_on: Sequence[str]) -> None:
    """Store a new task with its tags and dependencies."""
    projects.join(connection, values)
    _INSERT.write(connection, **values)
    tags = [{"tag": tag, "task_id": values["id"]} for tag in dict.fromkeys(values["tags"])]
    if tags:
        connection.execute(task_tags.insert(), tags)
    _add_dependencies(connection, values["id"], depends_on)


def get(connection: sa.Connection, text: str) -> Task:
    """Return a task by its whole id or a unique part of it; raise NotFound."""
    return _build_tasks(connection, [load_row(connection, resolve(connection, text))])[0]


def find_by_key(connection: sa.Connection, key: str) -> Task | None:
    """Return the task that was submitted with an idempotency key, if there is one."""
    row = TASKS.find_by_key(connection, key)
    if row is None:
        return None
    return _build_tasks(connection, [row])[0]


def list_page(
    connection: sa.Connection,
    filter_: TaskFilter,
    among: Sequence[str] | None = None,
    conditions: Conditions = (),
) -> tuple[list[Task], str | None]:
    """Return one page of tasks, the newest first, and the cursor of the next page.

    With `among`, only these tasks count. conditions are added to those of the filter.
    """
    base = _select_ids(filter_, conditions)
    length = sa.func.length(tasks.c.prompt)
    rows, cursor = TASKS.list_page(connection, filter_, base, length, among)
    return _build_tasks(connection, rows), cursor


def count_matches(connection: sa.Connection, filter_: TaskFilter, conditions: Conditions) -> int:
    """Return the number of tasks on all pages of a filter."""
    return TASKS.count_matches(connection, filter_, _select_ids(filter_, conditions))


def list_by_ids(connection: sa.Connection, ids: Sequence[str]) -> list[Task]:
    """Return the tasks of the ids that exist, the newest first."""
    return _build_tasks(connection, TASKS.list_by_ids(connection, ids))


def _select_ids(filter_: TaskFilter, conditions: Conditions) -> sa.Select[Any]:
    query = sa.select(tasks.c.id).where(*conditions)
    if filter_.tag is not None:
        query = query.join(task_tags, task_tags.c.task_id == tasks.c.id)
        query = query.where(task_tags.c.tag == filter_.tag)
    if not filter_.nested:
        query = query.where(tasks.c.run_id.is_(None))
    return query


def has_others_in(connection: sa.Connection, owner: str, task_id: str) -> bool:
    """Return whether another open task works in the worktree of a run."""
    is_active = (tasks.c.workspace_owner == owner, tasks.c.status.not_in(FINAL))
    return has_row(connection, *is_active, tasks.c.id != task_id)


def list_startable(connection: sa.Connection, now: datetime, limit: int) -> Sequence[Row]:
    """Return the queued tasks that may start now, in order, with the columns to select an agent."""
    return _NEXT_QUEUED.rows(connection, now=now, most=limit)


def postpone(connection: sa.Connection, task: Row, now: datetime, **values: Any) -> None:
    """Change a queued task, and all startable tasks that would get the same agent.

    One statement changes all of them: single updates would keep a long queue busy with writes.
    """
    is_alike = tasks.c.id == task["id"]
    if not task["env"] and not task["fallback_agents"]:
        conditions = [_MAY_START]
        for name in _AGENT_COLUMNS:
            conditions.append(tasks.c[name].is_not_distinct_from(task[name]))
        for name in ("env", "fallback_agents"):
            conditions.append(sa.cast(tasks.c[name], sa.Text) == "[]")
        is_alike = sa.or_(is_alike, sa.and_(*conditions))
    connection.execute(tasks.update().where(is_alike).values(values), {"now": now})


def find_least_recently_refused(connection: sa.Connection, task: Row, now: datetime) -> str:
    """Return the id of the task that tests next whether a rate limit has ended.

    It is taken from the tasks of the same agent, model and priority that may start now: the one
    whose last refusal by a limit is the longest ago, or that was never refused.
    """
    refused_at = (
        sa.select(sa.func.max(attempts_table.c.ended_at))
        .where(attempts_table.c.task_id == tasks.c.id)
        .where(attempts_table.c.failure == FailureClass.RATE_LIMIT)
        .scalar_subquery()
    )
    query = (
        sa.select(tasks.c.id)
        .where(_MAY_START)
        .where(tasks.c.agent == task["agent"], tasks.c.priority == task["priority"])
        .where(tasks.c.model.is_not_distinct_from(task["model"]))
        .order_by(refused_at.asc().nulls_first(), tasks.c.id)
        .limit(1)
    )
    task_id: str = connection.execute(query, {"now": now}).scalar() or task["id"]
    return task_id


def is_held_by_run(connection: sa.Connection, task: Row) -> bool:
    """Return whether the run of a task keeps it from starting."""
    run_id = task["run_id"]
    return run_id is not None and has_row(connection, runs.c.id == run_id, _STARTS_NOTHING)


def find_next_due(connection: sa.Connection, now: datetime) -> datetime | None:
    """Return when the earliest delayed task may start or the earliest wait ends.

    A wait may be overdue. A queued task that is due does not count: something else holds it back.
    """
    moment: datetime | None = _NEXT_DUE.scalar(connection, now=now)
    return moment


def list_overdue(connection: sa.Connection, now: datetime) -> list[str]:
    """Return the waiting tasks whose wait has ended."""
    query = sa.select(tasks.c.id).where(
        tasks.c.status == TaskStatus.WAITING, tasks.c.not_before <= now
    )
    return list(connection.execute(query).scalars())


def find_clock_corrections(connection: sa.Connection, now: datetime) -> dict[str, datetime]:
    """Return the corrected start times of delayed tasks after the clock was set back.

    A task is affected if its last attempt ended in what is now the future. It keeps its delay.
    """
    query = sa.select(tasks.c.id, tasks.c.not_before, _last_end).where(
        tasks.c.status == TaskStatus.QUEUED, tasks.c.not_before > _last_end, _last_end > now
    )
    return {id_: now + (due - last_end) for id_, due, last_end in connection.execute(query)}


def wake_waiting(
    connection: sa.Connection, waiting_for: str, now: datetime, but: str | None = None
) -> None:
    """End the waits of tasks for a rate limit or for trust, except for one task."""
    waiting = tasks.update().where(tasks.c.status == TaskStatus.WAITING)
    if but is not None:
        waiting = waiting.where(tasks.c.id != but)
    waiting = waiting.where(tasks.c.waiting_for == waiting_for, tasks.c.not_before > now)
    connection.execute(waiting.values(not_before=now))
    notify_watches(connection, [WOKEN])


def list_at_work(connection: sa.Connection) -> list[str]:
    """Return the tasks with a running attempt."""
    query = sa.select(attempts_table.c.task_id).order_by(attempts_table.c.task_id)
    query = query.where(attempts_table.c.status == AttemptStatus.RUNNING)
    return list(connection.execute(query).scalars())


def list_ended_before(connection: sa.Connection, moment: datetime, limit: int) -> list[str]:
    """Return tasks that ended before a time, the earliest first, except those of open runs."""
    is_free = sa.or_(tasks.c.run_id.is_(None), tasks.c.run_id.not_in(GOING))
    query = sa.select(tasks.c.id).where(tasks.c.ended_at < moment, is_free)
    query = query.order_by(tasks.c.ended_at, tasks.c.id).limit(limit)
    return list(connection.execute(query).scalars())


def list_merged_worktrees(
    connection: sa.Connection, work_id: str | None = None
) -> dict[str, tuple[str, str]]:
    """Return the owners of worktrees that are merged and unused, each with its branch and base.

    These are tasks and runs that are not archived, and the tasks of merged runs. With a work id,
    only those of this task or run are returned.
    """
    is_merged = tasks.c.merged_at.is_not(None)
    is_run_merged = runs.c.merged_at.is_not(None)
    base = sa.case((is_merged, tasks.c.workspace_base), else_=runs.c.workspace_base)
    of_tasks = (
        sa.select(tasks.c.id, tasks.c.workspace_branch, base)
        .outerjoin(runs, runs.c.id == tasks.c.run_id)
        .where(sa.or_(is_merged, is_run_merged))
        .where(tasks.c.workspace_owner.is_(None), tasks.c.archived_at.is_(None))
        # A candidate of a merged run may be open again: somebody resumed it, or merged it by force
        # while it was queued.
        .where(tasks.c.workspace_branch.is_not(None), tasks.c.status.in_(FINAL))
    )
    has_open_task = sa.exists().where(
        tasks.c.workspace_owner == runs.c.id, tasks.c.status.not_in(FINAL)
    )
    of_runs = (
        sa.select(runs.c.id, runs.c.workspace_branch, runs.c.workspace_base)
        .where(is_run_merged, runs.c.workspace_owner.is_(None), runs.c.archived_at.is_(None))
        .where(~has_open_task, runs.c.workspace_branch != "")
    )
    if work_id is not None:
        of_tasks = of_tasks.where(sa.or_(tasks.c.id == work_id, tasks.c.run_id == work_id))
        of_runs = of_runs.where(runs.c.id == work_id)
    rows = connection.execute(sa.union_all(of_tasks, of_runs))
    return {owner: (branch, base_name) for owner, branch, base_name in rows}


def list_worktree_directories(connection: sa.Connection, since: datetime) -> list[str]:
    """Return the directories for which tasks that ended since a moment had worktrees."""
    query = sa.select(tasks.c.directory).where(tasks.c.ended_at > since)
    query = query.where(tasks.c.workspace_kind == "worktree").distinct()
    return list(connection.execute(query).scalars())


def is_pending_base(connection: sa.Connection, branch: str) -> bool:
    """Return whether unmerged work of any task is based on a branch."""
    return has_row(
        connection,
        sa.or_(tasks.c.workspace_base == branch, tasks.c.requested_base == branch),
        sa.or_(tasks.c.run_id.is_(None), tasks.c.status.not_in(FINAL)),
        *(tasks.c.merged_at.is_(None), tasks.c.archived_at.is_(None)),
    )


def count_by_status(connection: sa.Connection) -> dict[str, int]:
    """Return the number of tasks in each status."""
    query = sa.select(tasks.c.status, sa.func.count()).group_by(tasks.c.status)
    return {status: number for status, number in connection.execute(query)}


def _build_tasks(connection: sa.Connection, rows: list[Row]) -> list[Task]:
    """Return the tasks of rows; the number of queries does not depend on the number of rows."""
    ids = [row["id"] for row in rows]
    attempts_by_task = attempts.group_by_task(connection, ids)
    dependencies_by_task = _group_dependencies(connection, ids)
    last_attempts = {id_: own_attempts[-1].id for id_, own_attempts in attempts_by_task.items()}
    checks_by_attempt = attempts.group_checks(connection, list(last_attempts.values()))
    asking = [row["id"] for row in rows if row["waiting_for"] == "input"]
    open_questions = group((one.work_id, one) for one in questions.list_open(connection, asking))
    deliveries_by_id = deliveries.load_by_owner(connection, ids)
    now = datetime.now(UTC)
    result = []
    for row in rows:
        task_id = row["id"]
        checks = checks_by_attempt.get(last_attempts.get(task_id, ""), [])
        verified = None
        if row["status"] == TaskStatus.COMPLETED:
            verified = attempts.is_verified(checks)
        delivery = deliveries_by_id.get(task_id)
        need = find_need(
            row,
            now,
            verified=verified,
            delivery=vars(delivery) if delivery else None,
            has_question=bool(open_questions[task_id]),
        )
        values = {
            **row,
            "priority": Priority(f"P{row['priority']}"),
            "depends_on": dependencies_by_task.get(task_id, []),
            "workspace": view_workspace(row),
            "attempts": attempts_by_task.get(task_id, []),
            "checks": checks,
            "questions": open_questions[task_id],
            "verified": verified,
            "delivery": delivery,
            "need": need,
        }
        result.append(Task.model_validate(values))
    return result


def _is_verified(connection: sa.Connection, task: Row) -> bool:
    """Return whether a check of a task's last attempt looked at the work."""
    if not task["check_specs"]:
        return False
    attempt = attempts.find_latest(connection, task["id"])
    if attempt is None:
        return False
    checks = attempts.group_checks(connection, [attempt["id"]])
    return attempts.is_verified(checks.get(attempt["id"], []))


def delete_archived(connection: sa.Connection, task_id: str) -> bool:
    """Delete a task if it has ended and is archived; return whether it was deleted."""
    deliveries.delete(connection, task_id)
    query = tasks.delete().where(tasks.c.id == task_id, tasks.c.archived_at.is_not(None))
    return connection.execute(query.where(tasks.c.status.in_(FINAL))).rowcount == 1


def _add_dependencies(connection: sa.Connection, task_id: str, depends_on: Sequence[str]) -> None:
    """Store the dependencies of a new task, which cannot be circular: nothing depends on it yet."""
    rows = [{"task_id": task_id, "depends_on": other} for other in dict.fromkeys(depends_on)]
    if rows:
        connection.execute(dependencies.insert(), rows)


def replace_dependencies(
    connection: sa.Connection, task_id: str, depends_on: Sequence[str]
) -> None:
    """Replace the dependencies of a task; raise InvalidInput, with the path, for a circle."""
    for other in depends_on:
        path = _dependency_path(connection, other, task_id)
        if path is not None:
            circle = " → ".join([task_id, *path])
            raise InvalidInput(f"These dependencies would be circular: {circle}.")
    connection.execute(dependencies.delete().where(dependencies.c.task_id == task_id))
    _add_dependencies(connection, task_id, depends_on)


def _group_dependencies(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    rows = connection.execute(_DEPENDENCIES_OF, {"ids": ids})
    return group((row.task_id, row.depends_on) for row in rows)


def _dependency_statuses(connection: sa.Connection, task_id: str) -> dict[str, TaskStatus]:
    """Return the dependencies of a task with their present statuses."""
    query = (
        sa.select(tasks.c.id, tasks.c.status)
        .join(dependencies, dependencies.c.depends_on == tasks.c.id)
        .where(dependencies.c.task_id == task_id)
        .order_by(tasks.c.id)
    )
    return {other: TaskStatus(status) for other, status in connection.execute(query)}


def list_releasable(connection: sa.Connection) -> list[str]:
    """Return blocked tasks without an open dependency, left behind by a crash or an old version."""
    other = tasks.alias()
    is_open = (other.c.id == dependencies.c.depends_on, other.c.status.not_in(FINAL))
    waits = sa.exists().where(dependencies.c.task_id == tasks.c.id, *is_open)
    query = sa.select(tasks.c.id).where(tasks.c.status == TaskStatus.BLOCKED, ~waits)
    return list(connection.execute(query).scalars())


def _dependency_path(connection: sa.Connection, start: str, goal: str) -> list[str] | None:
    """Return a chain of dependencies from start to goal, both included, if there is one."""
    chains = {start: [start]}
    frontier = [start]
    # A breadth-first search with one query for each level.
    while frontier and goal not in chains:
        dependencies_by_task = _group_dependencies(connection, frontier)
        frontier = []
        for task_id, others in dependencies_by_task.items():
            for other in others:
                if other not in chains:
                    chains[other] = [*chains[task_id], other]
                    frontier.append(other)
    return chains.get(goal)


def move(
    connection: sa.Connection,
    task: Row,
    status: TaskStatus,
    reason: str | None = None,
    /,
    **values: Any,
) -> None:
    """Change the status of a task whose row was read in this transaction.

    The end of a task also releases or cancels the tasks that depend on it.
    """
    _apply_status(connection, task, status, reason, values)
    if status in FINAL:
        _settle_dependents(connection, [task["id"]])


def settle_dependencies(connection: sa.Connection, task_id: str) -> None:
    """Queue or cancel a blocked task if its dependencies have ended."""
    if _settle_blocked(connection, task_id):
        _settle_dependents(connection, [task_id])


def enqueue_again(connection: sa.Connection, task_id: str, /, **values: Any) -> None:
    """Put an ended or waiting task back into the queue, blocked while a dependency is open."""
    reset = ("ended_at", "not_before", "merged_at", "stop", "stopped_by", "limit_reached")
    values = {**dict.fromkeys(reset), **values}
    task = load_row(connection, task_id)
    status = TaskStatus.QUEUED
    if task["status"] != TaskStatus.WAITING and _dependency_statuses(connection, task_id):
        status = TaskStatus.BLOCKED
    move(connection, task, status, None, **values)
    settle_dependencies(connection, task_id)


def _settle_dependents(connection: sa.Connection, ended_ids: list[str]) -> None:
    """Queue or cancel the dependents of ended tasks, and in turn those of the cancelled ones."""
    while ended_ids:
        cancelled_ids = []
        for task_id in ended_ids:
            for dependent_id in _BLOCKED_BY.scalars(connection, other=task_id):
                if _settle_blocked(connection, dependent_id):
                    cancelled_ids.append(dependent_id)
        ended_ids = cancelled_ids


def _apply_status(
    connection: sa.Connection,
    task: Row,
    status: TaskStatus,
    reason: str | None,
    values: dict[str, Any],
) -> None:
    """Change the status of one task and store the event."""
    task_id: str = task["id"]
    require_transition(task_id, TaskStatus(task["status"]), status)
    if status in FINAL:
        # The clock may have been set back since the start.
        now = datetime.now(UTC)
        ended_at = max(now, task["started_at"] or now)
        values = {"ended_at": ended_at, "stop": None, "not_before": None, **values}
    if task["status"] == TaskStatus.WAITING and status is not TaskStatus.WAITING:
        questions.withdraw(connection, task_id)
    values = {"waiting_for": None, "question": None, "stopped_by": None, **values}
    update(connection, task_id, status=status, reason=reason, **values)
    data = {"title": task["title"], "reason": reason}
    if values["stopped_by"] is not None:
        data["stopped_by"] = values["stopped_by"]
    if status is TaskStatus.WAITING:
        data["waiting_for"] = values["waiting_for"]
    if status is TaskStatus.COMPLETED:
        data["verified"] = _is_verified(connection, task)
    if values.get("result"):
        data["text"] = excerpt(values["result"])
    events.append(connection, f"task.{status}", task_id, **data)


def _settle_blocked(connection: sa.Connection, task_id: str) -> bool:
    """Queue or cancel a blocked task by its dependencies; return whether it was cancelled."""
    task = load_row(connection, task_id)
    if task["status"] != TaskStatus.BLOCKED:
        return False  # another dependency has settled it
    statuses = _dependency_statuses(connection, task_id)
    if task["deps_policy"] == DepsPolicy.CANCEL:
        reason = _find_failed_dependency(statuses)
        if reason is not None:
            values = {"stopped_by": Stopper.DEPENDENCY}
            _apply_status(connection, task, TaskStatus.CANCELLED, reason, values)
            return True
    open_ids = [other for other, status in statuses.items() if status not in FINAL]
    if open_ids:
        update(connection, task_id, reason=f"waits for {', '.join(open_ids)}")
    else:
        _apply_status(connection, task, TaskStatus.QUEUED, None, {})
    return False


def _find_failed_dependency(statuses: dict[str, TaskStatus]) -> str | None:
    """Return the reason to cancel a task because of its dependencies, if there is one."""
    for other, status in statuses.items():
        if status is TaskStatus.FAILED:
            return f"its dependency {other} failed"
        if status is TaskStatus.CANCELLED:
            return f"its dependency {other} was cancelled"
    return None
