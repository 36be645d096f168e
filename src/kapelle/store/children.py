"""Children: work that attempts of other work started, and the cost of whole trees of work."""

from typing import NamedTuple

import sqlalchemy as sa

from kapelle.domain.budget import subtract_usd
from kapelle.domain.ids import is_id
from kapelle.domain.states import FINAL, RUN_FINAL, TaskStatus
from kapelle.store.query import Row, select_in_parts
from kapelle.store.rows import rows_of_work
from kapelle.store.statements import Statement
from kapelle.store.tables import WORK, attempts, runs, tasks

_UNSUCCESSFUL = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})
_CHILDREN = Statement(
    sa.union_all(
        *(
            sa.select(table.c.id).where(table.c.parent_task_id == sa.bindparam("task_id"))
            for table, _ in WORK
        )
    )
)


class Member(NamedTuple):
    """A task or run of a tree."""

    id: str
    status: str
    run_id: str | None  # the run that it is part of
    by_attempt: bool  # whether an attempt of the tree started it, directly or by other work


def load_ancestry(connection: sa.Connection, work_id: str) -> list[Row]:
    """Return the row of a task or run, then those of the work around it; the root is the last.

    The work around it is the task whose attempt started it, or the run that it is part of.
    """
    rows: list[Row] = []
    next_id: str | None = work_id
    while next_id is not None:
        row = rows_of_work(next_id).find(connection, next_id)
        if row is None:
            break  # it was deleted
        rows.append(row)
        outer_run = row["run_id"] if is_id("task", next_id) else row["parent_id"]
        next_id = row["parent_task_id"] or outer_run
    return rows


def list_children(connection: sa.Connection, task_id: str) -> list[str]:
    """Return the tasks and runs that attempts of a task started, the oldest first."""
    return sorted(_CHILDREN.scalars(connection, task_id=task_id))


def is_in_tree(connection: sa.Connection, work_id: str) -> bool:
    """Return whether an attempt started a task or run, or an attempt of it started other work."""
    if any(row["parent_task_id"] for row in load_ancestry(connection, work_id)):
        return True
    return bool(list_children(connection, work_id))


def list_descendants(connection: sa.Connection, work_id: str) -> list[Member]:
    """Return all tasks and runs below a task or run, generation by generation."""
    members: dict[str, Member] = {}
    # The value says whether an attempt started the member.
    generation = {work_id: False}
    while generation:
        parents = generation
        generation = {}
        for table, outer_id in WORK:
            query = sa.select(table.c.id, table.c.status, outer_id, table.c.parent_task_id)
            for link in (table.c.parent_task_id, outer_id):
                for row in select_in_parts(connection, query, link, [*parents]):
                    id_, status, run_id, parent_task_id = row
                    by_attempt = parent_task_id is not None or parents[run_id]
                    members[id_] = Member(id_, status, run_id, by_attempt)
                    generation[id_] = by_attempt
    return list(members.values())


def count_open(connection: sa.Connection, root_id: str) -> int:
    """Return the number of open tasks below a root that attempts started.

    An open run without an open task counts as one.
    """
    descendants = list_descendants(connection, root_id)
    members = [one for one in descendants if one.by_attempt and one.status not in FINAL]
    # A run that waits for a member must not keep that member from its first task.
    runs_with_members = {member.run_id for member in members}
    counted = [one for one in members if is_id("task", one.id) or one.id not in runs_with_members]
    return len(counted)


def sum_cost(connection: sa.Connection, work_id: str, except_attempt: str | None = None) -> float:
    """Return the known cost of a task or run and everything below it, without one attempt."""
    ids = [work_id, *(member.id for member in list_descendants(connection, work_id))]
    query = sa.select(attempts.c.id, attempts.c.cost_usd).where(attempts.c.cost_usd.is_not(None))
    total = 0.0
    for attempt_id, cost_usd in select_in_parts(connection, query, attempts.c.task_id, ids):
        if attempt_id != except_attempt:
            total += cost_usd
    return total


def find_tightest_budget(
    connection: sa.Connection,
    work_id: str,
    default_usd: float | None,
    except_attempt: str | None = None,
) -> tuple[float, float] | None:
    """Return the budget with the least remaining money, and its cost so far.

    The budgets of a task or run and of all work around it count. default_usd is the budget of a
    root that has none. None means that there is no budget.
    """
    rows = load_ancestry(connection, work_id)
    budgets = list[tuple[float, float]]()
    for row in rows:
        if is_id("task", row["id"]):
            budget_usd = row["budget_usd"]
        else:
            budget_usd = row["spec"].get("budget_usd")
        if not budget_usd and row is rows[-1]:
            budget_usd = default_usd
        if budget_usd:
            budgets.append((budget_usd, sum_cost(connection, row["id"], except_attempt)))
    return min(budgets, key=lambda budget: subtract_usd(*budget), default=None)


def list_orphans(connection: sa.Connection) -> list[str]:
    """Return open work to cancel because work around it failed or was cancelled.

    Work that was already told to stop is left out.
    """
    candidates: list[str] = []
    for table, final in ((tasks, FINAL), (runs, RUN_FINAL)):
        query = sa.select(table.c.id).where(
            table.c.parent_task_id.is_not(None),
            table.c.status.not_in(final),
            table.c.stop.is_distinct_from("cancel"),
        )
        candidates += connection.execute(query.order_by(table.c.id)).scalars()
    return [id_ for id_ in candidates if _is_orphan(load_ancestry(connection, id_)[1:])]


def _is_orphan(ancestors: list[Row]) -> bool:
    for row in ancestors:
        statuses = _UNSUCCESSFUL
        if is_id("run", row["id"]):
            # A run may have been cancelled on condition that its tasks go on.
            statuses = frozenset({TaskStatus.FAILED})
        if row["status"] in statuses or row["stop"] == "cancel":
            return True
        if row["status"] not in FINAL:
            return False  # an open ancestor is checked as a candidate itself
    return False
