"""Deliveries: what becomes of the work of tasks and runs, and which of them are due."""

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
ANY = Statement(sa.select(deliveries.c.owner).limit(1))  # in most homes there is none
_NEW = {"status": "pending", "reason": None, "tries": 0, "next_at": None}


def request(
    connection: sa.Connection,
    owner: str,
    mode: str,
    *,
    draft: bool | None = None,
    force: bool = False,
    by_person: bool = False,
) -> None:
    """Have work delivered, once it is there to be; asked again, what is known of it is kept. What
    an attempt led to is, unless by a person, only merged into the branch of that attempt. A pull
    request is made a draft or ready as draft says; None leaves that as it is."""
    if not by_person:
        _require_own(connection, owner, mode)
    asked = {"draft": draft is True, "ready": draft is False, "force": force}
    values = {**_NEW, "mode": mode, **asked}
    if find(connection, owner) is None:
        connection.execute(deliveries.insert(), {"owner": owner, "pushed": [], **values})
    else:
        update(connection, owner, **values)
    events.append(connection, ASKED, owner)


def request_draft(connection: sa.Connection, owner: str) -> None:
    """Have unfinished work delivered as a draft, where a pull request was asked for."""
    row = find(connection, owner)
    if row is not None and row["mode"] == "pr":
        update(connection, owner, **_NEW, draft=True, ready=False)
        events.append(connection, ASKED, owner)


def withdraw_draft(connection: sa.Connection, owner: str) -> None:
    """Wait for the work to be completed, and then have its pull request be no draft any more."""
    row = find(connection, owner)
    if row is not None and row["mode"] == "pr":
        update(connection, owner, **_NEW, draft=False, ready=True)


def _require_own(connection: sa.Connection, owner: str, mode: str) -> None:
    work, *above = children.load_ancestry(connection, owner)
    if any(row["parent_task_id"] for row in (work, *above)):
        if is_id("task", owner):
            base = work["requested_base"]
        else:
            base = work["spec"].get("base")
        own = work["parent_task_id"] and base in {None, above[0]["workspace_branch"]}
        if mode != "merge" or not own:
            raise Forbidden("What an attempt asks for is delivered to its own branch alone.")


def find(connection: sa.Connection, owner: str) -> Row | None:
    query = sa.select(deliveries).where(deliveries.c.owner == owner)
    return connection.execute(query).mappings().first()


def update(connection: sa.Connection, owner: str, /, **values: Any) -> None:
    connection.execute(deliveries.update().where(deliveries.c.owner == owner), values)


def load_by_owner(connection: sa.Connection, owners: Sequence[str]) -> dict[str, Delivery]:
    """What is known of the deliveries of these tasks or runs."""
    asked = sa.select(deliveries).where(deliveries.c.mode != "branch")
    found = select_in_parts(connection, asked, deliveries.c.owner, owners)
    return {row.owner: Delivery.model_validate(row, from_attributes=True) for row in found}


def list_due(connection: sa.Connection, now: datetime) -> list[str]:
    """Tasks and runs to be delivered now: those that completed, with other work than was delivered
    before, and those that a person wants delivered as they are."""
    found: list[str] = []
    own = deliveries.c
    for work in (tasks, runs):
        pending = sa.and_(
            own.status == "pending",
            sa.or_(own.next_at.is_(None), own.next_at <= now),
            sa.or_(work.c.status == "completed", own.draft),
            own.mode != "branch",
        )
        other = own.commit.is_distinct_from(work.c.workspace_commit)
        again = sa.and_(
            own.status != "pending", own.mode != "branch", work.c.status == "completed", other
        )
        query = sa.select(own.owner).join(work, work.c.id == own.owner)
        found += connection.execute(query.where(sa.or_(pending, again))).scalars()
    return found


def list_stale(connection: sa.Connection, now: datetime) -> list[str]:
    """Those whose pull requests are to be looked at again; a closed one may be opened again."""
    own = deliveries.c
    query = sa.select(own.owner).where(
        own.status == "delivered",
        own.state.in_(["draft", "open", "closed"]),
        sa.or_(own.next_at.is_(None), own.next_at <= now),
    )
    return list(connection.execute(query.limit(_AT_A_TIME)).scalars())


def record_push(connection: sa.Connection, owner: str, commit: str) -> list[str]:
    """Remember a commit that is about to be pushed; those that were before. What is pushed for its
    CI alone has a row that nobody is shown."""
    if (known := find(connection, owner)) is None:
        values = {**_NEW, "owner": owner, "mode": "branch", "draft": False, "force": False}
        connection.execute(deliveries.insert(), {**values, "pushed": []})
    if known:
        before: list[str] = known["pushed"]
    else:
        before = []
    # The one that is pushed last is the last.
    kept = [one for one in before if one != commit][-_MOST_PUSHED:]
    update(connection, owner, pushed=[*kept, commit])
    return before


def delete(connection: sa.Connection, owner: str) -> None:
    connection.execute(deliveries.delete().where(deliveries.c.owner == owner))
