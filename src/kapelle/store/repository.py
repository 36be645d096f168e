"""Repositories that have work, and their unique names."""

import sqlalchemy as sa

from kapelle.domain.errors import InvalidInput
from kapelle.domain.text import shorten_paths
from kapelle.store.tables import WORK

_MOST_NAMED = 10


def name_repositories(connection: sa.Connection) -> dict[str, str]:
    """Return a unique name for the path of every repository that has work."""
    paths: set[str] = set()
    for table, _ in WORK:
        query = sa.select(table.c.repository).distinct().where(table.c.repository.is_not(None))
        paths |= set(connection.execute(query).scalars())
    return shorten_paths(paths)


def resolve_path(connection: sa.Connection, text: str) -> str:
    """Return the path of a repository that has work, by its path or by the end of its path."""
    if text.startswith("/"):
        return text
    names = name_repositories(connection)
    ending = "/" + text.strip("/")
    matches = [path for path in names if path.endswith(ending)]
    if len(matches) == 1:
        return matches[0]
    problem = "There is no work in a repository named"
    if matches:
        problem = "Several repositories are named"
    candidates = sorted(names[path] for path in matches or names)
    hint = None
    if candidates:
        hint = f"Write one of {', '.join(candidates[:_MOST_NAMED])}, or its path."
    raise InvalidInput(f"{problem} {text!r}.", hint=hint)


def match_project(
    connection: sa.Connection, columns: sa.ColumnCollection[str, sa.Column[str]], name: str
) -> sa.ColumnElement[bool]:
    """Return the condition on the work of a project.

    Work without a project of its own belongs to the project of its repository's name.
    """
    is_member = columns.project == name
    names = name_repositories(connection)
    paths = [path for path in names if names[path] == name]
    if not paths:
        return is_member
    return sa.or_(is_member, sa.and_(columns.project.is_(None), columns.repository.in_(paths)))
