"""Rows as the store takes them."""

from datetime import UTC, datetime
from typing import Any

from kapelle.domain.ids import new_id
from kapelle.domain.specs import RetrySpec
from kapelle.domain.states import TaskStatus
from kapelle.store.tables import INDEX

# How schemas are compared: the full-text index is made by hand, as each database has it.
COMPARED = {
    "compare_type": True,
    "include_name": lambda name, kind, _: not (kind == "table" and name.startswith(INDEX)),
}


def task_row(**changes: Any) -> dict[str, Any]:
    """A task that waits in the queue, to be worked on in place, unless something else is said."""
    return {
        "id": new_id("task"),
        "title": "a title",
        "prompt": "do it",
        "agent": "rehearsal",
        "directory": "/",
        "status": TaskStatus.QUEUED,
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
        "workspace_path": "/",
        "created_at": datetime.now(UTC),
    } | changes
