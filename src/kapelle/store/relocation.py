"""Relocation: replace the path of a moved repository in all rows."""

import os
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from kapelle.domain.errors import Conflict
from kapelle.domain.text import relocate_path
from kapelle.store import events
from kapelle.store.query import count_rows
from kapelle.store.tables import (
    WORK,
    attempts,
    learnings,
    locks,
    projects,
    runs,
    schedules,
    tasks,
    templates,
)

# Columns that hold the path of a repository or of a directory in one.
_PATHS = {
    tasks: ("directory", "repository", "workspace_path"),
    runs: ("directory", "repository", "workspace_path"),
    schedules: ("directory",),
    templates: ("directory",),
    # Learnings of work without a project belong to the path of its repository.
    learnings: ("project",),
}
_MOST_COMMITS = 20


def load_base_commits(connection: sa.Connection) -> dict[str, list[str]]:
    """Return the newest base commits of the work in each repository."""
    commits_by_path: dict[str, list[str]] = {}
    for table, _ in WORK:
        newest = sa.func.max(table.c.id)
        query = sa.select(table.c.repository, table.c.workspace_base_commit).where(
            table.c.repository.is_not(None), table.c.workspace_base_commit.is_not(None)
        )
        query = query.group_by(table.c.repository, table.c.workspace_base_commit)
        for repository, commit in connection.execute(query.order_by(newest.desc())):
            commits = commits_by_path.setdefault(repository, [])
            if len(commits) < _MOST_COMMITS:
                commits.append(commit)
    return commits_by_path


def has_work(connection: sa.Connection, repository: str) -> bool:
    """Return whether any task or run belongs to a repository."""
    return any(count_rows(connection, table.c.repository == repository) for table, _ in WORK)


def list_repositories_inside(connection: sa.Connection, path: str) -> list[str]:
    """Return the repositories of stored work that are at a path or below it."""
    paths = set[str]()
    for table, _ in WORK:
        query = sa.select(table.c.repository).distinct()
        rows = connection.execute(query.where(_is_inside(table.c.repository, path)))
        paths.update(rows.scalars())
    return sorted(paths)


def relocate(connection: sa.Connection, old: str, new: str) -> dict[str, int]:
    """Replace the path of a repository in all rows; return the changed rows by table.

    Raises Conflict while work of the repository is running.
    """
    require_idle(connection, old)
    counts: dict[str, int] = {}
    for table, columns in _PATHS.items():
        counts[table.name] = _count_inside(connection, table, columns, old)
        if "spec" in table.c:
            _relocate_specs(connection, table, old, new)
        if "repository" in table.c:
            _resolve_directories(connection, table, old)
        for name in columns:
            column = table.c[name]
            values = {name: sa.literal(new).concat(sa.func.substr(column, len(old) + 1))}
            connection.execute(table.update().where(_is_inside(column, old)).values(values))
    counts[projects.name] = _relocate_projects(connection, old, new)
    counts[locks.name] = _relocate_locks(connection, old, new)
    if any(counts.values()):
        events.append(connection, "repository.relocated", old=old, new=new)
    return counts


def require_idle(connection: sa.Connection, repository: str) -> None:
    """Raise Conflict while work of a repository is running."""
    if active := list(_running(connection, repository)):
        raise Conflict(
            f"Work in {repository} is still running: {', '.join(active)}.",
            hint=f"Wait for it, or end it: kapelle cancel {' '.join(active)}",
        )


def _is_inside(column: sa.ColumnElement[str], path: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column holds a path or one below it."""
    # Not LIKE: SQLite's ignores case, and a path may contain wildcards.
    prefix = f"{path}/"
    return sa.or_(column == path, sa.func.substr(column, 1, len(prefix)) == prefix)


def _count_inside(
    connection: sa.Connection, table: sa.Table, columns: tuple[str, ...], path: str
) -> int:
    return count_rows(connection, sa.or_(*(_is_inside(table.c[name], path) for name in columns)))


def _running(connection: sa.Connection, path: str) -> Iterator[str]:
    """Yield the tasks with an attempt under way and the runs under way in a repository."""
    query = sa.select(tasks.c.id).join(attempts, attempts.c.task_id == tasks.c.id)
    query = query.where(attempts.c.ended_at.is_(None), _is_inside(tasks.c.directory, path))
    yield from connection.execute(query.order_by(tasks.c.id)).scalars()
    query = sa.select(runs.c.id).where(runs.c.status == "running")
    query = query.where(_is_inside(runs.c.directory, path))
    yield from connection.execute(query.order_by(runs.c.id)).scalars()


def _resolve_directories(connection: sa.Connection, table: sa.Table, old: str) -> None:
    """Replace directories that were reached through a symbolic link by their real paths."""
    directory = table.c.directory
    query = sa.select(directory).distinct().where(_is_inside(table.c.repository, old))
    query = query.where(sa.not_(_is_inside(directory, old)))
    for path in connection.execute(query).scalars().all():
        for column in (directory, table.c.workspace_path):
            change = table.update().where(column == path)
            connection.execute(change.values({column.name: os.path.realpath(path)}))


def _relocate_specs(connection: sa.Connection, table: sa.Table, old: str, new: str) -> None:
    """Replace the path in every `directory` of the specifications of runs or schedules."""
    # A batch elsewhere may have items in this repository.
    for id_, spec in connection.execute(sa.select(table.c.id, table.c.spec)).all():
        new_spec = _relocate_spec(spec, old, new)
        if new_spec != spec:
            connection.execute(table.update().where(table.c.id == id_).values(spec=new_spec))


def _relocate_spec(value: Any, old: str, new: str) -> Any:
    if isinstance(value, list):
        return [_relocate_spec(item, old, new) for item in value]
    if not isinstance(value, dict):
        return value
    spec = {key: _relocate_spec(item, old, new) for key, item in value.items()}
    directory = spec.get("directory")
    if isinstance(directory, str):
        spec["directory"] = relocate_path(directory, old, new)
    return spec


def _relocate_projects(connection: sa.Connection, old: str, new: str) -> int:
    """Replace the path in the directories of projects; the project of the new path stays."""
    rows = connection.execute(sa.select(projects.c.name, projects.c.directories)).all()
    occupied: set[str] = set()
    for _, directories in rows:
        occupied.update(directories)
    changes = 0
    for name, directories in rows:
        new_directories = set()
        for path in directories:
            target = relocate_path(path, old, new)
            if target == path or target not in occupied:
                new_directories.add(target)
        if new_directories != set(directories):
            changes += 1
            change = projects.update().where(projects.c.name == name)
            connection.execute(change.values(directories=sorted(new_directories)))
    return changes


def _relocate_locks(connection: sa.Connection, old: str, new: str) -> int:
    rows = connection.execute(sa.select(locks).where(_is_inside(locks.c.checkout, old))).all()
    for row in rows:
        target = relocate_path(row.checkout, old, new)
        key = (locks.c.path == row.path, locks.c.owner == row.owner)
        # A lock that exists at the new path would have the same key.
        connection.execute(locks.delete().where(locks.c.checkout == target, *key))
        change = locks.update().where(locks.c.checkout == row.checkout, *key)
        connection.execute(change.values(checkout=target))
    return len(rows)
