"""Changes of a run's status: each checks the table of transitions, and tells the history."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.states import RUN_FINAL, RunStatus, require_run_transition
from kapelle.store import events, runs


def change(
    connection: sa.Connection,
    run_id: str,
    status: RunStatus,
    reason: str | None = None,
    /,
    **values: Any,
) -> None:
    """Move a run to a status; the time that it was under way is added up."""
    row = runs.row(connection, run_id)
    require_run_transition(run_id, RunStatus(row["status"]), status)
    now = datetime.now(UTC)
    if status is RunStatus.RUNNING:
        values |= {"active_since": now, "started_at": row["started_at"] or now}
    elif row["active_since"] is not None:
        under_way = (now - row["active_since"]).total_seconds()
        values |= {"active_since": None, "active_s": row["active_s"] + max(0.0, under_way)}
    if status in RUN_FINAL:
        values |= {"ended_at": now, "stop": None}
    values.setdefault("waiting_for", None)
    runs.update(connection, run_id, status=status, reason=reason, **values)
    events.append(
        connection, f"run.{status}", run_id=run_id, title=row["title"], pattern=row["pattern"],
        reason=reason,
    )  # fmt: skip
