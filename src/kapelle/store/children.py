"""Children: which task asked for which work, and what a whole tree of it used."""

from typing import NamedTuple

import sqlalchemy as sa

from kapelle.domain.budget import subtract_usd
from kapelle.domain.ids import is_id
from kapelle.domain.states import FINAL, RUN_FINAL, TaskStatus
from kapelle.store.query import Row, select_in_parts
from kapelle.store.rows import rows_of_work
from kapelle.store.statements import Statement
from kapelle.store.tables import WORK, attempts, runs, tasks

_GONE = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})
_asked = (sa.select(t.c.id).where(t.c.parent_task_id == sa.bindparam("task_id")) for t, _ in WORK)
_ASKED = Statement(sa.union_all(*_asked))


class Member(NamedTuple):
    """A task or run of a tree; asked says whether an attempt of the tree led to it."""

    id: str
    status: str
    run_id: str | None  # that it is part of
    asked: bool


def load_ancestry(connection: sa.Connection, work_id: str) -> list[Row]:
    """A task or run and what each is part of, or was asked for by: the root comes last."""
    found: list[Row] = []
    around: str | None = work_id
    while around is not None:
        row = rows_of_work(around).find(connection, around)
        if row is None:
            break  # it was forgotten
        found.append(row)
        around = row["parent_task_id"] or row["run_id" if is_id("task", around) else "parent_id"]
    return found


def list_children(connection: sa.Connection, task_id: str) -> list[str]:
    """The tasks and runs that attempts of a task asked for, oldest first."""
    return sorted(_ASKED.scalars(connection, task_id=task_id))


def is_in_tree(connection: sa.Connection, work_id: str) -> bool:
    """Whether an attempt led to a task or run, or one of its own to another."""
    asked = any(row["parent_task_id"] for row in load_ancestry(connection, work_id))
    return asked or bool(list_children(connection, work_id))


def list_descendants(connection: sa.Connection, work_id: str) -> list[Member]:
    """All tasks and runs below one, generation after generation."""
    found: dict[str, Member] = {}
    generation = {work_id: False}
    while generation:
        above = generation
        generation = {}
        for table, part_of in WORK:
            columns = (table.c.id, table.c.status, part_of, table.c.parent_task_id)
            for link in (table.c.parent_task_id, part_of):
                for id_, status, run_id, parent in select_in_parts(
                    connection, sa.select(*columns), link, [*above]
                ):
                    asked = parent is not None or above[run_id]
                    found[id_] = Member(id_, status, run_id, asked)
                    generation[id_] = asked
    return list(found.values())


def count_open(connection: sa.Connection, root_id: str) -> int:
    """How many tasks below one that attempts led to are open; a run without one counts as one."""
    going = [
        one
        for one in list_descendants(connection, root_id)
        if one.asked and one.status not in FINAL
    ]
    # A run that waits for one inside it must not keep that one from its first task.
    busy = {one.run_id for one in going}
    return sum(is_id("task", one.id) or one.id not in busy for one in going)


def sum_cost(connection: sa.Connection, work_id: str, but_for: str | None = None) -> float:
    """What a task or run and all below it cost so far, an attempt left out."""
    ids = [work_id, *(one.id for one in list_descendants(connection, work_id))]
    query = sa.select(attempts.c.id, attempts.c.cost_usd).where(attempts.c.cost_usd.is_not(None))
    costs = select_in_parts(connection, query, attempts.c.task_id, ids)
    return float(sum(cost for id_, cost in costs if id_ != but_for))


def find_tightest_budget(
    connection: sa.Connection, work_id: str, of_root: float | None, but_for: str | None = None
) -> tuple[float, float] | None:
    """Of the budgets of a task or run and those above it the one with least left, and what was
    spent of it; of_root is the root's where it has none."""
    rows = load_ancestry(connection, work_id)
    found = list[tuple[float, float]]()
    for row in rows:
        if is_id("task", row["id"]):
            own = row["budget_usd"]
        else:
            own = row["spec"].get("budget_usd")
        if budget := own or (of_root if row is rows[-1] else None):
            found.append((budget, sum_cost(connection, row["id"], but_for)))
    return min(found, key=lambda one: subtract_usd(*one), default=None)


def list_orphans(connection: sa.Connection) -> list[str]:
    """Open work of which one above failed, or was cancelled or is to be; each is named until
    told."""
    found: list[str] = []
    for table, final in ((tasks, FINAL), (runs, RUN_FINAL)):
        asked = sa.select(table.c.id).where(table.c.parent_task_id.is_not(None))
        told = table.c.stop.is_distinct_from("cancel")
        query = asked.where(table.c.status.not_in(final), told).order_by(table.c.id)
        found += connection.execute(query).scalars()
    return [id_ for id_ in found if _is_orphan(load_ancestry(connection, id_)[1:])]


def _is_orphan(above: list[Row]) -> bool:
    for row in above:
        # A run may have been cancelled without its tasks.
        gone = {TaskStatus.FAILED} if is_id("run", row["id"]) else _GONE
        if row["status"] in gone or row["stop"] == "cancel":
            return True
        if row["status"] not in FINAL:
            return False  # it is asked of that one itself
    return False
