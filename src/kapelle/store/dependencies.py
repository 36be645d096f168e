"""Queries about which task waits for which."""

from collections import defaultdict
from collections.abc import Sequence

import sqlalchemy as sa

from kapelle.domain.errors import InvalidInput
from kapelle.domain.states import FINAL, TaskStatus
from kapelle.store.tables import dependencies, tasks


def add(connection: sa.Connection, task_id: str, depends_on: Sequence[str]) -> None:
    """Record what a new task depends on; nothing can depend on it yet, so there is no circle."""
    rows = [{"task_id": task_id, "depends_on": other} for other in dict.fromkeys(depends_on)]
    if rows:
        connection.execute(dependencies.insert(), rows)


def replace(connection: sa.Connection, task_id: str, depends_on: Sequence[str]) -> None:
    """Change what a task depends on; a circle is refused and named."""
    for other in depends_on:
        path = _path(connection, other, task_id)
        if path is not None:
            circle = " → ".join([task_id, *path])
            raise InvalidInput(f"These dependencies would go in a circle: {circle}.")
    connection.execute(dependencies.delete().where(dependencies.c.task_id == task_id))
    add(connection, task_id, depends_on)


def of_tasks(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    query = (
        sa.select(dependencies.c.task_id, dependencies.c.depends_on)
        .where(dependencies.c.task_id.in_(ids))
        .order_by(dependencies.c.depends_on)
    )
    found: dict[str, list[str]] = defaultdict(list)
    for task_id, other in connection.execute(query):
        found[task_id].append(other)
    return found


def statuses(connection: sa.Connection, task_id: str) -> dict[str, TaskStatus]:
    """The tasks that this one depends on, with their present statuses."""
    query = (
        sa.select(tasks.c.id, tasks.c.status)
        .join(dependencies, dependencies.c.depends_on == tasks.c.id)
        .where(dependencies.c.task_id == task_id)
        .order_by(tasks.c.id)
    )
    return {other: TaskStatus(status) for other, status in connection.execute(query)}


def blocked_dependents(connection: sa.Connection, task_id: str) -> list[str]:
    query = (
        sa.select(dependencies.c.task_id)
        .join(tasks, tasks.c.id == dependencies.c.task_id)
        .where(dependencies.c.depends_on == task_id, tasks.c.status == TaskStatus.BLOCKED)
        .order_by(dependencies.c.task_id)
    )
    return list(connection.execute(query).scalars())


def releasable(connection: sa.Connection) -> list[str]:
    """Blocked tasks without any open dependency: a crash or an old version left them behind."""
    other = tasks.alias()
    still_open = (
        sa.select(sa.literal(1))
        .select_from(dependencies.join(other, other.c.id == dependencies.c.depends_on))
        .where(dependencies.c.task_id == tasks.c.id, other.c.status.not_in(FINAL))
    )
    query = sa.select(tasks.c.id).where(tasks.c.status == TaskStatus.BLOCKED, ~still_open.exists())
    return list(connection.execute(query).scalars())


def _path(connection: sa.Connection, start: str, goal: str) -> list[str] | None:
    """A chain of dependencies from start to goal, both included."""
    came_from: dict[str, str | None] = {start: None}
    frontier = [start]
    while frontier:
        if goal in came_from:
            chain: list[str] = []
            step: str | None = goal
            while step is not None:
                chain.append(step)
                step = came_from[step]
            return chain[::-1]
        found = of_tasks(connection, frontier)
        frontier = []
        for origin, others in found.items():
            for other in others:
                if other not in came_from:
                    came_from[other] = origin
                    frontier.append(other)
    return None
