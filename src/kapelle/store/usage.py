"""What attempts used, added up by one or two of their properties."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.states import AttemptStatus
from kapelle.domain.usage import By, UsageFilter
from kapelle.store import runs
from kapelle.store import tasks as task_rows
from kapelle.store.attempts import LOOKS_AT_WORK
from kapelle.store.repository import match_project, name_repositories, resolve_path
from kapelle.store.tables import attempts, checks, tasks

_DAY = sa.literal(86_400_000_000, sa.BigInteger)
_KEYS: dict[By, sa.ColumnElement[Any]] = {
    "agent": attempts.c.agent,
    "model": attempts.c.model,
    "project": tasks.c.project,
    "task": attempts.c.task_id,
    "run": tasks.c.run_id,
    "template": tasks.c.template,
    "day": sa.type_coerce(attempts.c.started_at, sa.BigInteger) // _DAY,
}
# As a task is: a check looked at the work.
_VERIFIED = (attempts.c.status == AttemptStatus.COMPLETED) & sa.exists().where(
    checks.c.attempt_id == attempts.c.id, LOOKS_AT_WORK
)
# What is verified is told from what is only said to be done.
_KEYS["outcome"] = sa.case((_VERIFIED, sa.literal_column("'verified'")), else_=attempts.c.status)
_COUNTERS = ("input_tokens", "output_tokens", "cached_tokens", "turns")


def sum_by_key(
    connection: sa.Connection, wanted: UsageFilter, since: datetime | None, until: datetime | None
) -> list[sa.RowMapping]:
    """One row for each key, or pair of keys; that of a day is the number of days since 1970 in UTC.

    What started from since on and before until counts. cost_usd is the sum of the known costs, NULL
    where none is known.
    """
    key = _key(connection, wanted.by)
    if wanted.across:
        across = _key(connection, wanted.across)
    else:
        across = sa.null()
    used = attempts.c.input_tokens + attempts.c.output_tokens
    # Who tells of answers and of no token at all does not count them.
    untold = attempts.c.input_tokens.is_(None) | ((used == 0) & (attempts.c.turns > 0))
    silent = untold & attempts.c.exit_kind.is_distinct_from("not_started")
    query = (
        sa.select(
            key.label("key"),
            across.label("across"),
            (
                sa.func.min(tasks.c.title) if "task" in (wanted.by, wanted.across) else sa.null()
            ).label("title"),
            sa.func.count().label("attempts"),
            _number_of(_VERIFIED).label("verified"),
            *(sa.func.coalesce(sa.func.sum(attempts.c[name]), 0).label(name) for name in _COUNTERS),
            sa.func.sum(attempts.c.cost_usd).label("cost_usd"),
            _number_of((used > 0) & attempts.c.cost_usd.is_(None)).label("unknown_cost"),
            _number_of(silent & attempts.c.ended_at.is_not(None)).label("unreported"),
        )
        .join_from(attempts, tasks, attempts.c.task_id == tasks.c.id)
        .where(*_conditions(connection, wanted))
        # By their places: PostgreSQL takes an expression with parameters for another one each time.
        .group_by(*(sa.literal_column(place) for place in ("1", "2")[: 1 + bool(wanted.across)]))
    )
    if since is not None:
        query = query.where(attempts.c.started_at >= since)
    if until is not None:
        query = query.where(attempts.c.started_at < until)
    return list(connection.execute(query).mappings())


def _key(connection: sa.Connection, by: By) -> sa.ColumnElement[Any]:
    """Return what rows are grouped by; work without a project belongs to its repository's."""
    if by == "project":
        paths = name_repositories(connection)
    else:
        paths = {}
    if not paths:
        return _KEYS[by]
    return sa.func.coalesce(_KEYS[by], sa.case(paths, value=tasks.c.repository))


def _number_of(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)


def _conditions(connection: sa.Connection, wanted: UsageFilter) -> Iterator[sa.ColumnElement[bool]]:
    names: tuple[By, ...] = ("agent", "model")
    yield from (_KEYS[name] == given for name in names if (given := getattr(wanted, name)))
    if wanted.project:
        yield match_project(connection, tasks.c, wanted.project)
    if wanted.repository:
        yield tasks.c.repository == resolve_path(connection, wanted.repository)
    if wanted.task:
        yield attempts.c.task_id == task_rows.resolve(connection, wanted.task)
    if wanted.run:
        run_id = runs.resolve(connection, wanted.run)
        yield tasks.c.run_id.in_(runs.list_family(connection, run_id))
