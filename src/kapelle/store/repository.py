"""Repositories that have work, and the names by which people tell them apart."""

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
    known = name_repositories(connection)
    ending = "/" + text.strip("/")
    matches = [path for path in known if path.endswith(ending)]
    if len(matches) == 1:
        return matches[0]
    listed = sorted(known[path] for path in matches or known)
    if matches:
        problem = "Several repositories are named"
    else:
        problem = "No work is in a repository named"
    if listed:
        hint = f"Write one of {', '.join(listed[:_MOST_NAMED])}, or its path."
    else:
        hint = None
    raise InvalidInput(f"{problem} {text!r}.", hint=hint)


def match_project(
    connection: sa.Connection, columns: sa.ColumnCollection[str, sa.Column[str]], name: str
) -> sa.ColumnElement[bool]:
    """Return the condition on the work of a project.

    Work without a project of its own belongs to the project of its repository's name.
    """
    of_it = columns.project == name
    paths = [path for path, named in name_repositories(connection).items() if named == name]
    if not paths:
        return of_it
    return sa.or_(of_it, sa.and_(columns.project.is_(None), columns.repository.in_(paths)))
