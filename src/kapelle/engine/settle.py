"""The end of an attempt, written down: one transaction over attempt, task and history."""

import random
from datetime import UTC, datetime
from typing import Any

from kapelle.domain.outcome import Evidence, Outcome, decide
from kapelle.domain.specs import RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import Exit
from kapelle.engine.durable import Json
from kapelle.store import attempts, events, lifecycle, tasks
from kapelle.store.database import Connection


def settle(connection: Connection, attempt_id: str, ended: Json, verdict: Json) -> str | None:
    """Record how an attempt ended and move its task; None when that was done before."""
    attempt = attempts.row(connection, attempt_id)
    if attempt["status"] != AttemptStatus.RUNNING:
        return None
    task = tasks.row(connection, attempt["task_id"])
    now = datetime.now(UTC)
    outcome = decide(
        _evidence(task, ended, verdict), _retry(task), task["tries"], now, random.random()
    )
    exit = ended["exit"]
    attempts.update(
        connection,
        attempt_id,
        status=outcome.attempt,
        exit_kind=exit["kind"],
        exit_code=exit["code"],
        exit_signal=exit["signal"],
        reason=outcome.reason,
        claimed=verdict["claimed"],
        session_id=verdict["session_id"],
        usage=verdict["usage"],
        output_bytes=ended["output_bytes"],
        ended_at=now,
    )
    events.append(
        connection, f"attempt.{outcome.attempt}", task["id"], attempt_id,
        number=attempt["number"], reason=outcome.reason, code=exit["code"], signal=exit["signal"],
    )  # fmt: skip
    _move_task(connection, task, outcome, verdict)
    return outcome.task.value


def _move_task(connection: Connection, task: Any, outcome: Outcome, verdict: Json) -> None:
    values: dict[str, Any] = {
        "waiting_for": outcome.waiting_for,
        "not_before": outcome.not_before,
        "tries": task["tries"] if outcome.spends_a_try else max(0, task["tries"] - 1),
        "stop": None,
    }
    if outcome.task in {TaskStatus.COMPLETED, TaskStatus.FAILED}:
        values["result"] = verdict["result"]
    if task["stop"] == "requeue":
        values |= {"tries": 0, "workspace_base_commit": None}
    reason = outcome.reason
    if outcome.task is TaskStatus.QUEUED and outcome.not_before:
        reason = f"tries again after: {reason}"
    lifecycle.change(connection, task["id"], outcome.task, reason, **values)


def _evidence(task: Any, ended: Json, verdict: Json) -> Evidence:
    retry_at = verdict["retry_at"]
    return Evidence(
        exit=Exit.model_validate(ended["exit"]),
        wish=task["stop"],
        timed_out=ended["timed_out"],
        detail=task["reason"] if task["stop"] else ended["detail"],
        success=verdict["success"],
        reason=verdict["reason"],
        failed_checks=tuple(verdict["failed_checks"]),
        waiting_for=verdict["waiting_for"],
        retry_at=datetime.fromisoformat(retry_at) if retry_at else None,
    )


def _retry(task: Any) -> RetrySpec:
    return RetrySpec.model_validate(task["retry"])
