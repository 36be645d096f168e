"""Rows of tasks, runs, schedules and learnings: by id, by idempotency key, and in pages."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import sqlalchemy as sa

from kapelle.domain.errors import NotFound
from kapelle.domain.ids import IdKind, is_id
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.task import Workspace, WorkspaceView
from kapelle.store.ids import hint_list_command, resolve_id
from kapelle.store.query import Row, select_in_parts
from kapelle.store.repository import match_project, resolve_path
from kapelle.store.statements import Statement
from kapelle.store.tables import runs, tasks

# A page ends early when its texts have this many characters together.
_MOST_CHARACTERS = 4_000_000
_NO_CHARACTERS = sa.literal(0)


class Rows:
    """Rows of one table by their ids."""

    def __init__(self, table: sa.Table, kind: IdKind) -> None:
        self._table = table
        self._kind = kind
        by_id = table.c.id == sa.bindparam("row_id")
        self._select = Statement(sa.select(table).where(by_id))
        self._update = Statement(table.update().where(by_id))
        by_ids = table.c.id.in_(sa.bindparam("ids", expanding=True))
        self._select_many = sa.select(table).where(by_ids).order_by(table.c.id.desc())

    def find(self, connection: sa.Connection, id_: str) -> Row | None:
        """Return the row of an id, if there is one."""
        return self._select.first(connection, row_id=id_)

    def load(self, connection: sa.Connection, id_: str) -> Row:
        """Return the row of an id; raise NotFound if there is none."""
        row = self.find(connection, id_)
        if row is None:
            hint = hint_list_command(self._kind)
            raise NotFound(f"There is no {self._kind} {id_}.", hint=hint)
        return row

    def list_by_ids(self, connection: sa.Connection, ids: Sequence[str]) -> list[Row]:
        """Return the rows of the ids that exist, the newest first."""
        return list(connection.execute(self._select_many, {"ids": list(ids)}).mappings())

    def update(self, connection: sa.Connection, id_: str, /, **values: Any) -> None:
        """Change columns of a row."""
        self._update.write(connection, row_id=id_, **values)

    def resolve(self, connection: sa.Connection, text: str) -> str:
        """Return the whole id for a whole id, or for the end or beginning of only one."""
        if is_id(self._kind, text):
            return text
        return resolve_id(connection, text, self._kind)

    def find_by_key(self, connection: sa.Connection, key: str) -> Row | None:
        """Return the row that was stored with an idempotency key, if there is one."""
        query = sa.select(self._table).where(self._table.c.idempotency_key == key)
        return connection.execute(query).mappings().first()

    def take_over(self, connection: sa.Connection, performer: str) -> int:
        """Claim the running rows of other performers; return their number."""
        is_running = self._table.c.status == "running"
        is_foreign = self._table.c.performer.is_distinct_from(performer)
        change = self._table.update().where(is_running, is_foreign)
        return connection.execute(change.values(performer=performer)).rowcount

    def list_ended(
        self, connection: sa.Connection, ids: Sequence[str], before: datetime, limit: int
    ) -> list[str]:
        """Return the given ids whose work ended before a time, at most `limit` of them."""
        id_ = self._table.c.id
        query = sa.select(id_).where(self._table.c.ended_at < before).order_by(id_)
        rows = select_in_parts(connection, query, id_, ids)
        return [row.id for row in islice(rows, limit)]

    def list_page(
        self,
        connection: sa.Connection,
        filter_: Any,
        base: sa.Select[Any],
        length: sa.ColumnElement[int] = _NO_CHARACTERS,
        among: Sequence[str] | None = None,
    ) -> tuple[list[Row], str | None]:
        """Return one page of rows, the newest first, and the cursor of the next page.

        base selects ids. A field of the filter that is also a column is a condition on it. With
        `among`, only rows of these ids count. length is the number of characters of a row: a page
        of long rows has fewer than the limit of the filter, but at least one.
        """
        id_ = self._table.c.id
        query = base.add_columns(length).where(*self._build_conditions(connection, filter_))
        if among is not None:
            query = query.where(id_.in_(among))
        # One more than the limit, to know whether there is a next page.
        candidates = connection.execute(query.order_by(id_.desc()).limit(filter_.limit + 1)).all()
        ids: list[str] = []
        total = 0
        for candidate, characters in candidates[: filter_.limit]:
            total += characters
            if ids and total > _MOST_CHARACTERS:
                break
            ids.append(candidate)
        cursor = None
        if len(candidates) > len(ids):
            cursor = ids[-1]
        return self.list_by_ids(connection, ids), cursor

    def count_matches(self, connection: sa.Connection, filter_: Any, base: sa.Select[Any]) -> int:
        """Return the number of rows on all pages of a filter."""
        whole_filter = filter_.model_copy(update={"cursor": None})
        conditions = self._build_conditions(connection, whole_filter)
        matches = base.where(*conditions).subquery()
        return connection.execute(sa.select(sa.func.count()).select_from(matches)).scalar_one()

    def _build_conditions(
        self, connection: sa.Connection, filter_: Any
    ) -> list[sa.ColumnElement[bool]]:
        columns = self._table.c
        values = dict(vars(filter_))
        conditions: list[sa.ColumnElement[bool]] = []
        if filter_.cursor:
            conditions.append(columns.id < filter_.cursor)
        if "repository" in columns:
            # Work may belong to a project by its repository, and a repository has a name.
            project = values.pop("project", None)
            repository = values.pop("repository", None)
            if project:
                conditions.append(match_project(connection, columns, project))
            if repository:
                conditions.append(columns.repository == resolve_path(connection, repository))
        for name in columns.keys() & values.keys():
            value = values[name]
            if not value:
                continue
            if isinstance(value, list):
                conditions.append(columns[name].in_(value))
            else:
                conditions.append(columns[name] == value)
        if values.get("flagged"):
            conditions.append(columns.flagged_at.is_not(None))
        if values.get("archived") is False:
            conditions.append(columns.archived_at.is_(None))
        return conditions


TASKS = Rows(tasks, "task")
RUNS = Rows(runs, "run")


def rows_of_work(work_id: str) -> Rows:
    """Return TASKS or RUNS, by the kind of an id."""
    if is_id("run", work_id):
        return RUNS
    return TASKS


def update_work(connection: sa.Connection, work_id: str, /, **values: Any) -> None:
    """Change columns of a task or run."""
    rows_of_work(work_id).update(connection, work_id, **values)


def read_workspace(row: Mapping[Any, Any]) -> Workspace:
    """Return the workspace of the row of a task or run."""
    fields = {name: row[f"workspace_{name}"] for name in Workspace.model_fields}
    return Workspace.model_validate(fields)


def view_workspace(row: Mapping[Any, Any]) -> WorkspaceView:
    """Return the workspace of a row, without a path while its worktree does not exist yet.

    Until then the row holds the directory of the person who submitted the work.
    """
    workspace = read_workspace(row)
    exists = workspace.branch is not None or workspace.path != row["directory"]
    if exists or workspace.kind is not WorkspaceKind.WORKTREE:
        return workspace
    return WorkspaceView(**{**vars(workspace), "path": None})
