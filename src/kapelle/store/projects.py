"""Projects by their names: made by their first work, renamed wherever their name stands.

A repository whose work names no project is one as well, by its own name. It is derived from the
work, and stored only when somebody renames, archives or switches to it.
"""

from collections import defaultdict
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

# A statement that both databases know.
_USE = sa.text(
    "INSERT INTO projects (name, directories, created_at) VALUES (:name, '[]', :at) "
    "ON CONFLICT (name) DO UPDATE SET archived_at = NULL WHERE projects.archived_at IS NOT NULL"
).bindparams(sa.bindparam("at", type_=Instant))


def join(connection: sa.Connection, values: dict[str, Any]) -> None:
    """Make the project of new work, or take it out of the archive; what is part of a run is of the
    run's, as that is called by now."""
    if run_id := values.get("run_id") or values.get("parent_id"):
        query = sa.select(runs.c.project).where(runs.c.id == run_id)
        values["project"] = connection.execute(query).scalar()
    if name := values.get("project"):
        connection.execute(_USE, {"name": name, "at": datetime.now(UTC)})


def list_projects(connection: sa.Connection, name: str | None = None) -> list[Project]:
    """Return all projects by their names, or the one of a name, with how much work they have."""
    repositories = name_repositories(connection)
    counts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    derived: dict[str, tuple[str, datetime]] = {}
    for table in (tasks, runs):
        columns = table.c
        going = sa.func.sum(sa.case((columns.ended_at.is_(None), 1), else_=0))
        place = sa.case((columns.project.is_(None), columns.repository))
        first = sa.func.min(columns.created_at)
        query = sa.select(columns.project, place, sa.func.count(), going, first)
        for project, path, number, open_, at in connection.execute(
            query.group_by(columns.project, place)
        ):
            key = project or repositories.get(path)
            if key is None:
                continue
            before = counts[key]
            counts[key] = (before[0] + number, before[1] + open_)
            if project is None:
                derived[key] = (path, min(at, derived.get(key, (path, at))[1]))
    stored = sa.select(projects)
    if name:
        stored = stored.where(projects.c.name == name)
    else:
        stored = stored
    found = [
        Project(**row, work=counts[row["name"]][0], open=counts[row["name"]][1])
        for row in connection.execute(stored).mappings()
    ]
    known = {project.name for project in found}
    for key, (path, at) in derived.items():
        if key not in known and name in (None, key):
            work, open_ = counts[key]
            found.append(
                Project(
                    name=key, directories=[path], created_at=at, archived_at=None, work=work,
                    open=open_,
                )
            )  # fmt: skip
    return sorted(found, key=lambda project: project.name)


def _store(connection: sa.Connection, name: str) -> None:
    """Store a project that was only derived from the work of its repository."""
    join(connection, {"project": name})
    for path in [path for path, known in name_repositories(connection).items() if known == name]:
        for table in (tasks, runs):
            of_it = table.c.project.is_(None) & (table.c.repository == path)
            connection.execute(table.update().where(of_it).values(project=name))
        told = learnings.update().where(learnings.c.project == path)
        connection.execute(told.values(project=name))
        if path not in load_current(connection):
            row = connection.execute(
                sa.select(projects.c.directories).where(projects.c.name == name)
            ).scalar_one()
            changed = projects.update().where(projects.c.name == name)
            connection.execute(changed.values(directories=sorted({*row, path})))


def get(connection: sa.Connection, name: str) -> Project:
    for found in list_projects(connection, name):
        return found
    raise NotFound(f"There is no project {name!r}.", hint="`kapelle project` lists them.")


def create(connection: sa.Connection, name: str) -> Project:
    if has_row(connection, projects.c.name == name):
        raise Conflict(f"There is a project {name!r} already.", hint="Take another name.")
    join(connection, {"project": name})
    events.append(connection, "project.created", name=name)
    return get(connection, name)


def rename(connection: sa.Connection, name: str, to: str) -> Project:
    """Call a project otherwise, in all that belongs to it."""
    get(connection, name)
    _store(connection, name)
    scope = f"project:{name}"
    new_scope = f"project:{to}"
    if list_projects(connection, to) or has_row(connection, notes.c.scope == new_scope):
        raise Conflict(f"There is a project {to!r} already.", hint="Take another name.")
    for table in (tasks, runs, schedules, learnings):
        of_it = table.c.project == name
        if "spec" in table.c:
            for id_, spec in connection.execute(sa.select(table.c.id, table.c.spec).where(of_it)):
                if spec.get("project"):
                    changed = table.update().where(table.c.id == id_)
                    connection.execute(changed.values(spec={**spec, "project": to}))
        connection.execute(table.update().where(of_it).values(project=to))
    connection.execute(notes.update().where(notes.c.scope == scope).values(scope=new_scope))
    connection.execute(projects.update().where(projects.c.name == name).values(name=to))
    events.append(connection, "project.renamed", name=name, to=to)
    return get(connection, to)


def delete(connection: sa.Connection, name: str) -> Project:
    """Delete a project to which nothing belongs."""
    found = get(connection, name)
    scope = notes.c.scope == f"project:{name}"
    belongs = [(table, table.c.project == name) for table in (tasks, runs, schedules, learnings)]
    belongs += [(notes, scope & notes.c.value.is_not(None))]
    counts = [(count_rows(connection, of_it), table.name) for table, of_it in belongs]
    if held := [format_count(number, kind.removesuffix("s")) for number, kind in counts if number]:
        raise Conflict(
            f"{name!r} is not empty: it has {', '.join(held)}.",
            hint=f"`kapelle project archive {name}` puts it away with its work.",
        )
    connection.execute(notes.delete().where(scope))  # what is left of deleted ones
    connection.execute(projects.delete().where(projects.c.name == name))
    events.append(connection, "project.deleted", name=name)
    return found


def archive(connection: sa.Connection, name: str, archived: bool) -> Project:
    """Put a project away in which nothing is open, or take it out again."""
    if (found := get(connection, name)).open and archived:
        raise Conflict(
            f"{found.open} of {name!r} have not ended.", hint="Wait for them, or cancel them."
        )
    _store(connection, name)
    at = datetime.now(UTC) if archived else None
    connection.execute(projects.update().where(projects.c.name == name).values(archived_at=at))
    events.append(connection, "project.archived" if archived else "project.restored", name=name)
    return get(connection, name)


def switch(connection: sa.Connection, name: str | None, directory: str) -> dict[str, str]:
    """Make a project the current one of a directory, or none; all that are current by directory."""
    if name is not None:
        join(connection, {"project": name})
    stored = sa.select(projects.c.name, projects.c.directories)
    for known, directories in connection.execute(stored).all():
        places = {*directories} - {directory} | ({directory} if known == name else set())
        if places != {*directories}:
            changed = projects.update().where(projects.c.name == known)
            connection.execute(changed.values(directories=sorted(places)))
    return load_current(connection)


def load_current(connection: sa.Connection) -> dict[str, str]:
    """The projects that work in a directory belongs to unless it says otherwise."""
    query = sa.select(projects.c.directories, projects.c.name)
    return {place: name for places, name in connection.execute(query) for place in places}


def list_ended_work(connection: sa.Connection, name: str) -> list[str]:
    """What is part of nothing else and not yet archived."""
    found: list[str] = []
    for table, part_of in WORK:
        query = sa.select(table.c.id).where(table.c.project == name, part_of.is_(None))
        query = query.where(table.c.archived_at.is_(None), table.c.ended_at.is_not(None))
        found += connection.execute(query).scalars().all()
    return found
