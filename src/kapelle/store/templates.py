"""Templates by their names, and what came of the tasks that used them."""

from datetime import UTC, datetime

import sqlalchemy as sa

from kapelle.domain.errors import Conflict, NotFound
from kapelle.domain.states import TaskStatus
from kapelle.domain.template import Template, TemplateRecord, TemplateSpec
from kapelle.store import events
from kapelle.store.query import group
from kapelle.store.tables import attempts, tasks, templates

_JUDGED = (TaskStatus.COMPLETED, TaskStatus.FAILED)


def list_templates(connection: sa.Connection, name: str | None = None) -> list[Template]:
    """All of them, or the one of a name, with what came of them."""
    query = sa.select(templates).order_by(templates.c.name)
    if name:
        query = query.where(templates.c.name == name)
    else:
        query = query
    found = connection.execute(query).mappings().all()
    if found:
        known = _records(connection, name)
    else:
        known = {}
    return [Template(**row, records=known.get(row["name"], [])) for row in found]


def get(connection: sa.Connection, name: str) -> Template:
    for found in list_templates(connection, name):
        return found
    raise NotFound(f"There is no template {name!r}.", hint="`kapelle templates` lists them.")


def store(connection: sa.Connection, spec: TemplateSpec, before: str | None = None) -> Template:
    """Keep a new one, or another in place of what had the name before, whose tasks follow it."""
    now = datetime.now(UTC)
    values = spec.model_dump()
    if spec.name != before and list_templates(connection, spec.name):
        raise Conflict(
            f"There is a template {spec.name!r}.",
            hint=f"Change it with `kapelle templates edit {spec.name}`, or take another name.",
        )
    if before is None:
        connection.execute(templates.insert(), {**values, "created_at": now, "changed_at": now})
    else:
        get(connection, before)
        changed = templates.update().where(templates.c.name == before)
        connection.execute(changed.values(**values, changed_at=now))
        used = tasks.update().where(tasks.c.template == before)
        connection.execute(used.values(template=spec.name))
    events.append(connection, "template.kept", name=spec.name)
    return get(connection, spec.name)


def delete(connection: sa.Connection, name: str) -> Template:
    """Delete one; its tasks keep what they were told."""
    known = get(connection, name)
    connection.execute(templates.delete().where(templates.c.name == name))
    events.append(connection, "template.deleted", name=name)
    return known


def _records(connection: sa.Connection, name: str | None) -> dict[str, list[TemplateRecord]]:
    began = sa.type_coerce(attempts.c.started_at, sa.BigInteger)
    ended = sa.type_coerce(attempts.c.ended_at, sa.BigInteger)
    judged = (
        tasks.c.status.in_(_JUDGED),
        tasks.c.template == name if name else tasks.c.template.is_not(None),
    )
    used = (
        sa.select(
            attempts.c.task_id,
            sa.func.max(attempts.c.number).label("number"),
            sa.func.sum(attempts.c.cost_usd).label("cost_usd"),
            sa.func.sum(attempts.c.turns).label("turns"),
            sa.func.sum(ended - began).label("took"),
        )
        .join(tasks, tasks.c.id == attempts.c.task_id)
        .where(*judged)
        .group_by(attempts.c.task_id)
        .subquery()
    )
    last = sa.and_(attempts.c.task_id == used.c.task_id, attempts.c.number == used.c.number)
    completed = sa.func.sum(sa.case((tasks.c.status == TaskStatus.COMPLETED, 1), else_=0))
    query = (
        sa.select(
            tasks.c.template, attempts.c.agent, attempts.c.model,
            sa.func.count().label("tasks"), completed.label("completed"),
            (completed * 1.0 / sa.func.count()).label("success_rate"),
            sa.func.avg(used.c.cost_usd).label("cost_usd"),
            sa.func.avg(used.c.turns).label("turns"),
            (sa.func.avg(used.c.took) / 1e6).label("duration_s"),
        )
        .join_from(used, attempts, last)
        .join(tasks, tasks.c.id == used.c.task_id)
        .group_by(tasks.c.template, attempts.c.agent, attempts.c.model)
        .order_by(sa.desc("tasks"), attempts.c.agent, attempts.c.model)
    )  # fmt: skip
    rows = connection.execute(query).mappings()
    return group((row["template"], TemplateRecord.model_validate({**row})) for row in rows)
