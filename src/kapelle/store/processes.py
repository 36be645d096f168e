"""Queries about processes beside the agents': that they were begun, where, and their secrets."""

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
    """The processes that an attempt or a run has begun, by name."""
    return {row["name"]: row for row in _OF_OWNER.rows(connection, owner=owner)}


def begin(
    connection: sa.Connection, owner: str, name: str, announce: Announce | None = None
) -> Row:
    """Store that a process is begun, in a directory that nobody can guess, and announce it; once
    for each name."""
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
    """Store where the agent that is asked keeps a log of its own."""
    mine = processes.update().where(processes.c.owner == owner, processes.c.name == name)
    connection.execute(mine.values(side_log=side_log))


def record_success(connection: sa.Connection, owner: str, name: str) -> None:
    mine = processes.update().where(processes.c.owner == owner, processes.c.name == name)
    connection.execute(mine.values(succeeded=True))


def has_succeeded(connection: sa.Connection, owners: Sequence[str], name: str) -> bool:
    """Whether a process of this name of one of the owners was noted to have succeeded."""
    of_name = (processes.c.owner.in_(owners), processes.c.name == name)
    return has_row(connection, *of_name, processes.c.succeeded)


def find_owners(connection: sa.Connection, places: Sequence[str]) -> set[str]:
    """Whose these directories are."""
    query = sa.select(processes.c.owner)
    return {row[0] for row in select_in_parts(connection, query, processes.c.directory, places)}


def load_directories(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(processes.c.directory)).scalars())


def list_of_ended_runs(connection: sa.Connection) -> list[Row]:
    """The processes of runs that are not under way."""
    query = sa.select(processes).join(runs, runs.c.id == processes.c.owner)
    query = query.where(runs.c.status != RunStatus.RUNNING)
    return list(connection.execute(query).mappings())


def delete(connection: sa.Connection, owner: str) -> None:
    connection.execute(processes.delete().where(processes.c.owner == owner))
