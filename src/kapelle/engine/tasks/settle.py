"""The end of an attempt, written in one transaction over attempt, task, account and history."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from kapelle.domain.errors import KapelleError
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.outcome import Evidence, History, Outcome, decide, reset
from kapelle.domain.specs import RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.accounts import Candidate, candidates, given_up
from kapelle.engine.tasks.work import Findings, Finish
from kapelle.settings.models import Failures
from kapelle.store import accounts, attempts, events, tasks
from kapelle.store.database import Connection


def account_for(
    connection: Connection,
    attempt: Any,
    finish: Finish,
    failure: Failure | None,
    failures: Failures,
    now: datetime,
) -> None:
    """Pause, count or clear the account that an attempt worked under."""
    account = attempt["account"]
    if account is None:
        return
    if failure is None or failure.kind is FailureClass.CHECKS:
        accounts.update(connection, account, verified_at=now, failures_in_a_row=0)
    elif failure.kind is FailureClass.AUTHENTICATION:
        accounts.update(connection, account, verified_at=None)
    elif failure.kind is FailureClass.RATE_LIMIT:
        until = reset(failure.retry_at, attempt["number"], now)
        _pause(connection, attempt, until, f"{attempt['agent']} is rate-limited")
    elif failure.policy.trips and finish.exit.kind != "not_started":
        _count(connection, attempt, failures, now)


def _count(connection: Connection, attempt: Any, failures: Failures, now: datetime) -> None:
    """The circuit breaker: failures in a row that are the environment's pause the account."""
    account, most = attempt["account"], failures.breaker
    if accounts.failed_again(connection, account) >= most:
        until = now + timedelta(seconds=failures.breaker_s)
        _pause(connection, attempt, until, f"{attempt['agent']} failed {most} times in a row")
        accounts.update(connection, account, failures_in_a_row=0)


def _pause(connection: Connection, attempt: Any, until: datetime, reason: str) -> None:
    accounts.pause(connection, attempt["account"], until, reason)
    events.append(
        connection, "account.paused", attempt["task_id"], attempt["id"],
        account=attempt["account"], agent=attempt["agent"], until=until.isoformat(), reason=reason,
    )  # fmt: skip


_DEFAULTS = Failures()


async def conclude(parts: Parts, attempt_id: str, finish: Finish, findings: Findings) -> None:
    """The end of an attempt in the database."""
    others: list[Candidate] = []
    failures = _DEFAULTS
    if findings.failure is not None:
        attempt = await parts.db.glance(attempts.row, attempt_id)
        task = await parts.db.glance(tasks.row, attempt["task_id"])
        others = candidates(parts, task)
        with suppress(KapelleError):  # a broken configuration has the defaults
            failures = parts.settings(task["directory"]).failures
    await parts.db.write(settle, attempt_id, finish, findings, others, failures)


def settle(
    connection: Connection,
    attempt_id: str,
    finish: Finish,
    findings: Findings,
    others: Sequence[Candidate] = (),
    failures: Failures = _DEFAULTS,
) -> None:
    """Record how an attempt ended and move its task; nothing happens the second time.

    others are the agents that may take over.
    """
    attempt = attempts.row(connection, attempt_id)
    if attempt["status"] != AttemptStatus.RUNNING:
        return
    task = tasks.row(connection, attempt["task_id"])
    now = datetime.now(UTC)
    evidence = _evidence(task, finish, findings)
    _record(connection, attempt, finish, findings, None if evidence.stop else findings.failure)
    if evidence.stop is None:
        account_for(connection, attempt, finish, findings.failure, failures, now)
    history = _history(connection, task, attempt, findings, others, now)
    retry = RetrySpec.model_validate(task["retry"])
    outcome = decide(evidence, retry, history, now, random.random())
    reason = _with_detail(outcome.reason, finish.detail)
    if outcome.task is TaskStatus.FAILED:
        reason = _with_fix(reason, findings.failure, attempt["agent"], task["id"])
    attempts.update(connection, attempt_id, status=outcome.attempt, reason=reason, ended_at=now)
    failure = findings.failure.kind if findings.failure and not evidence.stop else None
    events.append(
        connection, f"attempt.{outcome.attempt}", task["id"], attempt_id,
        number=attempt["number"], agent=attempt["agent"], reason=reason, failure=failure,
        code=finish.exit.code, signal=finish.exit.signal,
    )  # fmt: skip
    _move_task(connection, task, attempt, outcome, findings, reason)


def _record(
    connection: Connection,
    attempt: Any,
    finish: Finish,
    findings: Findings,
    failure: Failure | None,
) -> None:
    exit, usage = finish.exit, findings.usage
    attempts.update(
        connection,
        attempt["id"],
        exit_kind=exit.kind,
        exit_code=exit.code,
        exit_signal=exit.signal,
        claimed=findings.claimed,
        question=findings.question,
        failure=failure.kind if failure else None,
        evidence=failure.evidence if failure else None,
        session_id=findings.session_id or _kept_session(attempt, failure),
        session_usage=findings.session_usage or None,
        model=findings.model or attempt["model"],
        output_bytes=finish.output_bytes,
        **(usage.model_dump() if usage else {}),
    )


def _kept_session(attempt: Any, failure: Failure | None) -> str | None:
    """The session that it went on with, where it died before it could name it."""
    lost = failure is not None and failure.kind is FailureClass.SESSION_LOST
    kept: str | None = attempt["started_from"]
    return kept if attempt["mode"] == "resume" and not lost else None


def _history(
    connection: Connection,
    task: Any,
    attempt: Any,
    findings: Findings,
    others: Sequence[Candidate],
    now: datetime,
) -> History:
    if findings.failure is None:
        return History(attempt["number"], task["tries"])
    past = attempts.of_task(connection, task["id"])
    overloaded = list(
        takewhile(lambda row: row["failure"] == FailureClass.OVERLOADED, reversed(past))
    )
    paused = accounts.paused(connection, now)
    tired = given_up(connection, task["id"]) | {attempt["agent"]}
    rested = [other for other in others if other.agent not in tired]
    pauses = [paused[other.account][0] for other in rested if other.account in paused]
    return History(
        number=attempt["number"],
        tries=task["tries"],
        overloads=len(overloaded),
        # It may have worked for hours before it met the first.
        overloaded_since=(overloaded[-1]["ended_at"] or now) if overloaded else None,
        nudges=sum(row["failure"] == FailureClass.STALLED for row in past) - 1,
        can_nudge=findings.can_nudge,
        can_switch=len(pauses) < len(rested),
        others_free_at=min(pauses, default=None),
        had_session=attempt["started_from"] is not None,
    )


def _move_task(
    connection: Connection,
    task: Any,
    attempt: Any,
    outcome: Outcome,
    findings: Findings,
    reason: str | None,
) -> None:
    # What a person said to an attempt that came to nothing is said to the next one.
    heard = outcome.task is TaskStatus.COMPLETED or outcome.waiting_for == "input" or task["stop"]
    unheard = None if heard else attempt["message"]
    if unheard and outcome.task is TaskStatus.QUEUED:
        outcome = replace(outcome, next_mode="resume")
    values: dict[str, Any] = {
        "waiting_for": outcome.waiting_for,
        "question": findings.question if outcome.waiting_for == "input" else None,
        "not_before": outcome.not_before,
        "tries": task["tries"] if outcome.spends_a_try else max(0, task["tries"] - 1),
        "next_mode": outcome.next_mode,
        "next_message": unheard or outcome.next_message,
        "stop": None,
    }
    if outcome.task in {TaskStatus.COMPLETED, TaskStatus.FAILED}:
        values["result"] = findings.result
    if task["stop"] == "requeue":
        values |= {"tries": 0, "workspace_base_commit": None, "starting_tree": None}
    if outcome.task is TaskStatus.QUEUED and reason != "requeued":
        reason = f"tries again after: {reason}"
    tasks.move(connection, task, outcome.task, reason, **values)


def _with_fix(reason: str | None, failure: Failure | None, agent: str, task_id: str) -> str | None:
    fix = failure.policy.fix if failure else None
    return f"{reason} → {fix.format(agent=agent, task=task_id)}" if fix else reason


def _with_detail(reason: str | None, detail: str | None) -> str | None:
    """What the supervisor had to say beside the verdict, such as who survived the kill."""
    if detail is None or (reason and detail in reason):
        return reason
    return f"{reason}; {detail}" if reason else detail


def _evidence(task: Any, finish: Finish, findings: Findings) -> Evidence:
    return Evidence(
        exit=finish.exit,
        stop=task["stop"],
        detail=task["reason"] if task["stop"] else finish.detail,
        success=findings.success,
        reason=findings.reason,
        asks=findings.question is not None,
        failure=findings.failure,
    )
