"""What attempts used, added up by one of their properties."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.views import By
from kapelle.store.tables import attempts, tasks

# Written out, because PostgreSQL takes two parameters for two different expressions.
_DAY = sa.literal_column("86400000000", sa.BigInteger)
_KEYS: dict[By, sa.ColumnElement[Any]] = {
    "agent": attempts.c.agent,
    "model": attempts.c.model,
    "project": tasks.c.project,
    "task": attempts.c.task_id,
    "run": tasks.c.run_id,
    "day": sa.type_coerce(attempts.c.started_at, sa.BigInteger) // _DAY,
}
_COUNTERS = ("input_tokens", "output_tokens", "cached_tokens", "turns")


@dataclass(frozen=True)
class Filters:
    """Which attempts count: those that started from since on and before until, and so on."""

    since: datetime | None = None
    until: datetime | None = None
    agent: str | None = None
    model: str | None = None
    project: str | None = None
    task_id: str | None = None
    run_ids: Sequence[str] | None = None


def grouped(connection: sa.Connection, by: By, filters: Filters) -> list[sa.RowMapping]:
    """One row for each key; that of a day is the number of days since 1970 in UTC.

    cost_usd is the sum of the known costs, NULL where none is known.
    """
    key = _KEYS[by]
    used = attempts.c.input_tokens + attempts.c.output_tokens
    silent = attempts.c.input_tokens.is_(None) & attempts.c.exit_kind.is_distinct_from(
        "not_started"
    )
    query = (
        sa.select(
            key.label("key"),
            (sa.func.min(tasks.c.title) if by == "task" else sa.null()).label("title"),
            sa.func.count().label("attempts"),
            *(sa.func.coalesce(sa.func.sum(attempts.c[name]), 0).label(name) for name in _COUNTERS),
            sa.func.sum(attempts.c.cost_usd).label("cost_usd"),
            _number_of((used > 0) & attempts.c.cost_usd.is_(None)).label("unknown_cost"),
            _number_of(silent & attempts.c.ended_at.is_not(None)).label("unreported"),
        )
        .join_from(attempts, tasks, attempts.c.task_id == tasks.c.id)
        .where(*_conditions(filters))
        .group_by(key)
    )
    return list(connection.execute(query).mappings())


def _number_of(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)


def _conditions(filters: Filters) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if filters.since is not None:
        found.append(attempts.c.started_at >= filters.since)
    if filters.until is not None:
        found.append(attempts.c.started_at < filters.until)
    for column, wanted in (
        (attempts.c.agent, filters.agent),
        (attempts.c.model, filters.model),
        (tasks.c.project, filters.project),
        (attempts.c.task_id, filters.task_id),
    ):
        if wanted is not None:
            found.append(column == wanted)
    if filters.run_ids is not None:
        found.append(tasks.c.run_id.in_(filters.run_ids))
    return found
