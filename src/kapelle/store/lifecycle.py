"""Changes of a task's status: each checks the table of transitions, and tells the history."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.specs import DepsPolicy
from kapelle.domain.states import FINAL, TaskStatus, require_transition
from kapelle.store import dependencies, events, tasks


def change(
    connection: sa.Connection,
    task_id: str,
    status: TaskStatus,
    reason: str | None = None,
    /,
    **values: Any,
) -> None:
    """Move a task to a status; a final one also releases or cancels its dependents."""
    move(connection, tasks.row(connection, task_id), status, reason, **values)


def move(
    connection: sa.Connection,
    task: sa.RowMapping,
    status: TaskStatus,
    reason: str | None = None,
    /,
    **values: Any,
) -> None:
    """The same for a task whose row was read in this transaction."""
    _cascade(connection, _apply(connection, task, status, reason, values))


def settle_dependencies(connection: sa.Connection, task_id: str) -> None:
    """Queue or cancel a blocked task if what it depends on has ended."""
    if _settle(connection, task_id):
        _cascade(connection, [task_id])


def enqueue_again(connection: sa.Connection, task_id: str, /, **values: Any) -> None:
    """Put an ended or waiting task back: blocked first, then queued if nothing holds it."""
    values = {"ended_at": None, "not_before": None, "merged_at": None, "stop": None, **values}
    status = TaskStatus(tasks.row(connection, task_id)["status"])
    if status is TaskStatus.WAITING or not dependencies.statuses(connection, task_id):
        change(connection, task_id, TaskStatus.QUEUED, None, **values)
        return
    change(connection, task_id, TaskStatus.BLOCKED, None, **values)
    settle_dependencies(connection, task_id)


def _cascade(connection: sa.Connection, ended: list[str]) -> None:
    """Settle the dependents of ended tasks, and theirs, as long as any is cancelled by it."""
    while ended:
        ended = [
            dependent
            for task_id in ended
            for dependent in dependencies.blocked_dependents(connection, task_id)
            if _settle(connection, dependent)
        ]


def _apply(
    connection: sa.Connection,
    task: sa.RowMapping,
    status: TaskStatus,
    reason: str | None,
    values: dict[str, Any],
) -> list[str]:
    """Write one change; returns the task if it ended by it."""
    task_id: str = task["id"]
    require_transition(task_id, TaskStatus(task["status"]), status)
    if status in FINAL:
        values = {"ended_at": datetime.now(UTC), "stop": None, "not_before": None, **values}
    values.setdefault("waiting_for", None)
    tasks.update(connection, task_id, status=status, reason=reason, **values)
    events.append(connection, f"task.{status}", task_id, title=task["title"], reason=reason)
    return [task_id] if status in FINAL else []


def _settle(connection: sa.Connection, task_id: str) -> bool:
    """Move a blocked task on if it can be; returns whether it was cancelled by that."""
    task = tasks.row(connection, task_id)
    if task["status"] != TaskStatus.BLOCKED:
        return False  # another of its dependencies has settled it
    statuses = dependencies.statuses(connection, task_id)
    if task["deps_policy"] == DepsPolicy.CANCEL:
        for other, status in statuses.items():
            if status in {TaskStatus.FAILED, TaskStatus.CANCELLED}:
                verb = "failed" if status is TaskStatus.FAILED else "was cancelled"
                reason = f"its dependency {other} {verb}"
                return bool(_apply(connection, task, TaskStatus.CANCELLED, reason, {}))
    still_open = [other for other, status in statuses.items() if status not in FINAL]
    if still_open:
        tasks.update(connection, task_id, reason=f"waits for {', '.join(still_open)}")
    else:
        _apply(connection, task, TaskStatus.QUEUED, None, {})
    return False
