"""Runs inside runs, as the database keeps, forgets and lists them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration.engine.test_run_control import add_run
from tests.integration.rows import task_row

from kapelle.domain.errors import Forbidden
from kapelle.domain.run import RunFilter
from kapelle.domain.states import RunStatus, TaskStatus
from kapelle.store import attempts, deliveries, events, rows, runs, tables, tasks
from kapelle.store.database import Connection, Database

_LONG_AGO = datetime.now(UTC) - timedelta(days=30)
_LIMIT = datetime.now(UTC) - timedelta(days=7)
_DEEPEST = 20


async def add_task(db: Database, run_id: str | None, **changes: Any) -> str:
    values = task_row(run_id=run_id, status=TaskStatus.COMPLETED, **changes)
    await db.write(tasks.insert, values, [])
    return str(values["id"])


async def add_ended(db: Database, parent: str | None, age_days: int = 0) -> tuple[str, str]:
    """A run that ended long ago, and its task."""
    moment = _LONG_AGO - timedelta(days=age_days)
    ended = {"ended_at": moment, "created_at": moment}
    run_id = await add_run(db, parent_id=parent, status=RunStatus.COMPLETED, **ended)
    return run_id, await add_task(db, run_id, **ended)


async def forgettable(db: Database) -> tuple[list[str], list[str]]:
    old_runs = await db.read(runs.list_ended_before, _LIMIT, 100)
    return old_runs, await db.read(tasks.list_ended_before, _LIMIT, 100)


async def test_what_ended_inside_an_open_run_is_kept_with_what_it_cost(db: Database) -> None:
    top = parent = await add_run(db, status=RunStatus.PAUSED)
    for _ in range(_DEEPEST - 1):
        parent, task_id = await add_ended(db, parent)
        await db.write(attempts.insert, **_attempt(task_id))
    assert await forgettable(db) == ([], [])
    assert (await db.read(runs.get, top)).spent.cost_usd == _DEEPEST - 1
    await db.write(runs.update, top, status=RunStatus.COMPLETED, ended_at=datetime.now(UTC))
    old_runs, old_tasks = await forgettable(db)
    assert len(old_runs) == len(old_tasks) == _DEEPEST - 1


async def test_what_an_attempt_led_to_is_delivered_to_its_branch_alone(db: Database) -> None:
    parent = await add_task(db, None, workspace_branch="own")
    asked = await add_run(db, parent_task_id=parent, spec={"base": "own"})
    inside = await add_run(db, parent_id=asked, spec={"base": "main"})
    elsewhere = await add_task(db, None, parent_task_id=parent, requested_base="main")
    went_on = await add_task(db, None, parent_task_id=parent)
    for work, mode in ((asked, "pr"), (inside, "pr"), (inside, "merge"), (elsewhere, "merge")):
        with pytest.raises(Forbidden):
            await db.write(deliveries.request, work, mode)
    for work in (asked, went_on):
        await db.write(deliveries.request, work, "merge")
    await db.write(deliveries.request, await add_run(db, spec={"base": "main"}), "pr")
    await db.write(lambda connection: deliveries.request(connection, inside, "pr", by_person=True))


def _attempt(task_id: str) -> dict[str, Any]:
    return {
        "id": task_id.replace("task", "attempt"),
        "task_id": task_id,
        "number": 1,
        "status": "completed",
        "mode": "fresh",
        "agent": "rehearsal",
        "warnings": [],
        "cost_usd": 1.0,
        "started_at": _LONG_AGO,
    }


async def test_what_is_kept_keeps_nothing_else_from_being_forgotten(db: Database) -> None:
    top = await add_run(db)
    for _ in range(5):
        await add_ended(db, top, age_days=10)
    gone, task_of_gone = await add_ended(db, None)
    inside_gone, task_inside = await add_ended(db, gone, age_days=1)
    alone = await add_task(db, None, ended_at=_LONG_AGO)
    assert await db.read(runs.list_ended_before, _LIMIT, 2) == [inside_gone, gone]
    assert await db.read(tasks.list_ended_before, _LIMIT, 3) == [task_inside, task_of_gone, alone]


async def test_an_event_of_a_runs_task_is_one_of_the_run_also_when_the_task_is_gone(
    db: Database,
) -> None:
    run_id = await add_run(db)
    task_id = await add_task(db, run_id)
    other = await add_task(db, None)
    for subject in (task_id, other):
        await db.write(events.append, "task.archived", subject)
    await db.write(lambda c: events.append(c, "run.archived", run_id))
    await db.write(lambda c: c.execute(tables.tasks.delete()))
    told = await db.read(events.list_after, 0, run_id=run_id)
    assert [(event.task_id, event.run_id) for event in told] == [(task_id, run_id), (None, run_id)]
    assert [event for _, event in (await db.read(events.list_of_runs, 0))[0]] == told
    subjects = [(event.task_id, event.run_id) for event in await db.read(events.list_after, 0)]
    assert subjects == [(task_id, run_id), (other, None), (None, run_id)]


@pytest.mark.parametrize("where", ["spec", "result"])
async def test_a_page_of_large_runs_has_fewer_of_them(
    db: Database, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(rows, "_MOST_CHARACTERS", 2500)
    ids = [await add_run(db, **{where: {"text": "x" * 1000}}) for _ in range(5)]
    ids.append(await add_run(db, **{where: {"text": "x" * 5000}}))
    seen: list[list[str]] = []
    wanted: RunFilter | None = RunFilter(limit=4)
    while wanted:
        page, cursor = await db.read(runs.list_page, wanted)
        seen.append([run.id for run in page])
        wanted = RunFilter(limit=4, cursor=cursor) if cursor else None
    newest_first = ids[::-1]
    assert seen == [newest_first[:1], newest_first[1:3], newest_first[3:5], newest_first[5:]]


async def test_what_is_asked_often_is_found_by_an_index(db: Database) -> None:
    if not db.is_sqlite:
        pytest.skip("PostgreSQL scans what is small")
    plans: list[str] = []

    def ask(connection: Connection) -> None:
        @sa.event.listens_for(connection, "before_cursor_execute")
        def explain(_: Any, cursor: Any, statement: str, parameters: Any, *__: Any) -> None:
            found = cursor.connection.cursor()
            found.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[-1] for row in found.fetchall())

        events.list_after(connection, 0, run_id="run_x")
        tasks.has_others_in(connection, "run_x", "task_x")
        runs.list_ended_before(connection, _LIMIT, 100)
        tasks.list_ended_before(connection, _LIMIT, 100)

    await db.read(ask)
    wanted = {
        "SEARCH events USING INDEX ix_events_run_id_seq (run_id=? AND seq>?)",
        "SEARCH tasks USING INDEX ix_tasks_workspace_owner (workspace_owner=?)",
        "SEARCH runs USING COVERING INDEX ix_runs_ended_at_id (ended_at<?)",
        "SEARCH tasks USING INDEX ix_tasks_ended_at_id (ended_at<?)",
        "SEARCH runs USING COVERING INDEX ix_runs_status_id (status=?)",
    }
    assert wanted <= set(plans), plans
    assert not [plan for plan in plans if plan.startswith("SCAN") and plan != "SCAN going"]
    assert not [plan for plan in plans if "TEMP B-TREE" in plan]
