"""How a run is shown whose tasks ask a person something, on both databases."""

import pytest
import sqlalchemy as sa
from tests.integration.engine.test_run_control import add_run, add_task, parts

from kapelle.domain.run import RunFilter
from kapelle.domain.states import TaskStatus
from kapelle.service.caller import OWNER
from kapelle.service.runs import RunService
from kapelle.store.database import Database


async def ask(db: Database, run_id: str) -> None:
    asked = {"waiting_for": "input", "reason": "It asks: Why?", "question": "Why?"}
    await add_task(db, run_id, TaskStatus.WAITING, **asked)


@pytest.mark.parametrize(
    ("may_ask", "waiting_for", "question"), [(True, "input", "Why?"), (False, None, None)]
)
async def test_a_run_that_waits_for_nobody_is_never_shown_as_waiting(
    db: Database, may_ask: bool, waiting_for: str | None, question: str | None
) -> None:
    use = RunService(parts(db))
    run_id = await add_run(db, may_ask=may_ask)
    await ask(db, run_id)
    run = await use.get(run_id)
    assert (run.waiting_for, run.question) == (waiting_for, question)
    assert may_ask == (" asks: Why? (kapelle answer " in str(run.reason))


async def test_a_run_goes_on_while_one_of_its_tasks_does(db: Database) -> None:
    use = RunService(parts(db))
    run_id = await add_run(db, pattern="loop")
    await ask(db, run_id)
    await add_task(db, run_id, TaskStatus.RUNNING)
    run = await use.get(run_id)
    assert run.waiting_for is None
    assert run.reason == "a title is waiting: It asks: Why?, a title is running"


async def test_a_run_says_why_its_task_does_not_begin(db: Database) -> None:
    use = RunService(parts(db), lambda: "the machine is busy")
    run_id = await add_run(db, pattern="loop")
    await add_task(db, run_id, TaskStatus.QUEUED)
    assert (await use.get(run_id)).reason == "a title is queued: the machine is busy"


async def test_a_page_takes_no_more_queries_than_one_run_has(db: Database) -> None:
    use, made = RunService(parts(db)), list[str]()
    parent = await add_run(db, status="completed")
    await add_run(db, status="completed", parent_id=parent)
    await add_task(db, await add_run(db), TaskStatus.RUNNING)
    sa.event.listen(db.engine, "before_cursor_execute", lambda *told: made.append(told[2]))
    first = await use.page(RunFilter(limit=3, nested=True), OWNER)
    taken = len(made)
    for _ in range(3):
        await add_run(db, status="completed", parent_id=parent)
        await add_task(db, await add_run(db), TaskStatus.RUNNING)
    made.clear()
    second = await use.page(RunFilter(nested=True), OWNER)
    assert (len(first.runs), len(second.runs)) == (3, 9)
    assert len(made) == taken
