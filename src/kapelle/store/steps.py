"""Queries about the steps of runs: what was begun, and what came of it."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.run import Step
from kapelle.store.query import Row as Row
from kapelle.store.query import has_row
from kapelle.store.statements import Statement
from kapelle.store.tables import steps

_INSERT = Statement(steps.insert())
_UPDATE = Statement(
    steps.update()
    .where(steps.c.run_id == sa.bindparam("run"))
    .where(steps.c.position == sa.bindparam("at"))
)


def begin(
    connection: sa.Connection,
    run_id: str,
    position: str,
    kind: str,
    label: str,
    *,
    role: str | None = None,
    cycle: int | None = None,
    subject: str | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    what = {"run_id": run_id, "position": position, "kind": kind, "label": label}
    part = {"role": role, "cycle": cycle}
    about = {"subject": subject, "data": data or {}, "started_at": datetime.now(UTC)}
    _INSERT.write(connection, **what, **part, **about)


def end(
    connection: sa.Connection,
    run_id: str,
    position: str,
    result: Any = None,
    error: dict[str, Any] | None = None,
) -> None:
    """Record what came of a step, once and for ever."""
    values = {"result": result, "error": error, "ended_at": datetime.now(UTC)}
    _UPDATE.write(connection, run=run_id, at=position, **values)


def load_by_position(connection: sa.Connection, run_id: str) -> dict[str, Row]:
    """All steps of a run by position."""
    query = sa.select(steps).where(steps.c.run_id == run_id)
    return {row["position"]: row for row in connection.execute(query).mappings()}


def list_steps(connection: sa.Connection, run_id: str) -> list[Step]:
    """The steps in the order in which they were begun."""
    query = sa.select(steps).where(steps.c.run_id == run_id)
    query = query.order_by(steps.c.started_at, steps.c.position)
    return [
        Step.model_validate({**row, "error": row["error"] and row["error"]["message"]})
        for row in connection.execute(query).mappings()
    ]


def update_data(
    connection: sa.Connection, run_id: str, position: str, data: dict[str, Any]
) -> None:
    """Keep what a step that has not ended needs to know if it is made again."""
    _UPDATE.write(connection, run=run_id, at=position, data=data)


def is_open(connection: sa.Connection, run_id: str, subject: str) -> bool:
    """Whether a run still waits for what one of its steps started."""
    waits = (steps.c.subject == subject, steps.c.ended_at.is_(None))
    return has_row(connection, steps.c.run_id == run_id, *waits)


def expects_json(connection: sa.Connection, run_id: str, subject: str) -> bool:
    """Tell whether a step of a run started this task for an answer in JSON."""
    query = sa.select(steps.c.data).where(steps.c.run_id == run_id, steps.c.subject == subject)
    return any(data.get("expects_json") for data in connection.execute(query).scalars())


def find_unanswered(connection: sa.Connection, run_id: str) -> set[str]:
    """Where a run has asked something that nobody has answered."""
    query = sa.select(steps.c.position).where(steps.c.run_id == run_id, steps.c.kind == "ask")
    return set(connection.execute(query.where(steps.c.ended_at.is_(None))).scalars())


def load_subject(connection: sa.Connection, run_id: str, position: str) -> str:
    """The task or run that a step started."""
    query = sa.select(steps.c.subject)
    query = query.where(steps.c.run_id == run_id, steps.c.position == position)
    found: str = connection.execute(query).scalar_one()
    return found


def find_last_activity(connection: sa.Connection, run_id: str) -> datetime | None:
    """When a run last began or ended a step."""
    either = sa.func.coalesce(steps.c.ended_at, steps.c.started_at)
    moment = sa.func.max(either, type_=steps.c.started_at.type)
    return connection.execute(sa.select(moment).where(steps.c.run_id == run_id)).scalar()
