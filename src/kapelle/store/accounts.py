"""Accounts: an agent with a credential, under whose limits attempts work."""

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
    """Every account that is paused, with until when and why."""
    limited = (row for row in _LIMITED.rows(connection) if row["paused_until"] > now)
    return {row["id"]: (row["paused_until"], row["reason"]) for row in limited}


def load_rows(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Row]:
    query = sa.select(accounts).where(accounts.c.id.in_(ids))
    return {row["id"]: row for row in connection.execute(query).mappings()}


def pause(connection: sa.Connection, account: str, until: datetime, reason: str) -> None:
    """Keep attempts from starting until then; an earlier end than the known one is ignored."""
    known = load_rows(connection, [account]).get(account)
    if known is None or known["paused_until"] is None or known["paused_until"] < until:
        update(connection, account, paused_until=until, reason=reason)


def release(connection: sa.Connection, account: str) -> None:
    """Lift the pauses of an account and of the models under it."""
    models = accounts.update().where(accounts.c.id.startswith(f"{account}#", autoescape=True))
    connection.execute(models.values(paused_until=None))
    update(connection, account, paused_until=None, reason=None, failures_in_a_row=0)


def record_success(connection: sa.Connection, account: str, of_model: str, now: datetime) -> None:
    """An attempt under an account and one of its models has not been refused."""
    update(connection, account, verified_at=now, failures_in_a_row=0)
    end_trial(connection, account, of_model, now)


def end_trial(connection: sa.Connection, account: str, of_model: str, now: datetime) -> None:
    """Forget the limits of an account and one of its models that have ended by their word."""
    _END_TRIAL.write(connection, account=account, of_model=of_model, now=now)


def load_trials(connection: sa.Connection, now: datetime) -> dict[str, datetime]:
    """The accounts whose pause has ended and with which nothing has succeeded since."""
    ended = (row for row in _LIMITED.rows(connection) if row["paused_until"] <= now)
    return {row["id"]: row["paused_until"] for row in ended}


def update(connection: sa.Connection, account: str, /, **values: Any) -> None:
    """Change an account, which begins to exist by that."""
    if not _UPDATE.write(connection, account=account, **values):
        connection.execute(accounts.insert().values(id=account, **values))


def store_windows(connection: sa.Connection, account: str, windows: dict[str, Any]) -> None:
    """Keep what a provider says of the limits of an account, each by its name."""
    known = load_rows(connection, [account]).get(account)
    both = {**(known["windows"] or {} if known else {}), **windows}
    update(connection, account, windows=dict([*both.items()][-_MOST_WINDOWS:]))


def count_failure(connection: sa.Connection, account: str) -> int:
    """Count one more failure of the environment in a row."""
    known = load_rows(connection, [account]).get(account)
    count = (known["failures_in_a_row"] if known else 0) + 1
    update(connection, account, failures_in_a_row=count)
    return count
