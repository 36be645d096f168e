"""Tasks and their statuses in a real database, on SQLite and PostgreSQL alike."""

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from tests.integration.rows import task_row

from kapelle.domain.errors import Conflict, InvalidInput, NotFound
from kapelle.domain.ids import new_id
from kapelle.domain.states import TaskStatus
from kapelle.domain.task import TaskFilter
from kapelle.store import events, ids, runs, tasks
from kapelle.store.database import Connection, Database


def values(**changes: Any) -> dict[str, Any]:
    return task_row(status=TaskStatus.BLOCKED) | changes


async def add(db: Database, *depends_on: str, **changes: Any) -> str:
    row = values(**changes)

    def work(connection: Connection) -> None:
        tasks.insert(connection, row, depends_on)
        tasks.settle_dependencies(connection, row["id"])

    await db.write(work)
    return str(row["id"])


async def status(db: Database, task_id: str) -> TaskStatus:
    return (await db.read(tasks.get, task_id)).status


def change(connection: Connection, task_id: str, status: TaskStatus) -> None:
    tasks.move(connection, tasks.load_row(connection, task_id), status)


async def end(db: Database, task_id: str, how: TaskStatus) -> None:
    await db.write(change, task_id, TaskStatus.RUNNING)
    await db.write(change, task_id, how)


async def test_a_task_without_dependencies_is_queued_at_once(db: Database) -> None:
    assert await status(db, await add(db)) is TaskStatus.QUEUED


async def test_a_task_waits_until_its_last_dependency_has_completed(db: Database) -> None:
    first, second = await add(db), await add(db)
    third = await add(db, first, second)
    assert await status(db, third) is TaskStatus.BLOCKED
    await end(db, first, TaskStatus.COMPLETED)
    task = await db.read(tasks.get, third)
    assert task.status is TaskStatus.BLOCKED
    assert task.reason == f"waits for {second}"
    await end(db, second, TaskStatus.COMPLETED)
    assert await status(db, third) is TaskStatus.QUEUED


async def test_a_failed_dependency_cancels_a_chain_of_a_thousand_with_the_reason(
    db: Database,
) -> None:
    first = await add(db)
    chain = [first, *(new_id("task") for _ in range(1000 if db.is_sqlite else 100))]

    def work(connection: Connection) -> None:
        for before, task_id in pairwise(chain):
            tasks.insert(connection, values(id=task_id), (before,))
            tasks.settle_dependencies(connection, task_id)

    await db.write(work)
    await end(db, first, TaskStatus.FAILED)
    task = await db.read(tasks.get, chain[-1])
    assert task.status is TaskStatus.CANCELLED
    assert task.reason
    assert "its dependency" in task.reason


async def test_the_run_policy_starts_a_task_although_its_dependency_failed(db: Database) -> None:
    first = await add(db)
    second = await add(db, first, deps_policy="run")
    await end(db, first, TaskStatus.FAILED)
    assert await status(db, second) is TaskStatus.QUEUED


async def test_a_dependency_that_failed_before_cancels_a_new_task(db: Database) -> None:
    first = await add(db)
    await end(db, first, TaskStatus.FAILED)
    assert await status(db, await add(db, first)) is TaskStatus.CANCELLED


async def test_a_circle_of_dependencies_is_refused_and_named(db: Database) -> None:
    first = await add(db)
    second = await add(db, first)
    with pytest.raises(InvalidInput, match=f"{first} → {second} → {first}"):
        await db.write(tasks.replace_dependencies, first, [second])
    assert (await db.read(tasks.get, first)).depends_on == []


async def test_a_transition_that_is_not_in_the_table_is_refused(db: Database) -> None:
    task_id = await add(db)
    with pytest.raises(Conflict, match="queued and cannot become completed"):
        await db.write(change, task_id, TaskStatus.COMPLETED)


async def test_tasks_start_by_priority_and_then_by_age(db: Database) -> None:
    late, urgent, normal = await add(db, priority=2), await add(db, priority=0), await add(db)
    ready = await db.read(tasks.list_startable, datetime.now(UTC), 10)
    assert [task["id"] for task in ready] == [urgent, normal, late]


async def test_a_delayed_task_is_not_ready_before_its_time(db: Database) -> None:
    await add(db, not_before=datetime(2100, 1, 1, tzinfo=UTC))
    assert await db.read(tasks.list_startable, datetime.now(UTC), 10) == []
    assert await db.read(tasks.find_next_due, now=datetime.now(UTC)) == datetime(
        2100, 1, 1, tzinfo=UTC
    )


async def test_any_unique_prefix_of_an_id_finds_its_task(db: Database) -> None:
    task_id = await add(db)
    assert (await db.read(tasks.get, task_id[:-3])).id == task_id
    assert (await db.read(tasks.get, task_id.removeprefix("task_")[:-3].upper())).id == task_id
    await add(db)
    with pytest.raises(InvalidInput, match="Several"):
        await db.read(tasks.get, task_id[: len("task_") + 4])
    for text in ("task_%", "nonsense!", "", "task_zzzz"):
        with pytest.raises(NotFound):
            await db.read(tasks.get, text)


async def test_an_end_of_an_id_finds_its_task_and_one_that_several_have_names_them(
    db: Database,
) -> None:
    task_id = await add(db)
    for text in (task_id[-4:], task_id[-5:].upper(), f"task_{task_id[-9:]}"):
        assert (await db.read(tasks.get, text)).id == task_id
    # No new one has the same five letters at its end.
    twin = f"{task_id[:-5]}{'y' if task_id[-5] == 'x' else 'x'}{task_id[-4:]}"
    await add(db, id=twin, title="The twin")
    with pytest.raises(InvalidInput) as several:
        await db.read(tasks.get, task_id[-4:])
    assert f"{twin[-5:]} (The twin)" in several.value.message
    assert task_id[-5:] in several.value.message
    assert (await db.read(tasks.get, twin[-5:])).id == twin


async def test_what_is_the_id_of_something_else_is_told_with_the_command(db: Database) -> None:
    task_id = await add(db)
    for text in (task_id, task_id[-5:]):
        with pytest.raises(NotFound) as wrong:
            await db.read(runs.get, text)
        assert wrong.value.hint == f"It is a task: kapelle status {text}"


async def test_no_new_id_ends_like_another_one(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = await add(db)
    made = iter([f"run_{'0' * 21}{task_id[-5:]}", f"run_{'0' * 26}"])
    monkeypatch.setattr(ids, "new_id", lambda kind: next(made))
    assert await db.read(ids.make_unused_id, "run") == f"run_{'0' * 26}"


async def test_pages_lead_from_the_newest_to_the_oldest_without_gap(db: Database) -> None:
    made = [await add(db, tags=["odd"] if n % 2 else []) for n in range(7)]
    seen: list[str] = []
    wanted: TaskFilter | None = TaskFilter(limit=3)
    while wanted:
        page, cursor = await db.read(tasks.list_page, wanted)
        seen += [task.id for task in page]
        wanted = TaskFilter(limit=3, cursor=cursor) if cursor else None
    assert seen == made[::-1]
    tagged, _ = await db.read(tasks.list_page, TaskFilter(tag="odd"))
    assert [task.id for task in tagged] == made[5::-2]


async def test_every_change_of_status_is_in_the_history_in_order(db: Database) -> None:
    task_id = await add(db)
    await end(db, task_id, TaskStatus.COMPLETED)
    found = await db.read(events.list_after, 0, task_id=task_id)
    assert [event.kind for event in found] == ["task.queued", "task.running", "task.completed"]
    assert [event.seq for event in found] == sorted({event.seq for event in found})
    rest = await db.read(events.list_after, found[0].seq, task_id=task_id)
    assert rest == found[1:]


async def test_a_failing_transaction_leaves_nothing_behind(db: Database) -> None:
    row = values()

    def work(connection: Connection) -> None:
        tasks.insert(connection, row, [])
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        await db.write(work)
    with pytest.raises(NotFound):
        await db.read(tasks.get, row["id"])


async def test_a_page_of_large_prompts_is_shorter(db: Database) -> None:
    made = [await add(db, prompt="x" * 1_000_000) for _ in range(6)]
    page, cursor = await db.read(tasks.list_page, TaskFilter())
    assert ([task.id for task in page], cursor) == (made[:1:-1], made[2])
    page, cursor = await db.read(tasks.list_page, TaskFilter(cursor=cursor))
    assert ([task.id for task in page], cursor) == (made[1::-1], None)


async def test_a_cancelled_dependency_reaches_a_task_once_by_whatever_way(db: Database) -> None:
    first = await add(db)
    second = await add(db, first)
    third = await add(db, first, second)
    gone = await add(db)
    await db.write(change, gone, TaskStatus.CANCELLED)

    def work(connection: Connection) -> None:
        change(connection, first, TaskStatus.BLOCKED)
        tasks.replace_dependencies(connection, first, [gone])
        tasks.settle_dependencies(connection, first)

    await db.write(work)
    for task_id in (first, second, third):
        assert await status(db, task_id) is TaskStatus.CANCELLED


async def test_text_that_no_database_can_keep_is_kept_as_far_as_possible(db: Database) -> None:
    task_id = await add(db)
    await db.write(tasks.update, task_id, result="a\0b\udc80ü")
    assert (await db.read(tasks.get, task_id)).result == "a\ufffdb?ü"
