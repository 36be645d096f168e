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
    ended = _apply(connection, task_id, status, reason, values)
    while ended:
        ended = [
            dependent
            for task in ended
            for dependent in dependencies.blocked_dependents(connection, task)
            if _settle(connection, dependent)
        ]


def settle_dependencies(connection: sa.Connection, task_id: str) -> None:
    """Queue or cancel a blocked task if what it depends on has ended."""
    if _settle(connection, task_id):
        for dependent in dependencies.blocked_dependents(connection, task_id):
            settle_dependencies(connection, dependent)


def enqueue_again(connection: sa.Connection, task_id: str, /, **values: Any) -> None:
    """Put an ended or waiting task back: blocked first, then queued if nothing holds it."""
    values = {"ended_at": None, "not_before": None, "result": None, "stop": None, **values}
    status = TaskStatus(tasks.row(connection, task_id)["status"])
    if status is TaskStatus.WAITING or not dependencies.statuses(connection, task_id):
        change(connection, task_id, TaskStatus.QUEUED, None, **values)
        return
    change(connection, task_id, TaskStatus.BLOCKED, None, **values)
    settle_dependencies(connection, task_id)


def _apply(
    connection: sa.Connection,
    task_id: str,
    status: TaskStatus,
    reason: str | None,
    values: dict[str, Any],
) -> list[str]:
    """Write one change; returns the task if it ended by it."""
    row = tasks.row(connection, task_id)
    require_transition(task_id, TaskStatus(row["status"]), status)
    if status in FINAL:
        values = {"ended_at": datetime.now(UTC), "stop": None, "not_before": None, **values}
    values.setdefault("waiting_for", None)
    tasks.update(connection, task_id, status=status, reason=reason, **values)
    events.append(connection, f"task.{status}", task_id, title=row["title"], reason=reason)
    return [task_id] if status in FINAL else []


def _settle(connection: sa.Connection, task_id: str) -> bool:
    """Move a blocked task on if it can be; returns whether it was cancelled by that."""
    statuses = dependencies.statuses(connection, task_id)
    if tasks.row(connection, task_id)["deps_policy"] == DepsPolicy.CANCEL:
        for other, status in statuses.items():
            if status in {TaskStatus.FAILED, TaskStatus.CANCELLED}:
                verb = "failed" if status is TaskStatus.FAILED else "was cancelled"
                reason = f"its dependency {other} {verb}"
                return bool(_apply(connection, task_id, TaskStatus.CANCELLED, reason, {}))
    still_open = [other for other, status in statuses.items() if status not in FINAL]
    if still_open:
        tasks.update(connection, task_id, reason=f"waits for {', '.join(still_open)}")
    else:
        _apply(connection, task_id, TaskStatus.QUEUED, None, {})
    return False
