"""Tasks: insert, find, list, the order in which they start, dependencies, changes of status."""

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
# A run that is paused or is to be, and one that goes on but was not taken up, starts nothing.
_STARTS_NOTHING = sa.or_(
    runs.c.status.in_([RunStatus.PAUSED, RunStatus.QUEUED]), runs.c.stop == "pause"
)
_HELD = sa.exists().where(runs.c.id == tasks.c.run_id, _STARTS_NOTHING)
_MAY_START = sa.and_(
    tasks.c.status == TaskStatus.QUEUED,
    sa.or_(tasks.c.not_before.is_(None), tasks.c.not_before <= sa.bindparam("now")),
    sa.or_(tasks.c.run_id.is_(None), ~_HELD),
)
_CHOOSING = ("agent", "model", "directory")
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
# The key of what a write says that ends waits; see `about`.
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
    projects.join(connection, values)
    _INSERT.write(connection, **values)
    tags = [{"tag": tag, "task_id": values["id"]} for tag in dict.fromkeys(values["tags"])]
    if tags:
        connection.execute(task_tags.insert(), tags)
    _add_dependencies(connection, values["id"], depends_on)


def get(connection: sa.Connection, text: str) -> Task:
    """A task by id or unique prefix, with its attempts and checks."""
    return _complete(connection, [load_row(connection, resolve(connection, text))])[0]


def find_by_key(connection: sa.Connection, key: str) -> Task | None:
    found = TASKS.find_by_key(connection, key)
    if found is None:
        return None
    return _complete(connection, [found])[0]


def list_page(
    connection: sa.Connection,
    wanted: TaskFilter,
    among: Sequence[str] | None = None,
    own: Conditions = (),
) -> tuple[list[Task], str | None]:
    """Tasks, newest first, and the cursor of the next page, if there is one; of these alone, and
    only those for which own conditions hold."""
    query = _chosen(wanted, own)
    letters = sa.func.length(tasks.c.prompt)
    rows, cursor = TASKS.list_page(connection, wanted, query, letters, among)
    return _complete(connection, rows), cursor


def count_matches(connection: sa.Connection, wanted: TaskFilter, own: Conditions) -> int:
    """How many tasks there are on all pages of a filter."""
    return TASKS.count_matches(connection, wanted, _chosen(wanted, own))


def list_by_ids(connection: sa.Connection, ids: Sequence[str]) -> list[Task]:
    return _complete(connection, TASKS.list_by_ids(connection, ids))


def _chosen(wanted: TaskFilter, own: Conditions) -> sa.Select[Any]:
    query = sa.select(tasks.c.id).where(*own)
    if wanted.tag is not None:
        query = query.join(task_tags, task_tags.c.task_id == tasks.c.id)
        query = query.where(task_tags.c.tag == wanted.tag)
    if not wanted.nested:
        query = query.where(tasks.c.run_id.is_(None))
    return query


def has_others_in(connection: sa.Connection, owner: str, task_id: str) -> bool:
    """Whether another task that has not ended works in the same run's worktree."""
    at_work = (tasks.c.workspace_owner == owner, tasks.c.status.not_in(FINAL))
    return has_row(connection, *at_work, tasks.c.id != task_id)


def list_startable(connection: sa.Connection, now: datetime, limit: int) -> Sequence[Row]:
    """The queued tasks that may start now, in order, with what chooses their agent."""
    return _NEXT_QUEUED.rows(connection, now=now, most=limit)


def postpone(connection: sa.Connection, task: Row, now: datetime, **values: Any) -> None:
    """Change a queued task, and in one statement all that may start now and differ in nothing that
    chooses their agent: one by one, a long queue would be written all the time."""
    alike = tasks.c.id == task["id"]
    if not task["env"] and not task["fallback_agents"]:
        same = (tasks.c[name].is_not_distinct_from(task[name]) for name in _CHOOSING)
        plain = (sa.cast(tasks.c[name], sa.Text) == "[]" for name in ("env", "fallback_agents"))
        alike = sa.or_(alike, sa.and_(_MAY_START, *same, *plain))
    connection.execute(tasks.update().where(alike).values(values), {"now": now})


def find_least_recently_refused(connection: sa.Connection, task: Row, now: datetime) -> str:
    """Return the id of the task that is to try next whether a limit is over.

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
    """Whether a task must not start because of the run that it is part of."""
    run_id = task["run_id"]
    return run_id is not None and has_row(connection, runs.c.id == run_id, _STARTS_NOTHING)


def find_next_due(connection: sa.Connection, now: datetime) -> datetime | None:
    """Return when the earliest delayed task may start or the earliest wait ends.

    A wait may be overdue. A queued task that is due does not count: something else holds it back.
    """
    moment: datetime | None = _NEXT_DUE.scalar(connection, now=now)
    return moment


def list_overdue(connection: sa.Connection, now: datetime) -> list[str]:
    query = sa.select(tasks.c.id).where(
        tasks.c.status == TaskStatus.WAITING, tasks.c.not_before <= now
    )
    return list(connection.execute(query).scalars())


def find_clock_corrections(connection: sa.Connection, now: datetime) -> dict[str, datetime]:
    """When tasks that wait before their next attempt are due by a clock that was set back since
    the last one ended."""
    query = sa.select(tasks.c.id, tasks.c.not_before, _last_end).where(
        tasks.c.status == TaskStatus.QUEUED, tasks.c.not_before > _last_end, _last_end > now
    )
    return {id_: now + (due - ended) for id_, due, ended in connection.execute(query)}


def wake_waiting(
    connection: sa.Connection, waiting_for: str, now: datetime, but: str | None = None
) -> None:
    """Have those that wait for a limit, or for trust, looked at again at once; but not this one."""
    waiting = tasks.update().where(tasks.c.status == TaskStatus.WAITING)
    if but is not None:
        waiting = waiting.where(tasks.c.id != but)
    waiting = waiting.where(tasks.c.waiting_for == waiting_for, tasks.c.not_before > now)
    connection.execute(waiting.values(not_before=now))
    notify_watches(connection, [WOKEN])


def list_at_work(connection: sa.Connection) -> list[str]:
    """Tasks with an attempt that has not ended."""
    running = attempts_table.c.status == AttemptStatus.RUNNING
    query = sa.select(attempts_table.c.task_id).where(running).order_by(attempts_table.c.task_id)
    return list(connection.execute(query).scalars())


def list_ended_before(connection: sa.Connection, moment: datetime, limit: int) -> list[str]:
    """Tasks to be forgotten, those that ended first first; what an open run did is part of it."""
    free = sa.or_(tasks.c.run_id.is_(None), tasks.c.run_id.not_in(GOING))
    query = sa.select(tasks.c.id).where(tasks.c.ended_at < moment, free)
    query = query.order_by(tasks.c.ended_at, tasks.c.id).limit(limit)
    return list(connection.execute(query).scalars())


def list_merged_worktrees(
    connection: sa.Connection, of: str | None = None
) -> dict[str, tuple[str, str]]:
    """Owners of worktrees whose work is merged and in which nobody is to work, with their branches
    and bases: tasks and runs that are not archived, and the tasks of such runs; or those of one."""
    own = tasks.c.merged_at.is_not(None)
    of_run = runs.c.merged_at.is_not(None)
    base = sa.case((own, tasks.c.workspace_base), else_=runs.c.workspace_base)
    query = sa.select(tasks.c.id, tasks.c.workspace_branch, base)
    query = query.outerjoin(runs, runs.c.id == tasks.c.run_id).where(sa.or_(own, of_run))
    query = query.where(tasks.c.workspace_owner.is_(None), tasks.c.archived_at.is_(None))
    # A candidate of a merged run may have been resumed, a queued task merged by force.
    query = query.where(tasks.c.workspace_branch.is_not(None), tasks.c.status.in_(FINAL))
    at_work = sa.exists().where(tasks.c.workspace_owner == runs.c.id, tasks.c.status.not_in(FINAL))
    alone = sa.select(runs.c.id, runs.c.workspace_branch, runs.c.workspace_base)
    alone = alone.where(of_run, runs.c.workspace_owner.is_(None), runs.c.archived_at.is_(None))
    alone = alone.where(~at_work)
    if of is not None:
        query = query.where(sa.or_(tasks.c.id == of, tasks.c.run_id == of))
        alone = alone.where(runs.c.id == of)
    rows = connection.execute(sa.union_all(query, alone.where(runs.c.workspace_branch != "")))
    return {owner: (branch, into) for owner, branch, into in rows}


def list_worktree_directories(connection: sa.Connection, since: datetime) -> list[str]:
    """Where tasks that ended since a moment had worktrees made."""
    query = sa.select(tasks.c.directory).where(tasks.c.ended_at > since)
    query = query.where(tasks.c.workspace_kind == "worktree").distinct()
    return list(connection.execute(query).scalars())


def is_pending_base(connection: sa.Connection, branch: str) -> bool:
    """Whether the work of another task is still to be merged into a branch."""
    return has_row(
        connection,
        sa.or_(tasks.c.workspace_base == branch, tasks.c.requested_base == branch),
        sa.or_(tasks.c.run_id.is_(None), tasks.c.status.not_in(FINAL)),
        *(tasks.c.merged_at.is_(None), tasks.c.archived_at.is_(None)),
    )


def count_by_status(connection: sa.Connection) -> dict[str, int]:
    query = sa.select(tasks.c.status, sa.func.count()).group_by(tasks.c.status)
    return {status: count for status, count in connection.execute(query)}


def _complete(connection: sa.Connection, rows: list[Row]) -> list[Task]:
    ids = [row["id"] for row in rows]
    tries = attempts.group_by_task(connection, ids)
    depends_on = _dependencies_of(connection, ids)
    latest = [tries[task_id][-1].id for task_id in ids if tries.get(task_id)]
    results = attempts.group_checks(connection, latest)
    asking = [row["id"] for row in rows if row["waiting_for"] == "input"]
    asked = questions.list_open(connection, asking)
    delivered = deliveries.load_by_owner(connection, ids)
    found = []
    now = datetime.now(UTC)
    for row in rows:
        tried = tries.get(row["id"], [])
        if tried:
            made = results.get(tried[-1].id, [])
        else:
            made = []
        if row["status"] == TaskStatus.COMPLETED:
            verified = attempts.is_verified(made)
        else:
            verified = None
        delivery = delivered.get(row["id"])
        open_questions = [question for question in asked if question.task_id == row["id"]]
        need = find_need(
            row,
            now,
            verified=verified,
            delivery=vars(delivery) if delivery else None,
            has_question=bool(open_questions),
        )
        values = {
            **row,
            "priority": Priority(f"P{row['priority']}"),
            "depends_on": depends_on.get(row["id"], []),
            "workspace": view_workspace(row),
            "attempts": tried,
            "checks": made,
            "questions": open_questions,
            "verified": verified,
            "delivery": delivery,
            "need": need,
        }
        found.append(Task.model_validate(values))
    return found


def _is_verified(connection: sa.Connection, task: Row) -> bool:
    """Whether a check of its last attempt looked at the work."""
    if task["check_specs"]:
        last = attempts.find_latest(connection, task["id"])
    else:
        last = None
    if last:
        made = attempts.group_checks(connection, [last["id"]])[last["id"]]
    else:
        made = []
    return attempts.is_verified(made)


def delete_archived(connection: sa.Connection, task_id: str) -> bool:
    """Delete a task if it has ended and is archived; says whether it was."""
    deliveries.delete(connection, task_id)
    query = tasks.delete().where(tasks.c.id == task_id, tasks.c.archived_at.is_not(None))
    return connection.execute(query.where(tasks.c.status.in_(FINAL))).rowcount == 1


def _add_dependencies(connection: sa.Connection, task_id: str, depends_on: Sequence[str]) -> None:
    """Record what a new task depends on; nothing can depend on it yet, so there is no circle."""
    rows = [{"task_id": task_id, "depends_on": other} for other in dict.fromkeys(depends_on)]
    if rows:
        connection.execute(dependencies.insert(), rows)


def replace_dependencies(
    connection: sa.Connection, task_id: str, depends_on: Sequence[str]
) -> None:
    """Change what a task depends on; a circle is refused and named."""
    for other in depends_on:
        path = _dependency_path(connection, other, task_id)
        if path is not None:
            circle = " → ".join([task_id, *path])
            raise InvalidInput(f"These dependencies would go in a circle: {circle}.")
    connection.execute(dependencies.delete().where(dependencies.c.task_id == task_id))
    _add_dependencies(connection, task_id, depends_on)


def _dependencies_of(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    found = connection.execute(_DEPENDENCIES_OF, {"ids": ids})
    return group((task_id, other) for task_id, other in found)


def _dependency_statuses(connection: sa.Connection, task_id: str) -> dict[str, TaskStatus]:
    """The tasks that this one depends on, with their present statuses."""
    query = (
        sa.select(tasks.c.id, tasks.c.status)
        .join(dependencies, dependencies.c.depends_on == tasks.c.id)
        .where(dependencies.c.task_id == task_id)
        .order_by(tasks.c.id)
    )
    return {other: TaskStatus(status) for other, status in connection.execute(query)}


def list_releasable(connection: sa.Connection) -> list[str]:
    """Blocked tasks without any open dependency: a crash or an old version left them behind."""
    other = tasks.alias()
    is_open = (other.c.id == dependencies.c.depends_on, other.c.status.not_in(FINAL))
    waits = sa.exists().where(dependencies.c.task_id == tasks.c.id, *is_open)
    query = sa.select(tasks.c.id).where(tasks.c.status == TaskStatus.BLOCKED, ~waits)
    return list(connection.execute(query).scalars())


def _dependency_path(connection: sa.Connection, start: str, goal: str) -> list[str] | None:
    """A chain of dependencies from start to goal, both included."""
    chains = {start: [start]}
    frontier = [start]
    while frontier and goal not in chains:
        found = _dependencies_of(connection, frontier)
        reached = {
            other: [*chains[origin], other]
            for origin, others in found.items()
            for other in others
            if other not in chains
        }
        chains |= reached
        frontier = [*reached]
    return chains.get(goal)


def move(
    connection: sa.Connection,
    task: Row,
    status: TaskStatus,
    reason: str | None = None,
    /,
    **values: Any,
) -> None:
    """Move a task whose row was read in this transaction to a status; a final one also releases or
    cancels its dependents."""
    _cascade(connection, _apply_status(connection, task, status, reason, values))


def settle_dependencies(connection: sa.Connection, task_id: str) -> None:
    """Queue or cancel a blocked task if what it depends on has ended."""
    if _settle_dependencies(connection, task_id):
        _cascade(connection, [task_id])


def enqueue_again(connection: sa.Connection, task_id: str, /, **values: Any) -> None:
    """Put an ended or waiting task back: blocked first, then queued if nothing holds it."""
    again = ("ended_at", "not_before", "merged_at", "stop", "stopped_by", "limit_reached")
    values = {**dict.fromkeys(again), **values}
    task = load_row(connection, task_id)
    free = task["status"] == TaskStatus.WAITING or not _dependency_statuses(connection, task_id)
    move(connection, task, TaskStatus.QUEUED if free else TaskStatus.BLOCKED, None, **values)
    settle_dependencies(connection, task_id)


def _cascade(connection: sa.Connection, ended: list[str]) -> None:
    """Settle the dependents of ended tasks, and theirs, as long as any is cancelled by it."""
    while ended:
        ended = [
            dependent
            for task_id in ended
            for dependent in _BLOCKED_BY.scalars(connection, other=task_id)
            if _settle_dependencies(connection, dependent)
        ]


def _apply_status(
    connection: sa.Connection,
    task: Row,
    status: TaskStatus,
    reason: str | None,
    values: dict[str, Any],
) -> list[str]:
    """Write one change; returns the task if it ended by it."""
    task_id: str = task["id"]
    require_transition(task_id, TaskStatus(task["status"]), status)
    if status in FINAL:
        now = datetime.now(UTC)  # by a clock that may have been set back
        ended = {"ended_at": max(now, task["started_at"] or now)}
        values = {**ended, "stop": None, "not_before": None, **values}
    if task["status"] == TaskStatus.WAITING and status is not TaskStatus.WAITING:
        questions.withdraw(connection, task_id)
    values = {"waiting_for": None, "question": None, "stopped_by": None, **values}
    update(connection, task_id, status=status, reason=reason, **values)
    facts = {"title": task["title"], "reason": reason}
    if values["stopped_by"] is not None:
        facts["stopped_by"] = values["stopped_by"]
    if status is TaskStatus.WAITING:
        facts["waiting_for"] = values["waiting_for"]
    if status is TaskStatus.COMPLETED:
        facts["verified"] = _is_verified(connection, task)
    if values.get("result"):
        facts["text"] = excerpt(values["result"])
    events.append(connection, f"task.{status}", task_id, **facts)
    return [task_id] if status in FINAL else []


def _settle_dependencies(connection: sa.Connection, task_id: str) -> bool:
    """Move a blocked task on if it can be; returns whether it was cancelled by that."""
    task = load_row(connection, task_id)
    if task["status"] != TaskStatus.BLOCKED:
        return False  # another of its dependencies has settled it
    statuses = _dependency_statuses(connection, task_id)
    if task["deps_policy"] == DepsPolicy.CANCEL:
        for other, status in statuses.items():
            if status in {TaskStatus.FAILED, TaskStatus.CANCELLED}:
                if status is TaskStatus.FAILED:
                    verb = "failed"
                else:
                    verb = "was cancelled"
                reason = f"its dependency {other} {verb}"
                values = {"stopped_by": Stopper.DEPENDENCY}
                return bool(_apply_status(connection, task, TaskStatus.CANCELLED, reason, values))
    still_open = [other for other, status in statuses.items() if status not in FINAL]
    if still_open:
        update(connection, task_id, reason=f"waits for {', '.join(still_open)}")
    else:
        _apply_status(connection, task, TaskStatus.QUEUED, None, {})
    return False
