"""Sums over all work that is part of nothing else: what started and ended since a moment."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.store import runs as run_rows
from kapelle.store.filters import LOOKED_AT
from kapelle.store.tables import WORK, runs, tasks


def count_since(connection: sa.Connection, moment: datetime, project: str | None) -> dict[str, int]:
    """Return how many tasks and runs started, completed, failed … from a moment on."""
    found = dict.fromkeys(("started", "completed", "verified", "merged", "failed", "cancelled"), 0)
    for table, around in WORK:
        for name, number in _row(connection, table, around, moment, project).items():
            found[name] += number
    return found


def _row(
    connection: sa.Connection,
    table: sa.Table,
    around: sa.Column[Any],
    moment: datetime,
    project: str | None,
) -> dict[str, int]:
    columns = table.c
    has_ended = columns.ended_at >= moment
    completed = sa.and_(has_ended, columns.status == "completed")
    kinds = {
        "started": columns.started_at >= moment,
        "completed": completed,
        "merged": columns.merged_at >= moment,
        "failed": sa.and_(has_ended, columns.status == "failed"),
        "cancelled": sa.and_(has_ended, columns.status == "cancelled"),
    }
    if table is tasks:
        kinds["verified"] = sa.and_(completed, LOOKED_AT)
    which: list[sa.ColumnElement[bool]] = [around.is_(None), columns.parent_task_id.is_(None)]
    # Whatever is counted was touched since then.
    names = ("started_at", "ended_at", "merged_at")
    which.append(sa.or_(*(columns[name] >= moment for name in names)))
    if project is not None:
        which.append(columns.project == project)
    numbers = (_number_of(condition).label(name) for name, condition in kinds.items())
    row = connection.execute(sa.select(*numbers).where(*which)).mappings().one()
    found = {name: int(number) for name, number in row.items()}
    if table is runs:
        ids = connection.execute(sa.select(columns.id).where(*which, completed)).scalars()
        found["verified"] = len(run_rows.find_verified(connection, list(ids)))
    return found


def _number_of(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)
