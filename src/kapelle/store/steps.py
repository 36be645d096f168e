"""Steps of runs: started, ended, and their results."""

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
    """Store the start of a step."""
    _INSERT.write(
        connection,
        run_id=run_id,
        position=position,
        kind=kind,
        label=label,
        role=role,
        cycle=cycle,
        subject=subject,
        data=data or {},
        started_at=datetime.now(UTC),
    )


def end(
    connection: sa.Connection,
    run_id: str,
    position: str,
    result: Any = None,
    error: dict[str, Any] | None = None,
) -> None:
    """Store the final result or error of a step."""
    values = {"result": result, "error": error, "ended_at": datetime.now(UTC)}
    _UPDATE.write(connection, run=run_id, at=position, **values)


def load_by_position(connection: sa.Connection, run_id: str) -> dict[str, Row]:
    """Return all steps of a run by their positions."""
    query = sa.select(steps).where(steps.c.run_id == run_id)
    return {row["position"]: row for row in connection.execute(query).mappings()}


def list_steps(connection: sa.Connection, run_id: str) -> list[Step]:
    """Return the steps of a run in the order of their starts."""
    query = sa.select(steps).where(steps.c.run_id == run_id)
    query = query.order_by(steps.c.started_at, steps.c.position)
    result = []
    for row in connection.execute(query).mappings():
        error = None
        if row["error"]:
            error = row["error"]["message"]
        result.append(Step.model_validate({**row, "error": error}))
    return result


def update_data(
    connection: sa.Connection, run_id: str, position: str, data: dict[str, Any]
) -> None:
    """Store data of an open step, which a repetition of the step after a crash needs."""
    _UPDATE.write(connection, run=run_id, at=position, data=data)


def is_open(connection: sa.Connection, run_id: str, subject: str) -> bool:
    """Return whether a run still waits for a task or run that one of its steps started."""
    is_waiting = (steps.c.subject == subject, steps.c.ended_at.is_(None))
    return has_row(connection, steps.c.run_id == run_id, *is_waiting)


def expects_json(connection: sa.Connection, run_id: str, subject: str) -> bool:
    """Return whether a step of a run expects an answer in JSON from a task."""
    query = sa.select(steps.c.data).where(steps.c.run_id == run_id, steps.c.subject == subject)
    return any(data.get("expects_json") for data in connection.execute(query).scalars())


def find_unanswered(connection: sa.Connection, run_id: str) -> set[str]:
    """Return the positions of the open questions of a run."""
    query = sa.select(steps.c.position).where(steps.c.run_id == run_id, steps.c.kind == "ask")
    return set(connection.execute(query.where(steps.c.ended_at.is_(None))).scalars())


def load_subject(connection: sa.Connection, run_id: str, position: str) -> str:
    """Return the task or run that a step started."""
    query = sa.select(steps.c.subject)
    query = query.where(steps.c.run_id == run_id, steps.c.position == position)
    work_id: str = connection.execute(query).scalar_one()
    return work_id


def find_last_activity(connection: sa.Connection, run_id: str) -> datetime | None:
    """Return the time of the last start or end of a step of a run."""
    either = sa.func.coalesce(steps.c.ended_at, steps.c.started_at)
    moment = sa.func.max(either, type_=steps.c.started_at.type)
    return connection.execute(sa.select(moment).where(steps.c.run_id == run_id)).scalar()
