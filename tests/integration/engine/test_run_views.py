"""How a run is shown whose tasks ask a person something, on both databases."""

from typing import Any, cast

import pytest
from tests.integration.engine.test_run_wishes import add_run, add_task, stage

from kapelle.domain.states import TaskStatus
from kapelle.engine.runs.start import Starter
from kapelle.service.runs import Runs
from kapelle.store.database import Database


async def ask(db: Database, run_id: str) -> None:
    asked = {"waiting_for": "input", "reason": "It asks: Why?"}
    await add_task(db, run_id, TaskStatus.WAITING, **asked)


@pytest.mark.parametrize(
    ("pattern", "spec", "waiting_for"),
    [
        ("loop", {}, "input"),
        ("team", {"ask": True}, "input"),
        ("team", {"ask": False}, None),
        ("team", {}, None),
    ],
)
async def test_a_run_that_waits_for_nobody_is_never_shown_as_waiting(
    db: Database, pattern: str, spec: dict[str, Any], waiting_for: str | None
) -> None:
    use = Runs(stage(db), cast(Starter, None))
    run_id = await add_run(db, pattern=pattern, spec={"directory": "/", **spec})
    await ask(db, run_id)
    assert (await use.get(run_id)).waiting_for == waiting_for


async def test_a_run_goes_on_while_one_of_its_tasks_does(db: Database) -> None:
    use = Runs(stage(db), cast(Starter, None))
    run_id = await add_run(db, pattern="loop")
    await ask(db, run_id)
    working = await add_task(db, run_id, TaskStatus.RUNNING)
    run = await use.get(run_id)
    assert run.waiting_for is None
    assert f"{working} is running" in str(run.reason)
