"""Which work is due to be put away, on both databases."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.integration.rows import task_row

from kapelle.domain.ids import new_id
from kapelle.store import attempts, deliveries, runs, tasks
from kapelle.store import work as work_queries
from kapelle.store.database import Database
from kapelle.store.tables import runs as runs_table

_NOW = datetime.now(UTC)


async def _add(db: Database, days: float, status: str, **changes: Any) -> str:
    row = task_row(status=status, ended_at=_NOW - timedelta(days=days), **changes)
    await db.write(tasks.insert, row, [])
    return str(row["id"])


async def test_work_is_due_by_how_and_when_it_ended(db: Database) -> None:
    merged = await _add(db, 8, "completed", merged_at=_NOW)
    cancelled = await _add(db, 9, "cancelled")
    failed = await _add(db, 10, "failed")
    await _add(db, 11, "completed")
    await _add(db, 12, "cancelled", archived_at=_NOW)
    await _add(db, 13, "cancelled", run_id="run_x")
    await _add(db, 1, "cancelled")
    week, month = _NOW - timedelta(days=7), _NOW - timedelta(days=30)
    cases: list[tuple[tuple[Any, Any, Any], list[str]]] = [
        ((week, week, month), [cancelled, merged]),
        ((week, None, None), [merged]),
        ((None, None, week), [failed]),
        ((None, None, None), []),
    ]
    for moments, expected in cases:
        assert await db.read(work_queries.list_archivable, *moments, 10) == expected
    assert await db.read(attempts.list_ended, ["attempt_x"], _NOW, 10) == []


async def test_a_merged_worktree_is_known_with_its_base_and_whether_others_need_it(
    db: Database,
) -> None:
    place = {
        "workspace_kind": "worktree",
        "workspace_branch": "kapelle/a",
        "workspace_base": "main",
    }
    merged = await _add(db, 1, "completed", merged_at=_NOW, **place)
    await _add(db, 1, "completed", **place | {"workspace_branch": "kapelle/b"})
    assert await db.read(tasks.list_merged_worktrees) == {merged: ("kapelle/a", "main")}
    assert await db.read(tasks.list_merged_worktrees, merged) == {merged: ("kapelle/a", "main")}
    assert await db.read(tasks.list_merged_worktrees, "task_x") == {}
    assert not await db.read(tasks.is_pending_base, "kapelle/a")
    await _add(db, 1, "completed", **place | {"workspace_base": "kapelle/a"})
    assert await db.read(tasks.is_pending_base, "kapelle/a")


async def test_a_worktree_in_which_somebody_is_to_work_is_not_put_away_as_merged(
    db: Database,
) -> None:
    place = {"workspace_kind": "worktree", "workspace_base": "main"}
    run = task_row(id=new_id("run"), status="completed", merged_at=_NOW, **place)
    run |= {"pattern": "best-of", "spec": {}, "progress": {}, "workspace_branch": "kapelle/r"}
    await db.write(runs.insert, {k: v for k, v in run.items() if k in runs_table.c})
    place |= {"workspace_branch": "kapelle/a"}
    candidate = await _add(db, 1, "completed", run_id=run["id"], **place)
    forced = await _add(db, 1, "queued", merged_at=_NOW, **place)
    assert await db.read(tasks.list_merged_worktrees) == {
        run["id"]: ("kapelle/r", "main"),
        candidate: ("kapelle/a", "main"),
    }
    await db.write(tasks.enqueue_again, candidate)
    await _add(db, 1, "running", run_id=run["id"], workspace_owner=run["id"])
    assert await db.read(tasks.list_merged_worktrees) == {}
    assert await db.read(tasks.list_merged_worktrees, forced) == {}


async def test_a_report_takes_what_is_open_or_undelivered_first_then_the_newest(
    db: Database,
) -> None:
    open_ = task_row()
    await db.write(tasks.insert, open_, [])
    undelivered = await _add(db, 0, "completed")
    await db.write(deliveries.request, undelivered, "pr")
    await db.write(lambda connection: deliveries.update(connection, undelivered, status="failed"))
    ended = [await _add(db, 0, "completed") for _ in range(2)]
    day = timedelta(days=1)
    found = await db.read(work_queries.list_touched, _NOW - day, _NOW + day, None)
    assert found == [undelivered, open_["id"], *reversed(ended)]
