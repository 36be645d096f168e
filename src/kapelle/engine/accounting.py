"""What the end of an attempt says about the account that it worked under."""

from datetime import datetime, timedelta
from typing import Any

from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.outcome import reset
from kapelle.engine.findings import Finish
from kapelle.settings import Failures
from kapelle.store import accounts, events
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
