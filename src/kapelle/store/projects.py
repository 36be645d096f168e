"""Projects by name: created by their first work, and renamed in everything that belongs to them.

A repository whose work names no project is a project too, with the name of the repository. Such a
project is derived from the work. It is stored when somebody renames, archives or switches to it.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.errors import Conflict, NotFound
from kapelle.domain.text import format_count
from kapelle.domain.views import Project
from kapelle.store import events
from kapelle.store.query import count_rows, has_row
from kapelle.store.repository import name_repositories
from kapelle.store.tables import WORK, Instant, learnings, notes, projects, runs, schedules, tasks

# The same statement works on both databases.
_CREATE_OR_RESTORE = sa.text(
    "INSERT INTO projects (name, directories, created_at) VALUES (:name, '[]', :at) "
    "ON CONFLICT (name) DO UPDATE SET archived_at = NULL WHERE projects.archived_at IS NOT NULL"
).bindparams(sa.bindparam("at", type_=Instant))


def join(connection: sa.Connection, values: dict[str, Any]) -> None:
    """Create the project of new work, or restore it from the archive.

    Work inside a run gets the present project of the run: it may have been renamed since.
    """
    run_id = values.get("run_id") or values.get("parent_id")
    if run_id:
        query = sa.select(runs.c.project).where(runs.c.id == run_id)
        values["project"] = connection.execute(query).scalar()
    if name := values.get("project"):
        connection.execute(_CREATE_OR_RESTORE, {"name": name, "at": datetime.now(UTC)})


@dataclass
class _Tally:
    """Numbers of the work of one project."""

    work: int = 0
    open: int = 0
    # The repository and the first work of a derived project.
    repository: str | None = None
    created_at: datetime | None = None


def list_projects(connection: sa.Connection, name: str | None = None) -> list[Project]:
    """Return all projects by their names, or the one of a name, with the numbers of their work."""
    tallies = _count_work(connection)
    query = sa.select(projects)
    if name:
        query = query.where(projects.c.name == name)
    result = []
    for row in connection.execute(query).mappings():
        tally = tallies.pop(row["name"], _Tally())
        result.append(Project(**row, work=tally.work, open=tally.open))
    for key, tally in tallies.items():
        if tally.repository is None or tally.created_at is None or name not in (None, key):
            continue
        project = Project(
            name=key,
            directories=[tally.repository],
            created_at=tally.created_at,
            archived_at=None,
            work=tally.work,
            open=tally.open,
        )
        result.append(project)
    return sorted(result, key=lambda project: project.name)


def _count_work(connection: sa.Connection) -> dict[str, _Tally]:
    """Return the numbers of work of stored and derived projects."""
    repositories = name_repositories(connection)
    tallies: dict[str, _Tally] = defaultdict(_Tally)
    for table in (tasks, runs):
        columns = table.c
        is_open = sa.case((columns.ended_at.is_(None), 1), else_=0)
        # The repository matters only for work without a project.
        path = sa.case((columns.project.is_(None), columns.repository))
        first = sa.func.min(columns.created_at)
        query = sa.select(columns.project, path, sa.func.count(), sa.func.sum(is_open), first)
        for row in connection.execute(query.group_by(columns.project, path)):
            project, repository, number, open_number, created_at = row
            key = project or repositories.get(repository)
            if key is None:
                continue
            tally = tallies[key]
            tally.work += number
            tally.open += open_number
            if project is None:
                tally.repository = repository
                tally.created_at = min(created_at, tally.created_at or created_at)
    return tallies


def _store(connection: sa.Connection, name: str) -> None:
    """Store a project that was only derived from the work of its repository."""
    join(connection, {"project": name})
    for path, repository_name in name_repositories(connection).items():
        if repository_name == name:
            _store_repository(connection, name, path)


def _store_repository(connection: sa.Connection, name: str, path: str) -> None:
    """Give the work and the learnings of a repository the name of its derived project."""
    for table in (tasks, runs):
        is_derived = table.c.project.is_(None) & (table.c.repository == path)
        connection.execute(table.update().where(is_derived).values(project=name))
    change = learnings.update().where(learnings.c.project == path)
    connection.execute(change.values(project=name))
    if path in load_current(connection):
        return
    query = sa.select(projects.c.directories).where(projects.c.name == name)
    directories = connection.execute(query).scalar_one()
    project_change = projects.update().where(projects.c.name == name)
    connection.execute(project_change.values(directories=sorted({*directories, path})))


def get(connection: sa.Connection, name: str) -> Project:
    """Return a project by its name; raise NotFound."""
    for project in list_projects(connection, name):
        return project
    raise NotFound(f"There is no project {name!r}.", hint="`kapelle project` lists them.")


def create(connection: sa.Connection, name: str) -> Project:
    """Create a project; raise Conflict if the name is in use."""
    if has_row(connection, projects.c.name == name):
        raise Conflict(f"There is a project {name!r} already.", hint="Choose another name.")
    join(connection, {"project": name})
    events.append(connection, "project.created", name=name)
    return get(connection, name)


def rename(connection: sa.Connection, name: str, to: str) -> Project:
    """Rename a project in everything that belongs to it; raise Conflict if the name is in use."""
    get(connection, name)
    _store(connection, name)
    scope = f"project:{name}"
    new_scope = f"project:{to}"
    if list_projects(connection, to) or has_row(connection, notes.c.scope == new_scope):
        raise Conflict(f"There is a project {to!r} already.", hint="Choose another name.")
    for table in (tasks, runs, schedules, learnings):
        is_member = table.c.project == name
        if "spec" in table.c:
            query = sa.select(table.c.id, table.c.spec).where(is_member)
            for id_, spec in connection.execute(query).all():
                if spec.get("project"):
                    change = table.update().where(table.c.id == id_)
                    connection.execute(change.values(spec={**spec, "project": to}))
        connection.execute(table.update().where(is_member).values(project=to))
    connection.execute(notes.update().where(notes.c.scope == scope).values(scope=new_scope))
    connection.execute(projects.update().where(projects.c.name == name).values(name=to))
    events.append(connection, "project.renamed", name=name, to=to)
    return get(connection, to)


def delete(connection: sa.Connection, name: str) -> Project:
    """Delete an empty project; raise Conflict if anything belongs to it."""
    project = get(connection, name)
    is_note = notes.c.scope == f"project:{name}"
    conditions = [(table, table.c.project == name) for table in (tasks, runs, schedules, learnings)]
    conditions.append((notes, is_note & notes.c.value.is_not(None)))
    contents = []
    for table, condition in conditions:
        number = count_rows(connection, condition)
        if number:
            contents.append(format_count(number, table.name.removesuffix("s")))
    if contents:
        raise Conflict(
            f"{name!r} is not empty: it has {', '.join(contents)}.",
            hint=f"`kapelle project archive {name}` archives it with its work.",
        )
    connection.execute(notes.delete().where(is_note))  # the rows of deleted notes
    connection.execute(projects.delete().where(projects.c.name == name))
    events.append(connection, "project.deleted", name=name)
    return project


def archive(connection: sa.Connection, name: str, archived: bool) -> Project:
    """Archive a project without open work, or restore it."""
    project = get(connection, name)
    if project.open and archived:
        raise Conflict(
            f"{project.open} tasks or runs of {name!r} have not ended.",
            hint="Wait for them, or cancel them.",
        )
    _store(connection, name)
    archived_at = None
    kind = "project.restored"
    if archived:
        archived_at = datetime.now(UTC)
        kind = "project.archived"
    change = projects.update().where(projects.c.name == name)
    connection.execute(change.values(archived_at=archived_at))
    events.append(connection, kind, name=name)
    return get(connection, name)


def switch(connection: sa.Connection, name: str | None, directory: str) -> dict[str, str]:
    """Set the current project of a directory, or none; return the current projects."""
    if name is not None:
        join(connection, {"project": name})
    query = sa.select(projects.c.name, projects.c.directories)
    for project, directories in connection.execute(query).all():
        new_directories = {*directories} - {directory}
        if project == name:
            new_directories.add(directory)
        if new_directories != {*directories}:
            change = projects.update().where(projects.c.name == project)
            connection.execute(change.values(directories=sorted(new_directories)))
    return load_current(connection)


def load_current(connection: sa.Connection) -> dict[str, str]:
    """Return the default project of each directory."""
    current: dict[str, str] = {}
    for name, directories in connection.execute(sa.select(projects.c.name, projects.c.directories)):
        current |= dict.fromkeys(directories, name)
    return current


def list_ended_work(connection: sa.Connection, name: str) -> list[str]:
    """Return the ended top-level work of a project that is not archived yet."""
    ids: list[str] = []
    for table, outer_id in WORK:
        query = sa.select(table.c.id).where(table.c.project == name, outer_id.is_(None))
        query = query.where(table.c.archived_at.is_(None), table.c.ended_at.is_not(None))
        ids += connection.execute(query).scalars().all()
    return ids
