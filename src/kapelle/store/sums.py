"""Numbers of top-level tasks and runs that started or ended since a moment."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.store import runs as run_rows
from kapelle.store.filters import LOOKED_AT
from kapelle.store.tables import WORK, runs, tasks


def count_since(connection: sa.Connection, moment: datetime, project: str | None) -> dict[str, int]:
    """Return how many tasks and runs started, completed, failed … from a moment on."""
    names = ("started", "completed", "verified", "merged", "failed", "cancelled")
    sums = dict.fromkeys(names, 0)
    for table, outer_id in WORK:
        for name, number in _count_in_table(connection, table, outer_id, moment, project).items():
            sums[name] += number
    return sums


def _count_in_table(
    connection: sa.Connection,
    table: sa.Table,
    outer_id: sa.Column[Any],
    moment: datetime,
    project: str | None,
) -> dict[str, int]:
    columns = table.c
    has_ended = columns.ended_at >= moment
    is_completed = sa.and_(has_ended, columns.status == "completed")
    conditions = {
        "started": columns.started_at >= moment,
        "completed": is_completed,
        "merged": columns.merged_at >= moment,
        "failed": sa.and_(has_ended, columns.status == "failed"),
        "cancelled": sa.and_(has_ended, columns.status == "cancelled"),
    }
    if table is tasks:
        conditions["verified"] = sa.and_(is_completed, LOOKED_AT)
    is_recent = sa.or_(
        columns.started_at >= moment, columns.ended_at >= moment, columns.merged_at >= moment
    )
    scope = [outer_id.is_(None), columns.parent_task_id.is_(None), is_recent]
    if project is not None:
        scope.append(columns.project == project)
    counters = [_number_of(condition).label(name) for name, condition in conditions.items()]
    row = connection.execute(sa.select(*counters).where(*scope)).mappings().one()
    numbers = {name: int(number) for name, number in row.items()}
    if table is runs:
        ids = connection.execute(sa.select(columns.id).where(*scope, is_completed)).scalars()
        numbers["verified"] = len(run_rows.find_verified(connection, list(ids)))
    return numbers


def _number_of(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    """Return the expression for the number of rows that meet a condition."""
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)
