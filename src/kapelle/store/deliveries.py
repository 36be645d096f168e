"""Deliveries of the work of tasks and runs: merges and pull requests, and which are due."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.errors import Forbidden
from kapelle.domain.ids import is_id
from kapelle.domain.task import Delivery
from kapelle.store import children, events
from kapelle.store.query import Row, select_in_parts
from kapelle.store.statements import Statement
from kapelle.store.tables import deliveries, runs, tasks

ASKED = "delivery.asked"
_AT_A_TIME = 20
_MOST_PUSHED = 50
ANY = Statement(sa.select(deliveries.c.owner).limit(1))  # a cheap check: most homes have none
_PENDING = {"status": "pending", "reason": None, "tries": 0, "next_at": None}


def request(
    connection: sa.Connection,
    owner: str,
    mode: str,
    *,
    draft: bool | None = None,
    force: bool = False,
    by_person: bool = False,
) -> None:
    """Request the delivery of work as soon as it is completed.

    A repeated request keeps the known state, for example the number of a pull request. Unless a
    person requests it, work that an attempt started is only merged into the branch of that attempt.
    With draft, a pull request becomes a draft or ready for review; None leaves it as it is.
    """
    if not by_person:
        _require_own_branch(connection, owner, mode)
    values = {
        **_PENDING,
        "mode": mode,
        "draft": draft is True,
        "ready": draft is False,
        "force": force,
    }
    if find(connection, owner) is None:
        connection.execute(deliveries.insert(), {"owner": owner, "pushed": [], **values})
    else:
        update(connection, owner, **values)
    events.append(connection, ASKED, owner)


def request_draft(connection: sa.Connection, owner: str) -> None:
    """Deliver unfinished work as a draft if a pull request is requested."""
    row = find(connection, owner)
    if row is not None and row["mode"] == "pr":
        update(connection, owner, **_PENDING, draft=True, ready=False)
        events.append(connection, ASKED, owner)


def withdraw_draft(connection: sa.Connection, owner: str) -> None:
    """Wait for the completion of the work, then make its pull request ready for review."""
    row = find(connection, owner)
    if row is not None and row["mode"] == "pr":
        update(connection, owner, **_PENDING, draft=False, ready=True)


def _require_own_branch(connection: sa.Connection, owner: str, mode: str) -> None:
    """Raise Forbidden if work below an attempt is delivered elsewhere than to that attempt."""
    work, *ancestors = children.load_ancestry(connection, owner)
    if not any(row["parent_task_id"] for row in (work, *ancestors)):
        return
    if is_id("task", owner):
        base = work["requested_base"]
    else:
        base = work["spec"].get("base")
    is_own = work["parent_task_id"] and base in {None, ancestors[0]["workspace_branch"]}
    if mode != "merge" or not is_own:
        raise Forbidden("Work that an attempt starts can only be merged into its own branch.")


def find(connection: sa.Connection, owner: str) -> Row | None:
    """Return the delivery of a task or run, if there is one."""
    query = sa.select(deliveries).where(deliveries.c.owner == owner)
    return connection.execute(query).mappings().first()


def update(connection: sa.Connection, owner: str, /, **values: Any) -> None:
    """Change columns of a delivery."""
    connection.execute(deliveries.update().where(deliveries.c.owner == owner), values)


def load_by_owner(connection: sa.Connection, owners: Sequence[str]) -> dict[str, Delivery]:
    """Return the deliveries of these tasks or runs."""
    query = sa.select(deliveries).where(deliveries.c.mode != "branch")
    rows = select_in_parts(connection, query, deliveries.c.owner, owners)
    return {row.owner: Delivery.model_validate(row, from_attributes=True) for row in rows}


def list_due(connection: sa.Connection, now: datetime) -> list[str]:
    """Return the tasks and runs to deliver now.

    These are completed work that differs from what was delivered before, and work that is to become
    a draft.
    """
    ids: list[str] = []
    own = deliveries.c
    is_due = sa.or_(own.next_at.is_(None), own.next_at <= now)
    for work in (tasks, runs):
        is_completed = work.c.status == "completed"
        is_pending = sa.and_(own.status == "pending", is_due, sa.or_(is_completed, own.draft))
        is_new = own.commit.is_distinct_from(work.c.workspace_commit)
        is_again = sa.and_(own.status != "pending", is_completed, is_new)
        query = sa.select(own.owner).join(work, work.c.id == own.owner)
        query = query.where(own.mode != "branch", sa.or_(is_pending, is_again))
        ids += connection.execute(query).scalars()
    return ids


def list_stale(connection: sa.Connection, now: datetime) -> list[str]:
    """Return the deliveries whose pull requests are to be queried again.

    Closed pull requests are included because somebody may reopen them.
    """
    own = deliveries.c
    query = sa.select(own.owner).where(
        own.status == "delivered",
        own.state.in_(["draft", "open", "closed"]),
        sa.or_(own.next_at.is_(None), own.next_at <= now),
    )
    return list(connection.execute(query.limit(_AT_A_TIME)).scalars())


def record_push(connection: sa.Connection, owner: str, commit: str) -> list[str]:
    """Store a commit before it is pushed; return the commits that were pushed before.

    Work that is pushed only for CI gets a row with the mode "branch", which is not a delivery.
    """
    row = find(connection, owner)
    earlier: list[str] = []
    if row is None:
        values = {**_PENDING, "owner": owner, "mode": "branch", "draft": False, "force": False}
        connection.execute(deliveries.insert(), {**values, "pushed": []})
    else:
        earlier = row["pushed"]
    # A repeated commit moves to the end: the list is in the order of the pushes.
    others = [one for one in earlier if one != commit][-_MOST_PUSHED:]
    update(connection, owner, pushed=[*others, commit])
    return earlier


def delete(connection: sa.Connection, owner: str) -> None:
    connection.execute(deliveries.delete().where(deliveries.c.owner == owner))
