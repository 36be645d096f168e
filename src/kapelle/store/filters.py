"""The filters of the list of work, as conditions on tasks and on runs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from kapelle.domain.run import WorkFilter
from kapelle.store import needs
from kapelle.store import runs as run_rows
from kapelle.store.attempts import LOOKS_AT_WORK
from kapelle.store.tables import attempts, checks, deliveries, runs, tasks

Condition = sa.ColumnElement[bool]

_last = sa.select(sa.func.max(attempts.c.number)).where(attempts.c.task_id == tasks.c.id)
_of_last = sa.and_(
    attempts.c.task_id == tasks.c.id,
    attempts.c.number == _last.correlate(tasks).scalar_subquery(),
)
LOOKED_AT = sa.exists().where(checks.c.attempt_id == attempts.c.id, LOOKS_AT_WORK, _of_last)
_LOST = sa.exists().where(attempts.c.status == "lost", _of_last)


def build_conditions(
    connection: sa.Connection,
    kind: Literal["task", "run"],
    filter_: WorkFilter,
    since: datetime | None,
) -> list[Condition]:
    """Return the conditions of a filter whose fields are not columns of tasks or runs."""
    if kind == "task":
        table = tasks
    else:
        table = runs
    columns = table.c
    conditions = [_has_word(table, word) for word in filter_.words]
    if filter_.agent is not None:
        conditions.append(_agent(table) == filter_.agent)
    if filter_.kind is not None:
        if table is runs:
            conditions.append(runs.c.pattern == filter_.kind)
        elif filter_.kind != "task":
            conditions.append(sa.false())
    if filter_.tag is not None and table is runs:
        conditions.append(sa.false())
    if since is not None:
        names = ("created_at", "started_at", "ended_at", "merged_at")
        conditions.append(sa.or_(*(columns[name] >= since for name in names)))
    if filter_.pr is not None:
        is_own = sa.and_(deliveries.c.owner == columns.id, deliveries.c.number.is_not(None))
        if filter_.pr != "any":
            is_own = sa.and_(is_own, deliveries.c.state == filter_.pr)
        conditions.append(sa.exists().where(is_own))
    if filter_.state:
        states = [_state(connection, table, state) for state in filter_.state]
        conditions.append(sa.or_(sa.false(), *states))
    return conditions


def _has_word(table: sa.Table, word: str) -> Condition:
    """Return the condition that the title or the id contains a word, in upper or lower case.

    The spellings help SQLite, which ignores the case of ASCII letters only.
    """
    spellings = {word, word.lower(), word.upper(), word.capitalize()}
    in_title = [table.c.title.icontains(one, autoescape=True) for one in sorted(spellings)]
    return sa.or_(*in_title, table.c.id.contains(word.lower(), autoescape=True))


def _agent(table: sa.Table) -> sa.ColumnElement[Any]:
    if table is tasks:
        return tasks.c.agent
    agent: sa.ColumnElement[Any] = sa.type_coerce(runs.c.spec, sa.JSON)["agent"].as_string()
    return agent


def _state(connection: sa.Connection, table: sa.Table, state: str) -> Condition:
    columns = table.c
    is_completed = columns.status == "completed"
    if state == "needs_you":
        return _is_one_of(table, needs.list_ids(connection))
    if state == "merged":
        return columns.merged_at.is_not(None)
    if state == "rate_limited":
        return sa.and_(columns.status == "waiting", columns.waiting_for == "rate_limit")
    if state == "lost":
        if table is tasks:
            return sa.and_(columns.status == "failed", _LOST)
        return sa.false()
    if state in {"verified", "unverified"}:
        is_verified: Condition = LOOKED_AT
        if table is runs:
            is_verified = _is_verified_run(connection)
        if state == "unverified":
            is_verified = ~is_verified
        return sa.and_(is_completed, is_verified)
    return columns.status == state


def _is_verified_run(connection: sa.Connection) -> Condition:
    query = sa.select(runs.c.id).where(runs.c.status == "completed")
    ids = list(connection.execute(query).scalars())
    return _is_one_of(runs, sorted(run_rows.find_verified(connection, ids)))


def _is_one_of(table: sa.Table, ids: Sequence[str]) -> Condition:
    # Literals instead of parameters, whose number databases limit.
    among: sa.BindParameter[Any] = sa.bindparam(
        None, list(ids), expanding=True, literal_execute=True, unique=True
    )
    return table.c.id.in_(among)
