"""Accounts: an agent with a credential, and the rate limits that its attempts share."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.store.query import Row
from kapelle.store.statements import Statement
from kapelle.store.tables import accounts

_MOST_WINDOWS = 20
_UPDATE = Statement(accounts.update().where(accounts.c.id == sa.bindparam("account")))
_IS_OVER = accounts.c.paused_until <= sa.bindparam("now")
_END_TRIAL = Statement(
    accounts.update()
    .where(accounts.c.id.in_([sa.bindparam("account"), sa.bindparam("of_model")]), _IS_OVER)
    .values(paused_until=None, reason=None)
)
_LIMITED = Statement(sa.select(accounts).where(accounts.c.paused_until.is_not(None)))


def load_pauses(connection: sa.Connection, now: datetime) -> dict[str, tuple[datetime, str]]:
    """Return the paused accounts, each with the end of its pause and the reason."""
    pauses = {}
    for row in _LIMITED.rows(connection):
        if row["paused_until"] > now:
            pauses[row["id"]] = (row["paused_until"], row["reason"])
    return pauses


def load_rows(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Row]:
    """Return the rows of those accounts that exist, by their ids."""
    query = sa.select(accounts).where(accounts.c.id.in_(ids))
    return {row["id"]: row for row in connection.execute(query).mappings()}


def pause(connection: sa.Connection, account: str, until: datetime, reason: str) -> None:
    """Keep attempts from starting until a time; a pause is never shortened."""
    row = load_rows(connection, [account]).get(account)
    if row is None or row["paused_until"] is None or row["paused_until"] < until:
        update(connection, account, paused_until=until, reason=reason)


def release(connection: sa.Connection, account: str) -> None:
    """Lift the pauses of an account and of the models under it."""
    models = accounts.update().where(accounts.c.id.startswith(f"{account}#", autoescape=True))
    connection.execute(models.values(paused_until=None))
    update(connection, account, paused_until=None, reason=None, failures_in_a_row=0)


def record_success(connection: sa.Connection, account: str, of_model: str, now: datetime) -> None:
    """Record that an attempt with an account and one of its models was not refused."""
    update(connection, account, verified_at=now, failures_in_a_row=0)
    end_trial(connection, account, of_model, now)


def end_trial(connection: sa.Connection, account: str, of_model: str, now: datetime) -> None:
    """Remove the pauses of an account and of one of its models whose announced end has passed."""
    _END_TRIAL.write(connection, account=account, of_model=of_model, now=now)


def load_trials(connection: sa.Connection, now: datetime) -> dict[str, datetime]:
    """Return the accounts whose pause has ended and without a success since, with that end."""
    trials = {}
    for row in _LIMITED.rows(connection):
        if row["paused_until"] <= now:
            trials[row["id"]] = row["paused_until"]
    return trials


def update(connection: sa.Connection, account: str, /, **values: Any) -> None:
    """Change columns of an account; create the account if it does not exist."""
    if not _UPDATE.write(connection, account=account, **values):
        connection.execute(accounts.insert().values(id=account, **values))


def store_windows(connection: sa.Connection, account: str, windows: dict[str, Any]) -> None:
    """Store the rate limits of an account as its provider reports them, each by its name.

    Only the newest ones are kept.
    """
    row = load_rows(connection, [account]).get(account)
    earlier = {}
    if row and row["windows"]:
        earlier = row["windows"]
    newest = [*{**earlier, **windows}.items()][-_MOST_WINDOWS:]
    update(connection, account, windows=dict(newest))


def count_failure(connection: sa.Connection, account: str) -> int:
    """Count one more failure of the environment in a row; return the number of failures."""
    row = load_rows(connection, [account]).get(account)
    count = 1
    if row:
        count += row["failures_in_a_row"]
    update(connection, account, failures_in_a_row=count)
    return count
