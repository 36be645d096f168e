"""Templates by name, and the results of the tasks that used them."""

from datetime import UTC, datetime

import sqlalchemy as sa

from kapelle.domain.errors import Conflict, NotFound
from kapelle.domain.states import TaskStatus
from kapelle.domain.template import Template, TemplateRecord, TemplateSpec
from kapelle.store import events
from kapelle.store.query import group
from kapelle.store.tables import attempts, tasks, templates

_COUNTED = (TaskStatus.COMPLETED, TaskStatus.FAILED)


def list_templates(connection: sa.Connection, name: str | None = None) -> list[Template]:
    """Return all templates, or the one of a name, with their results."""
    query = sa.select(templates).order_by(templates.c.name)
    if name:
        query = query.where(templates.c.name == name)
    rows = connection.execute(query).mappings().all()
    if not rows:
        return []
    records = _load_records(connection, name)
    return [Template(**row, records=records.get(row["name"], [])) for row in rows]


def get(connection: sa.Connection, name: str) -> Template:
    """Return a template by its name; raise NotFound."""
    for template in list_templates(connection, name):
        return template
    raise NotFound(f"There is no template {name!r}.", hint="`kapelle templates` lists them.")


def store(connection: sa.Connection, spec: TemplateSpec, before: str | None = None) -> Template:
    """Store a new template, or replace the one with the name `before`.

    The tasks of a replaced template follow a change of its name.
    """
    now = datetime.now(UTC)
    values = spec.model_dump()
    if spec.name != before and list_templates(connection, spec.name):
        raise Conflict(
            f"There is a template {spec.name!r} already.",
            hint=f"Change it with `kapelle templates edit {spec.name}`, or choose another name.",
        )
    if before is None:
        connection.execute(templates.insert(), {**values, "created_at": now, "changed_at": now})
    else:
        get(connection, before)
        change = templates.update().where(templates.c.name == before)
        connection.execute(change.values(**values, changed_at=now))
        task_change = tasks.update().where(tasks.c.template == before)
        connection.execute(task_change.values(template=spec.name))
    events.append(connection, "template.kept", name=spec.name)
    return get(connection, spec.name)


def delete(connection: sa.Connection, name: str) -> Template:
    """Delete a template; its tasks keep the guidelines that they were submitted with."""
    template = get(connection, name)
    connection.execute(templates.delete().where(templates.c.name == name))
    events.append(connection, "template.deleted", name=name)
    return template


def _load_records(connection: sa.Connection, name: str | None) -> dict[str, list[TemplateRecord]]:
    start = sa.type_coerce(attempts.c.started_at, sa.BigInteger)
    end = sa.type_coerce(attempts.c.ended_at, sa.BigInteger)
    has_template: sa.ColumnElement[bool] = tasks.c.template.is_not(None)
    if name:
        has_template = tasks.c.template == name
    usage = (
        sa.select(
            attempts.c.task_id,
            sa.func.max(attempts.c.number).label("number"),
            sa.func.sum(attempts.c.cost_usd).label("cost_usd"),
            sa.func.sum(attempts.c.turns).label("turns"),
            sa.func.sum(end - start).label("microseconds"),
        )
        .join(tasks, tasks.c.id == attempts.c.task_id)
        .where(tasks.c.status.in_(_COUNTED), has_template)
        .group_by(attempts.c.task_id)
        .subquery()
    )
    is_last = sa.and_(attempts.c.task_id == usage.c.task_id, attempts.c.number == usage.c.number)
    successes = sa.func.sum(sa.case((tasks.c.status == TaskStatus.COMPLETED, 1), else_=0))
    query = (
        sa.select(
            tasks.c.template, attempts.c.agent, attempts.c.model,
            sa.func.count().label("tasks"), successes.label("completed"),
            (successes * 1.0 / sa.func.count()).label("success_rate"),
            sa.func.avg(usage.c.cost_usd).label("cost_usd"),
            sa.func.avg(usage.c.turns).label("turns"),
            (sa.func.avg(usage.c.microseconds) / 1e6).label("duration_s"),
        )
        .join_from(usage, attempts, is_last)
        .join(tasks, tasks.c.id == usage.c.task_id)
        .group_by(tasks.c.template, attempts.c.agent, attempts.c.model)
        .order_by(sa.desc("tasks"), attempts.c.agent, attempts.c.model)
    )  # fmt: skip
    rows = connection.execute(query).mappings()
    return group((row["template"], TemplateRecord.model_validate({**row})) for row in rows)
