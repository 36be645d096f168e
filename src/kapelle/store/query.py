"""What the tables of tasks, runs and schedules have in common: rows by id, prefixes, pages."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.domain.ids import SHORT, IdKind, is_id, new_id, parse_id_part, strip_kind
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.task import Workspace, WorkspaceView
from kapelle.store.repository import match_project, resolve_path
from kapelle.store.tables import WORK, deliveries, id_ending, metadata, runs, tasks

Row = Mapping[Any, Any]  # by the names of columns
Conditions = Sequence[sa.ColumnElement[bool]]
T = TypeVar("T")
_NamedParameters = dict[str, Any]
_Compiled = tuple[str, _NamedParameters, list[tuple[str, Any]], _NamedParameters]


class Statement:
    """A statement with named parameters, of which none is a list.

    On SQLite it is executed below SQLAlchemy, where that takes a fifth of the time.
    """

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._compiled: dict[tuple[str, ...], _Compiled] = {}

    def rows(self, connection: sa.Connection, /, **values: Any) -> Sequence[Row]:
        if connection.dialect.name != "sqlite":
            return list(connection.execute(self._statement, values).mappings())
        cursor, columns = self._execute(connection, values)
        found = [dict(zip(columns, row, strict=True)) for row in cursor]
        for row in found:
            row |= {name: read(row[name]) for name, read in columns.items() if read}
        return found

    def first(self, connection: sa.Connection, /, **values: Any) -> Row | None:
        return next(iter(self.rows(connection, **values)), None)

    def scalars(self, connection: sa.Connection, /, **values: Any) -> list[Any]:
        """The first column of each row."""
        return [next(iter(row.values())) for row in self.rows(connection, **values)]

    def scalar(self, connection: sa.Connection, /, **values: Any) -> Any:
        """The first column of the first row, None without one."""
        return next(iter(self.scalars(connection, **values)), None)

    def write(self, connection: sa.Connection, /, **values: Any) -> int:
        """Insert, update or delete; how many rows that concerned."""
        if connection.dialect.name != "sqlite":
            return int(connection.execute(self._statement, values).rowcount)
        return int(self._execute(connection, values)[0].rowcount)

    def _execute(
        self, connection: sa.Connection, values: _NamedParameters
    ) -> tuple[Any, _NamedParameters]:
        if (given := tuple(values)) not in self._compiled:
            self._compiled[given] = _compile(self._statement, connection.dialect, values)
        sql, constant, bound, columns = self._compiled[given]
        known = constant | values
        driver = cast(Any, connection.connection.driver_connection)
        parameters = [to(known[name]) if to else known[name] for name, to in bound]
        return driver.execute(sql, parameters), columns


def _compile(statement: Any, dialect: sa.Dialect, values: _NamedParameters) -> _Compiled:
    """In SQLite's words for values of these names: its constants, parameters and columns."""
    made = statement.compile(dialect=dialect, column_keys=list(values))
    state = made.construct_expanded_state(values)
    kinds = {name: bound.type.dialect_impl(dialect) for name, bound in made.binds.items()}
    for name, several in state.parameter_expansion.items():
        kinds |= dict.fromkeys(several, kinds[name])
    bound = [(name, kinds[name].bind_processor(dialect)) for name in state.positiontup]
    columns = made.effective_returning or getattr(statement, "exported_columns", ())
    kinds = {column.key: column.type.dialect_impl(dialect) for column in columns}
    read = {name: kind.result_processor(dialect, None) for name, kind in kinds.items()}
    constant = {name: value for name, value in state.parameters.items() if name not in values}
    return state.statement, constant, bound, read


_MOST_LETTERS = 4_000_000
# A database takes so many parameters and no more.
_MOST_PARAMETERS = 500
_NO_LETTERS = sa.literal(0)
_MOST_NAMED = 5
# Fewer letters are another one's some day.
_SHORTEST = 4
# What a person may type the id of, and the commands that show it and list all.
_SHOWN_BY: dict[IdKind, str] = {
    "task": "kapelle status",
    "run": "kapelle runs status",
    "schedule": "kapelle schedule status",
    "learning": "kapelle learnings show",
}
_LISTED_BY: dict[IdKind, str] = {
    "task": "kapelle list",
    "run": "kapelle runs list",
    "schedule": "kapelle schedule list",
    "learning": "kapelle learnings list",
}
_TYPED = [metadata.tables[f"{kind}s"] for kind in _SHOWN_BY]
_ends = (sa.select(table.c.id).where(id_ending(table) == sa.bindparam("end")) for table in _TYPED)
_TAKEN = Statement(sa.union_all(*_ends).limit(1))


def has_row(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> bool:
    """Whether there is a row for which all this holds."""
    query = sa.select(sa.literal(1)).where(*which).limit(1)
    return connection.execute(query).first() is not None


def count_rows(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> int:
    """How many rows there are for which all this holds."""
    return connection.execute(sa.select(sa.func.count()).where(*which)).scalar_one()


def group(pairs: Iterable[tuple[str, T]]) -> defaultdict[str, list[T]]:
    """What belongs to each key, in order; an empty list to one that has nothing."""
    found: defaultdict[str, list[T]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found


def select_in_parts(
    connection: sa.Connection, query: sa.Select[Any], column: sa.Column[str], among: Sequence[str]
) -> Iterator[Any]:
    """What a query finds where a column is one of so many values that it takes several."""
    for start in range(0, len(among), _MOST_PARAMETERS):
        yield from connection.execute(
            query.where(column.in_(among[start : start + _MOST_PARAMETERS]))
        )


class Rows:
    """Rows of a table by their ids."""

    def __init__(self, table: sa.Table, kind: IdKind) -> None:
        self._table = table
        self._kind = kind
        self._row = Statement(sa.select(table).where(table.c.id == sa.bindparam("row_id")))
        some = sa.select(table).where(table.c.id.in_(sa.bindparam("ids", expanding=True)))
        self._some = some.order_by(table.c.id.desc())
        self._update = Statement(table.update().where(table.c.id == sa.bindparam("row_id")))

    def find(self, connection: sa.Connection, id_: str) -> Row | None:
        return self._row.first(connection, row_id=id_)

    def row(self, connection: sa.Connection, id_: str) -> Row:
        """The stored row, or NotFound."""
        found = self.find(connection, id_)
        if found is None:
            raise NotFound(f"There is no {self._kind} {id_}.", hint=_hint(self._kind))
        return found

    def update(self, connection: sa.Connection, id_: str, /, **values: Any) -> None:
        self._update.write(connection, row_id=id_, **values)

    def resolve(self, connection: sa.Connection, text: str) -> str:
        """The whole id for what a person typed: an id, or any end or beginning only one has."""
        if is_id(self._kind, text):
            return text
        return resolve_id(connection, text, self._kind)

    def by_idempotency_key(self, connection: sa.Connection, key: str) -> Row | None:
        query = sa.select(self._table).where(self._table.c.idempotency_key == key)
        return connection.execute(query).mappings().first()

    def take_over(self, connection: sa.Connection, performer: str) -> int:
        """Claim everything that another performer left running; returns how many."""
        running = self._table.c.status == "running"
        claimed = self._table.c.performer
        query = self._table.update().where(running, claimed.is_distinct_from(performer))
        return connection.execute(query.values(performer=performer)).rowcount

    def ended_of(
        self, connection: sa.Connection, ids: Sequence[str], before: datetime, limit: int
    ) -> list[str]:
        """Those of the ids that ended before a moment, at most so many."""
        id_ = self._table.c.id
        query = sa.select(id_).where(self._table.c.ended_at < before).order_by(id_)
        return [row[0] for row in islice(select_in_parts(connection, query, id_, ids), limit)]

    def page(
        self,
        connection: sa.Connection,
        wanted: Any,
        chosen: sa.Select[Any],
        letters: sa.ColumnElement[int] = _NO_LETTERS,
        among: Sequence[str] | None = None,
    ) -> tuple[list[Row], str | None]:
        """Rows of the ids that a query and a filter select, newest first, and the next cursor; of
        these ids alone, if some are given.

        Fields of the filter that are columns say what those must be. The rows are fewer than its
        limit, but at least one, when what they hold is long.
        """
        id_ = self._table.c.id
        query = chosen.add_columns(letters).where(*self._conditions(connection, wanted))
        if among is None:
            query = query
        else:
            query = query.where(id_.in_(among))
        found = connection.execute(query.order_by(id_.desc()).limit(wanted.limit + 1)).all()
        ids: list[str] = []
        total = 0
        for one, length in found[: wanted.limit]:
            total += length
            if ids and total > _MOST_LETTERS:
                break
            ids.append(one)
        more = len(found) > len(ids)
        rows = connection.execute(self._some, {"ids": ids}).mappings()
        return list(rows), ids[-1] if more else None

    def count(self, connection: sa.Connection, wanted: Any, chosen: sa.Select[Any]) -> int:
        """How many rows there are on all pages of a filter."""
        every = wanted.model_copy(update={"cursor": None})
        found = chosen.where(*self._conditions(connection, every)).subquery()
        return connection.execute(sa.select(sa.func.count()).select_from(found)).scalar_one()

    def of_ids(self, connection: sa.Connection, ids: Sequence[str]) -> list[Row]:
        """The rows of some ids, as far as they exist, the newest first."""
        return list(connection.execute(self._some, {"ids": list(ids)}).mappings())

    def _conditions(self, connection: sa.Connection, wanted: Any) -> list[sa.ColumnElement[bool]]:
        columns = self._table.c
        values = dict(vars(wanted))
        if wanted.cursor:
            found = [columns.id < wanted.cursor]
        else:
            found = []
        # A project's work may have no project of its own, and a repository may be named.
        if "repository" in columns and (project := values.pop("project", None)):
            found.append(match_project(connection, columns, project))
        if "repository" in columns and (repository := values.pop("repository", None)):
            found.append(columns.repository == resolve_path(connection, repository))
        for name in columns.keys() & values.keys():
            column = columns[name]
            value = values[name]
            if value:
                found.append(column.in_(value) if isinstance(value, list) else column == value)
        if values.get("flagged"):
            found.append(columns.flagged_at.is_not(None))
        if values.get("archived") is False:
            found.append(columns.archived_at.is_(None))
        return found


def _hint(kind: IdKind) -> str | None:
    if kind in _LISTED_BY:
        return f"{_LISTED_BY[kind]} shows the ids."
    return None


def resolve_id(connection: sa.Connection, text: str, *kinds: IdKind) -> str:
    """The whole id of one of these kinds for what a person typed; one of another kind is told."""
    if found := _one_like(connection, text, *kinds):
        return found
    hint = _hint(kinds[0])
    if 0 < len(parse_id_part(kinds[0], text) or "") < _SHORTEST:
        hint = f"Type at least {_SHORTEST} letters of the id."
    for other, command in _SHOWN_BY.items():
        if other not in kinds and _one_like(connection, text, other):
            hint = f"It is a {other}: {command} {text.strip()}"
    raise NotFound(f"{text!r} is not the id of a {' or a '.join(kinds)}.", hint=hint)


def _one_like(connection: sa.Connection, text: str, *kinds: IdKind) -> str | None:
    """The one id of these kinds that ends, or else begins, with what a person typed."""
    parts = [(kind, parse_id_part(kind, text) or "") for kind in kinds]
    typed = [one for one in parts if len(one[1]) >= _SHORTEST]
    for ending in (True, False):
        queries = [_like(*one, ending) for one in typed]
        if queries:
            found = sa.union_all(*queries).limit(_MOST_NAMED)
        else:
            found = None
        if found is not None:
            rows = connection.execute(found).all()
        else:
            rows = []
        if len(rows) > 1:
            named = ", ".join(f"{row.id[-SHORT:]} ({row.title[:40]})" for row in rows)
            raise InvalidInput(f"Several ids have {text!r}: {named}.", hint="Type more.")
        if rows:
            return str(rows[0][0])
    return None


def _like(kind: IdKind, part: str, ending: bool) -> sa.Select[tuple[str, str]]:
    table = metadata.tables[f"{kind}s"]
    query = sa.select(table.c.id, table.c.title)
    if not ending:
        return query.where(table.c.id.startswith(f"{kind}_{part}", autoescape=True))
    if len(part) >= SHORT:
        query = query.where(id_ending(table) == part[-SHORT:])
    return query.where(table.c.id.endswith(part))


def make_unused_id(connection: sa.Connection, kind: IdKind) -> str:
    """A new id whose short form none has that a person may type."""
    while True:
        made = new_id(kind)
        if _TAKEN.scalar(connection, end=made[-SHORT:]) is None:
            return made


def read_workspace(row: Row | dict[str, Any]) -> Workspace:
    """Where a task or a run works."""
    return Workspace.model_validate(
        {name: row[f"workspace_{name}"] for name in Workspace.model_fields}
    )


def view_workspace(row: Row | dict[str, Any]) -> WorkspaceView:
    """Where a task or a run works, without a path while its worktree is still to be made: until
    then the row holds the directory of whoever asked for it."""
    workspace = read_workspace(row)
    is_made = workspace.branch is not None or workspace.path != row["directory"]
    if is_made or workspace.kind is not WorkspaceKind.WORKTREE:
        return workspace
    return WorkspaceView(**{**vars(workspace), "path": None})


TASKS = Rows(tasks, "task")
RUNS = Rows(runs, "run")


def rows_of_work(work_id: str) -> Rows:
    """The rows that a task or a run stands among, by what its id says."""
    if is_id("run", work_id):
        return RUNS
    return TASKS


def update_work(connection: sa.Connection, work_id: str, /, **values: Any) -> None:
    rows_of_work(work_id).update(connection, work_id, **values)


def load_archive_times(connection: sa.Connection, ids: Sequence[str]) -> dict[str, datetime | None]:
    """Those of the ids that are stored tasks and runs, with when they were archived."""
    found: dict[str, datetime | None] = {}
    for table, _ in WORK:
        query = sa.select(table.c.id, table.c.archived_at)
        found |= {
            id_: moment for id_, moment in select_in_parts(connection, query, table.c.id, ids)
        }
    return found


def list_shells_in_use(connection: sa.Connection, digests: Sequence[str]) -> set[str]:
    """Those of the environments that something was asked for in which is not archived."""
    used = (
        sa.select(table.c.shell).where(table.c.shell.in_(digests), table.c.archived_at.is_(None))
        for table, _ in WORK
    )
    return set(connection.execute(sa.union(*used)).scalars())


def list_archivable(
    connection: sa.Connection,
    merged: datetime | None,
    cancelled: datetime | None,
    failed: datetime | None,
    limit: int,
) -> list[str]:
    """Runs and tasks, so many of each, that are part of nothing else and ended before the moment
    for how they ended."""
    found: list[str] = []
    for table, part_of in reversed(WORK):
        columns = table.c
        kinds = (
            (merged, columns.merged_at.is_not(None)),
            (cancelled, columns.status == "cancelled"),
            (failed, sa.and_(columns.status == "failed", columns.merged_at.is_(None))),
        )
        due = [sa.and_(kind, columns.ended_at < moment) for moment, kind in kinds if moment]
        query = sa.select(columns.id).where(columns.archived_at.is_(None), part_of.is_(None))
        query = query.where(sa.or_(sa.false(), *due)).order_by(columns.ended_at).limit(limit)
        found += connection.execute(query).scalars()
    return found


def list_touched(
    connection: sa.Connection,
    since: datetime,
    until: datetime,
    project: str | None,
    repository: str | None = None,
) -> list[str]:
    """Tasks and runs that are part of nothing else and were begun, open or merged in a time: those
    that are open or could not be delivered first, the newest first."""
    found: list[tuple[bool, str]] = []
    for table, around in WORK:
        columns = table.c
        ended = sa.or_(columns.ended_at.is_(None), columns.ended_at >= since)
        failed = sa.exists().where(
            deliveries.c.owner == columns.id, deliveries.c.status == "failed"
        )
        first = sa.or_(columns.ended_at.is_(None), failed)
        query = sa.select(first, columns.id).where(columns.created_at < until, around.is_(None))
        query = query.where(sa.or_(ended, columns.merged_at >= since))
        query = query.where(columns.parent_task_id.is_(None))
        if project is not None:
            query = query.where(match_project(connection, columns, project))
        if repository is not None:
            query = query.where(columns.repository == resolve_path(connection, repository))
        found += [(bool(urgent), id_) for urgent, id_ in connection.execute(query)]
    return [
        id_ for _, id_ in sorted(found, key=lambda one: (one[0], strip_kind(one[1])), reverse=True)
    ]
