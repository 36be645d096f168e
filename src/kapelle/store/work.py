"""Queries over tasks and runs together: archiving, reports, and environments in use."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from kapelle.domain.ids import strip_kind
from kapelle.store.query import select_in_parts
from kapelle.store.repository import match_project, resolve_path
from kapelle.store.tables import WORK, deliveries


def load_archive_times(connection: sa.Connection, ids: Sequence[str]) -> dict[str, datetime | None]:
    """Return the archiving times of the given tasks and runs that are stored."""
    times: dict[str, datetime | None] = {}
    for table, _ in WORK:
        query = sa.select(table.c.id, table.c.archived_at)
        for id_, archived_at in select_in_parts(connection, query, table.c.id, ids):
            times[id_] = archived_at
    return times


def list_shells_in_use(connection: sa.Connection, digests: Sequence[str]) -> set[str]:
    """Return the digests of environments that belong to work that is not archived."""
    queries = [
        sa.select(table.c.shell).where(table.c.shell.in_(digests), table.c.archived_at.is_(None))
        for table, _ in WORK
    ]
    return set(connection.execute(sa.union(*queries)).scalars())


def list_archivable(
    connection: sa.Connection,
    merged_before: datetime | None,
    cancelled_before: datetime | None,
    failed_before: datetime | None,
    limit: int,
) -> list[str]:
    """Return runs and tasks that ended long enough ago to be archived, at most `limit` of each.

    Each way to end has its own time; None excludes it. Parts of other work are left out.
    """
    ids: list[str] = []
    for table, outer_id in reversed(WORK):
        columns = table.c
        is_failed = sa.and_(columns.status == "failed", columns.merged_at.is_(None))
        conditions: list[sa.ColumnElement[bool]] = [sa.false()]
        for moment, condition in (
            (merged_before, columns.merged_at.is_not(None)),
            (cancelled_before, columns.status == "cancelled"),
            (failed_before, is_failed),
        ):
            if moment is not None:
                conditions.append(sa.and_(condition, columns.ended_at < moment))
        query = sa.select(columns.id).where(columns.archived_at.is_(None), outer_id.is_(None))
        query = query.where(sa.or_(*conditions)).order_by(columns.ended_at).limit(limit)
        ids += connection.execute(query).scalars()
    return ids


def list_touched(
    connection: sa.Connection,
    since: datetime,
    until: datetime,
    project: str | None,
    repository: str | None = None,
) -> list[str]:
    """Return top-level tasks and runs that were started, open or merged in a time span.

    Open and undeliverable work comes first, then the newest.
    """
    matches: list[tuple[bool, str]] = []
    for table, outer_id in WORK:
        columns = table.c
        is_active = sa.or_(columns.ended_at.is_(None), columns.ended_at >= since)
        has_failed_delivery = sa.exists().where(
            deliveries.c.owner == columns.id, deliveries.c.status == "failed"
        )
        is_urgent = sa.or_(columns.ended_at.is_(None), has_failed_delivery)
        query = sa.select(is_urgent, columns.id).where(columns.created_at < until)
        query = query.where(outer_id.is_(None), columns.parent_task_id.is_(None))
        query = query.where(sa.or_(is_active, columns.merged_at >= since))
        if project is not None:
            query = query.where(match_project(connection, columns, project))
        if repository is not None:
            query = query.where(columns.repository == resolve_path(connection, repository))
        matches += [(bool(urgent), id_) for urgent, id_ in connection.execute(query)]
    matches.sort(key=lambda match: (match[0], strip_kind(match[1])), reverse=True)
    return [id_ for _, id_ in matches]
