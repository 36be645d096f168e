"""What needs a person, and the list of work with its filters: over all rows, on both databases."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.integration.rows import task_row

from kapelle.domain.ids import new_id
from kapelle.domain.run import WorkFilter
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import TaskFilter
from kapelle.store import filters, needs, sums, tasks
from kapelle.store.database import Connection, Database
from kapelle.store.tables import attempts, checks
from kapelle.store.tables import tasks as task_table

NOW = datetime.now(UTC)
DONE: dict[str, Any] = {"status": TaskStatus.COMPLETED, "started_at": NOW, "ended_at": NOW}
# With a commit of its own on its branch.
CHANGED: dict[str, Any] = DONE | {
    "workspace_branch": "b",
    "workspace_commit": "2" * 40,
    "workspace_base_commit": "1" * 40,
}


class Rows:
    """Rows of tasks with an attempt each, stored at once."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.attempts: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []

    def add(self, *, failure: str | None = None, proved: bool | None = None, **task: Any) -> str:
        row = {column.name: None for column in task_table.columns if column.nullable}
        row |= task_row(**task) | {"tools": []}
        attempt: dict[str, Any] = {
            "id": new_id("attempt"), "task_id": row["id"], "number": 1, "agent": "claude",
            "status": AttemptStatus.COMPLETED, "mode": "fresh", "warnings": [],
            "started_at": NOW, "failure": failure,
        }  # fmt: skip
        self.tasks.append(row)
        self.attempts.append(attempt)
        if proved is not None:
            self.checks.append(
                {"attempt_id": attempt["id"], "position": 0, "name": "make test", "output": "",
                 "passed": True, "duration_s": 0.1, "command": "make test", "proved": proved}
            )  # fmt: skip
        return str(row["id"])

    def store(self, connection: Connection) -> None:
        connection.execute(task_table.insert(), self.tasks)
        connection.execute(attempts.insert(), self.attempts)
        if self.checks:
            connection.execute(checks.insert(), self.checks)


def kinds(found: list[needs.FoundNeed]) -> list[tuple[str, int]]:
    return [(need.kind.value, len(need.ids)) for need in found]


async def test_each_kind_of_need_is_found_and_those_of_one_cause_are_one(db: Database) -> None:
    rows = Rows()
    asking = rows.add(status=TaskStatus.WAITING, waiting_for="input", created_at=NOW)
    failed = DONE | {"status": TaskStatus.FAILED}
    alone = rows.add(**failed, failure="checks", repository="/src/shop")
    refused = [rows.add(**failed, failure="authentication") for _ in range(3)]
    ready = rows.add(**CHANGED, proved=True)
    unproven = [rows.add(**CHANGED, proved=False), rows.add(**CHANGED)]
    flagged = rows.add(flagged_at=NOW)
    for changes in (
        DONE,  # changed nothing
        CHANGED | {"merged_at": NOW},
        CHANGED | {"archived_at": NOW},
        CHANGED | {"run_id": new_id("run")},
        CHANGED | {"parent_task_id": asking},
        CHANGED | {"seen_at": NOW},
        failed | {"snoozed_until": NOW + timedelta(days=1)},
        {"status": TaskStatus.WAITING, "waiting_for": "rate_limit"},
    ):
        rows.add(**changes)
    await db.write(rows.store)
    found = await db.read(needs.list_needs)
    assert kinds(needs.fold(found)) == [
        ("question", 1), ("failure", 3), ("failure", 1), ("merge", 1), ("look", 2), ("flag", 1)
    ]  # fmt: skip
    stored = {
        task.id: task.need
        for task in await db.read(tasks.list_by_ids, [r["id"] for r in rows.tasks])
    }
    everything = {asking, alone, *refused, ready, *unproven, flagged}
    assert {id_ for id_, need in stored.items() if need} == everything
    assert {need.ids[0]: need.kind for need in await db.read(needs.list_needs)} == {
        id_: stored[id_] for id_ in everything
    }
    assert kinds(await db.read(needs.list_needs, None, "shop")) == [("failure", 1)]
    due = await db.read(needs.find_next_due)
    assert due is not None
    assert due > NOW


async def test_thousands_of_rows_change_no_total_and_are_quick(db: Database) -> None:
    rows = Rows()
    oldest = rows.add(**CHANGED, proved=True, title="Größe of the pitch")
    rows.add(**DONE | {"status": TaskStatus.FAILED}, failure="limit", tags=["night"])
    for number in range(4_999):
        # Every tenth one is a result to look at.
        changes = DONE if number % 10 else CHANGED
        rows.add(**changes, title=f"Quick {number}", repository=f"/src/r{number % 3}")
    await db.write(rows.store)
    found = await db.read(needs.list_needs)
    assert kinds(needs.fold(found)) == [("failure", 1), ("merge", 1), ("look", 500)]
    counts = await db.read(sums.count_since, NOW - timedelta(hours=1), None)
    assert counts == {
        "started": 5_001, "completed": 5_000, "verified": 1, "merged": 0, "failed": 1,
        "cancelled": 0,
    }  # fmt: skip

    async def ids(**wanted: Any) -> tuple[list[str], int]:
        work_filter = WorkFilter.model_validate({"limit": 2} | wanted)
        own = await db.read(filters.build_conditions, "task", work_filter, None)
        task_filter = TaskFilter.model_validate(vars(work_filter))
        page, _ = await db.read(tasks.list_page, task_filter, None, own)
        return [task.id for task in page], await db.read(tasks.count_matches, task_filter, own)

    assert await ids(q="größe PITCH") == ([oldest], 1)
    assert await ids(state=["verified"]) == ([oldest], 1)
    assert (await ids(state=["needs_you"]))[1] == 502
    assert (await ids(state=["failed", "verified"]))[1] == 2
    assert (await ids(repository="/src/r2"))[1] == 1_666
    assert (await ids(kind="loop"))[1] == 0
    assert (await ids(agent="rehearsal"))[1] == 5_001
    assert (await ids(q="100% of_nothing"))[1] == 0
