"""The end of an attempt, written down: one transaction over attempt, task and history."""

import random
from datetime import UTC, datetime
from typing import Any

from kapelle.domain.outcome import Evidence, Outcome, decide
from kapelle.domain.specs import RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.engine.findings import Findings, Finish
from kapelle.store import attempts, events, lifecycle, tasks
from kapelle.store.database import Connection


def settle(connection: Connection, attempt_id: str, finish: Finish, findings: Findings) -> None:
    """Record how an attempt ended and move its task; nothing happens the second time."""
    attempt = attempts.row(connection, attempt_id)
    if attempt["status"] != AttemptStatus.RUNNING:
        return
    task = tasks.row(connection, attempt["task_id"])
    now = datetime.now(UTC)
    retry = RetrySpec.model_validate(task["retry"])
    evidence = _evidence(task, finish, findings)
    number = attempt["number"]
    outcome = decide(evidence, retry, task["tries"], number, now, random.random())
    reason = _with_detail(outcome.reason, finish.detail)
    exit = finish.exit
    attempts.update(
        connection,
        attempt_id,
        status=outcome.attempt,
        exit_kind=exit.kind,
        exit_code=exit.code,
        exit_signal=exit.signal,
        reason=reason,
        claimed=findings.claimed,
        session_id=findings.session_id,
        usage=findings.usage.model_dump() if findings.usage else None,
        output_bytes=finish.output_bytes,
        ended_at=now,
    )
    events.append(
        connection, f"attempt.{outcome.attempt}", task["id"], attempt_id,
        number=number, reason=reason, code=exit.code, signal=exit.signal,
    )  # fmt: skip
    _move_task(connection, task, outcome, findings)


def _move_task(connection: Connection, task: Any, outcome: Outcome, findings: Findings) -> None:
    values: dict[str, Any] = {
        "waiting_for": outcome.waiting_for,
        "not_before": outcome.not_before,
        "tries": task["tries"] if outcome.spends_a_try else max(0, task["tries"] - 1),
        "stop": None,
    }
    if outcome.task in {TaskStatus.COMPLETED, TaskStatus.FAILED}:
        values["result"] = findings.result
    if task["stop"] == "requeue":
        values |= {"tries": 0, "workspace_base_commit": None, "starting_tree": None}
    reason = outcome.reason
    if outcome.task is TaskStatus.QUEUED and outcome.not_before:
        reason = f"tries again after: {reason}"
    lifecycle.move(connection, task, outcome.task, reason, **values)


def _with_detail(reason: str | None, detail: str | None) -> str | None:
    """What the supervisor had to say beside the verdict, such as who survived the kill."""
    if detail is None or (reason and detail in reason):
        return reason
    return f"{reason}; {detail}" if reason else detail


def _evidence(task: Any, finish: Finish, findings: Findings) -> Evidence:
    return Evidence(
        exit=finish.exit,
        wish=task["stop"],
        timed_out=finish.timed_out,
        detail=task["reason"] if task["stop"] else finish.detail,
        success=findings.success,
        reason=findings.reason,
        failed_checks=findings.failed_checks,
        waiting_for=findings.waiting_for,
        retry_at=findings.retry_at,
    )
