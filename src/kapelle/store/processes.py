"""Processes other than agents: set-up commands, checks and steps, with directories and secrets."""

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.states import RunStatus
from kapelle.store.query import Row, has_row, select_in_parts
from kapelle.store.statements import Statement
from kapelle.store.tables import processes, runs

Announce = Callable[[sa.Connection], None]

_OF_OWNER = Statement(sa.select(processes).where(processes.c.owner == sa.bindparam("owner")))


def load_by_name(connection: sa.Connection, owner: str) -> dict[str, Row]:
    """Return the processes of an attempt or run by name."""
    return {row["name"]: row for row in _OF_OWNER.rows(connection, owner=owner)}


def begin(
    connection: sa.Connection, owner: str, name: str, announce: Announce | None = None
) -> Row:
    """Store a process before its start, with an unguessable directory and a secret.

    A second call with the same name returns the stored row. announce is called in the same
    transaction, only the first time.
    """
    values = {
        "owner": owner,
        "name": name,
        "directory": secrets.token_hex(16),
        "secret": secrets.token_hex(32),
        "begun_at": datetime.now(UTC),
    }
    if name not in load_by_name(connection, owner):
        connection.execute(processes.insert(), values)
        if announce is not None:
            announce(connection)
    return load_by_name(connection, owner)[name]


def set_side_log(
    connection: sa.Connection, owner: str, name: str, side_log: dict[str, Any] | None
) -> None:
    """Store the location of the log that the agent of a question keeps itself."""
    own = processes.update().where(processes.c.owner == owner, processes.c.name == name)
    connection.execute(own.values(side_log=side_log))


def record_success(connection: sa.Connection, owner: str, name: str) -> None:
    """Record that a process succeeded."""
    own = processes.update().where(processes.c.owner == owner, processes.c.name == name)
    connection.execute(own.values(succeeded=True))


def has_succeeded(connection: sa.Connection, owners: Sequence[str], name: str) -> bool:
    """Return whether a process of this name succeeded for one of the owners."""
    of_name = (processes.c.owner.in_(owners), processes.c.name == name)
    return has_row(connection, *of_name, processes.c.succeeded)


def find_owners(connection: sa.Connection, places: Sequence[str]) -> set[str]:
    """Return the owners of process directories."""
    query = sa.select(processes.c.owner)
    return {row[0] for row in select_in_parts(connection, query, processes.c.directory, places)}


def load_directories(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(processes.c.directory)).scalars())


def list_of_ended_runs(connection: sa.Connection) -> list[Row]:
    """Return the processes of runs that are not running."""
    query = sa.select(processes).join(runs, runs.c.id == processes.c.owner)
    query = query.where(runs.c.status != RunStatus.RUNNING)
    return list(connection.execute(query).mappings())


def delete(connection: sa.Connection, owner: str) -> None:
    connection.execute(processes.delete().where(processes.c.owner == owner))
