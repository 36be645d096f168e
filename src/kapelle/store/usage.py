"""Sums of the usage of attempts, by one or two of their properties."""

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
# The same rule as for a task: a check looked at the work.
_VERIFIED = (attempts.c.status == AttemptStatus.COMPLETED) & sa.exists().where(
    checks.c.attempt_id == attempts.c.id, LOOKS_AT_WORK
)
# "verified" is an outcome of its own, apart from work that is only reported as completed.
_KEYS["outcome"] = sa.case((_VERIFIED, sa.literal_column("'verified'")), else_=attempts.c.status)
_TOKENS = attempts.c.input_tokens + attempts.c.output_tokens
_HAS_UNKNOWN_COST = (_TOKENS > 0) & attempts.c.cost_usd.is_(None)
# An agent that reports turns but no tokens does not report its usage.
_IS_UNREPORTED = (
    (attempts.c.input_tokens.is_(None) | ((_TOKENS == 0) & (attempts.c.turns > 0)))
    & attempts.c.exit_kind.is_distinct_from("not_started")
    & attempts.c.ended_at.is_not(None)
)
_COUNTERS = ("input_tokens", "output_tokens", "cached_tokens", "turns")


def sum_by_key(
    connection: sa.Connection, filter_: UsageFilter, since: datetime | None, until: datetime | None
) -> list[sa.RowMapping]:
    """Return one row for each key or pair of keys; a day is a number of days since 1970 in UTC.

    Attempts that started from `since` on and before `until` count. cost_usd is the sum of the known
    costs, NULL if none is known.
    """
    key = _key(connection, filter_.by)
    # By position: PostgreSQL treats an expression with parameters as a different one each time.
    group_by: list[sa.ColumnElement[Any]] = [sa.literal_column("1")]
    across: sa.ColumnElement[Any] = sa.null()
    if filter_.across:
        across = _key(connection, filter_.across)
        group_by.append(sa.literal_column("2"))
    title: sa.ColumnElement[Any] = sa.null()
    if "task" in (filter_.by, filter_.across):
        title = sa.func.min(tasks.c.title)
    query = (
        sa.select(
            key.label("key"),
            across.label("across"),
            title.label("title"),
            sa.func.count().label("attempts"),
            _number_of(_VERIFIED).label("verified"),
            *(sa.func.coalesce(sa.func.sum(attempts.c[name]), 0).label(name) for name in _COUNTERS),
            sa.func.sum(attempts.c.cost_usd).label("cost_usd"),
            _number_of(_HAS_UNKNOWN_COST).label("unknown_cost"),
            _number_of(_IS_UNREPORTED).label("unreported"),
        )
        .join_from(attempts, tasks, attempts.c.task_id == tasks.c.id)
        .where(*_conditions(connection, filter_))
        .group_by(*group_by)
    )
    if since is not None:
        query = query.where(attempts.c.started_at >= since)
    if until is not None:
        query = query.where(attempts.c.started_at < until)
    return list(connection.execute(query).mappings())


def _key(connection: sa.Connection, by: By) -> sa.ColumnElement[Any]:
    """Return the expression of a key; work without a project has the name of its repository."""
    if by != "project":
        return _KEYS[by]
    paths = name_repositories(connection)
    if not paths:
        return _KEYS[by]
    return sa.func.coalesce(_KEYS[by], sa.case(paths, value=tasks.c.repository))


def _number_of(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)


def _conditions(
    connection: sa.Connection, filter_: UsageFilter
) -> Iterator[sa.ColumnElement[bool]]:
    if filter_.agent:
        yield _KEYS["agent"] == filter_.agent
    if filter_.model:
        yield _KEYS["model"] == filter_.model
    if filter_.project:
        yield match_project(connection, tasks.c, filter_.project)
    if filter_.repository:
        yield tasks.c.repository == resolve_path(connection, filter_.repository)
    if filter_.task:
        yield attempts.c.task_id == task_rows.resolve(connection, filter_.task)
    if filter_.run:
        run_id = runs.resolve(connection, filter_.run)
        yield tasks.c.run_id.in_(runs.list_family(connection, run_id))
