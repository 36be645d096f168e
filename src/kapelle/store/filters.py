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
    wanted: WorkFilter,
    since: datetime | None,
) -> list[Condition]:
    """Return what rows of tasks or of runs must fulfil besides the fields that are columns."""
    table = tasks if kind == "task" else runs
    columns = table.c
    found = [_has_word(table, word) for word in wanted.words]
    if wanted.agent is not None:
        found.append(_agent(table) == wanted.agent)
    if wanted.kind is not None:
        pattern = sa.literal("task") if table is tasks else runs.c.pattern
        found.append(pattern == wanted.kind)
    if wanted.tag is not None and table is runs:
        found.append(sa.false())
    if since is not None:
        names = ("created_at", "started_at", "ended_at", "merged_at")
        found.append(sa.or_(*(columns[name] >= since for name in names)))
    if wanted.pr is not None:
        is_own = sa.and_(deliveries.c.owner == columns.id, deliveries.c.number.is_not(None))
        if wanted.pr != "any":
            is_own = sa.and_(is_own, deliveries.c.state == wanted.pr)
        found.append(sa.exists().where(is_own))
    if wanted.state:
        states = [_state(connection, table, state) for state in wanted.state]
        found.append(sa.or_(sa.false(), *states))
    return found


def _has_word(table: sa.Table, word: str) -> Condition:
    """Whether the title or the id holds a word in any case; SQLite folds only ASCII by itself."""
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
        is_verified = LOOKED_AT if table is tasks else _is_verified_run(connection)
        wanted = is_verified if state == "verified" else ~is_verified
        return sa.and_(is_completed, wanted)
    return columns.status == state


def _is_verified_run(connection: sa.Connection) -> Condition:
    query = sa.select(runs.c.id).where(runs.c.status == "completed")
    completed = list(connection.execute(query).scalars())
    return _is_one_of(runs, sorted(run_rows.find_verified(connection, completed)))


def _is_one_of(table: sa.Table, ids: Sequence[str]) -> Condition:
    # Written into the statement: a database takes only so many parameters.
    among: sa.BindParameter[Any] = sa.bindparam(
        None, list(ids), expanding=True, literal_execute=True, unique=True
    )
    return table.c.id.in_(among)
