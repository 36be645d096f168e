"""Processes as the database knows them before they begin, and what was verified."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.integration.engine.test_run_control import add_run
from tests.integration.rows import task_row

from kapelle.domain.ids import new_id
from kapelle.domain.states import RunStatus, TaskStatus
from kapelle.domain.task import CheckResult
from kapelle.store import attempts, processes, runs, steps, tasks
from kapelle.store.database import Database

_CHECK = CheckResult(
    name="make test", passed=True, output="fine", duration_s=1.5, command="make test", exit_code=0,
    commit="c" * 40, directory="/work", out_sha256="a" * 64, err_sha256="b" * 64,
)  # fmt: skip


async def add_attempt(db: Database, **changes: Any) -> tuple[str, str]:
    """A completed task with an attempt."""
    task = task_row(status=TaskStatus.COMPLETED, **changes)
    await db.write(tasks.insert, task, [])
    values = {"id": new_id("attempt"), "task_id": task["id"], "number": 1, "status": "completed"}
    values |= {"mode": "fresh", "agent": "x", "warnings": [], "started_at": datetime.now(UTC)}
    await db.write(attempts.insert, **values)
    return task["id"], values["id"]


async def test_a_process_is_begun_once_with_a_secret_of_its_own(db: Database) -> None:
    first = await db.write(processes.begin, "attempt_1", "checks/0")
    assert await db.write(processes.begin, "attempt_1", "checks/0") == first
    others = [
        await db.write(processes.begin, "attempt_1", "setup"),
        await db.write(processes.begin, "attempt_2", "setup"),
    ]
    assert len({row["secret"] for row in (first, *others)}) == 3
    assert await db.read(processes.load_directories) == {
        row["directory"] for row in (first, *others)
    }
    assert set(await db.read(processes.load_by_name, "attempt_1")) == {"checks/0", "setup"}
    both = ["attempt_1", "attempt_2"]
    assert await db.read(processes.find_owners, [first["directory"], "unknown"]) == {"attempt_1"}
    assert not await db.read(processes.has_succeeded, both, "setup")
    await db.write(processes.record_success, "attempt_2", "setup")
    assert await db.read(processes.has_succeeded, both, "setup")
    assert not await db.read(processes.has_succeeded, both[:1], "setup")
    await db.write(processes.delete, "attempt_1")
    assert await db.read(processes.load_directories) == {others[1]["directory"]}


async def test_every_attempt_has_a_secret(db: Database) -> None:
    rows = [await db.read(attempts.load_row, (await add_attempt(db))[1]) for _ in range(2)]
    assert [len(bytes.fromhex(row["secret"])) for row in rows] == [32, 32]
    assert rows[0]["secret"] != rows[1]["secret"]


async def test_a_check_is_kept_with_what_it_was_made_on(db: Database) -> None:
    task_id, attempt_id = await add_attempt(db)
    assert (await db.read(tasks.get, task_id)).verified is False
    changed = CheckResult(name="diff_not_empty", passed=True, output="", duration_s=0.1)
    await db.write(attempts.add_check, attempt_id, 0, changed)
    assert (await db.read(tasks.get, task_id)).verified is False  # nonsense is a change, too
    await db.write(attempts.add_check, attempt_id, 0, _CHECK)
    task = await db.read(tasks.get, task_id)
    assert (task.checks, task.verified) == ([_CHECK], True)


@pytest.mark.parametrize("inside", [False, True])
async def test_a_run_is_verified_by_its_own_checks_or_those_of_its_tasks(
    db: Database, inside: bool
) -> None:
    run_id = await add_run(db, status=RunStatus.COMPLETED)
    child = await add_run(db, parent_id=run_id, status=RunStatus.COMPLETED)
    await db.write(steps.begin, run_id, "0001", "check", "")
    _, attempt_id = await add_attempt(db, run_id=child)
    assert (await db.read(runs.get, run_id)).verified is False
    changed = CheckResult(name="diff_not_empty", passed=True, output="", duration_s=0.1)
    if inside:
        made = {"failed": _CHECK.model_copy(update={"passed": False}), "changed": changed}
        for check in made.values():
            await db.write(attempts.add_check, attempt_id, 0, check)
            assert (await db.read(runs.get, run_id)).verified is False
        await db.write(attempts.add_check, attempt_id, 0, _CHECK)
    else:
        blind = _CHECK.model_copy(update={"proved": False})
        for position, check in (("0002", blind), ("0003", changed), ("0004", _CHECK)):
            assert (await db.read(runs.get, run_id)).verified is False
            result = [check.model_dump(mode="json")]
            await db.write(steps.begin, run_id, position, "check", "make test")
            await db.write(steps.end, run_id, position, result)
    assert (await db.read(runs.get, run_id)).verified is True
    await db.write(runs.update, run_id, status=RunStatus.FAILED)
    assert (await db.read(runs.get, run_id)).verified is None
