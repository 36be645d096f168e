"""A database as full as after months, written directly."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kapelle.domain.ids import new_id
from kapelle.domain.specs import RetrySpec
from kapelle.home import Home
from kapelle.store.database import connect, sqlite_url
from kapelle.store.migrate import migrate
from kapelle.store.tables import attempts, tasks

_BATCH = 5000


def fill(home: Home, count: int) -> None:
    """Put so many ended tasks with one attempt each into a home that no daemon uses."""
    home.create()
    engine = connect(sqlite_url(home.database), synchronous="OFF")
    migrate(engine)
    for begin in range(0, count, _BATCH):
        rows = [_task(number) for number in range(begin, min(begin + _BATCH, count))]
        with engine.begin() as connection:
            connection.execute(tasks.insert(), rows)
            connection.execute(attempts.insert(), [_attempt(row) for row in rows])
    engine.dispose()


def _task(number: int) -> dict[str, Any]:
    at = datetime.now(UTC) - timedelta(hours=1)
    return {
        "id": new_id("task"),
        "title": f"Task {number} of the benchmark",
        "prompt": f"Change the parser so that case {number} is handled as the tests ask. " * 4,
        "agent": "noop",
        "directory": "/tmp",
        "project": f"project-{number % 20}",
        # One in twenty failed, one in fifty was cancelled.
        "status": "failed"
        if number % 20 == 7
        else "cancelled"
        if number % 50 == 3
        else "completed",
        "priority": 1,
        "deps_policy": "cancel",
        "retry": RetrySpec().model_dump(),
        "check_specs": [],
        "fork_session": False,
        "fallback_agents": [],
        "mcp": [],
        "env": [],
        "tags": [],
        "context": {},
        "workspace_kind": "in_place",
        "workspace_path": "/tmp",
        "created_at": at,
        "started_at": at,
        "ended_at": at,
        "result": "It is done: the parser handles the case, and all tests pass.",
    }


def _attempt(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": new_id("attempt"),
        "task_id": task["id"],
        "number": 1,
        "status": task["status"],
        "mode": "fresh",
        "agent": "rehearsal",
        "warnings": [],
        "exit_kind": "exited",
        "exit_code": 0 if task["status"] == "completed" else 1,
        "claimed": "success",
        "output_bytes": 1000,
        "started_at": task["started_at"],
        "ended_at": task["ended_at"],
    }
