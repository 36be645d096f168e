"""How a run is shown whose tasks ask a person something, on both databases."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.integration.engine.test_run_wishes import add_run, add_task

from kapelle.domain.states import TaskStatus
from kapelle.engine.parts import Stage
from kapelle.engine.runs.start import Starter
from kapelle.home import Home
from kapelle.service.runs import Runs
from kapelle.store.database import Database


@pytest.fixture
def use(db: Database, tmp_path: Path) -> Runs:
    stage = SimpleNamespace(db=db, home=Home(tmp_path / "home"))
    return Runs(cast(Stage, stage), cast(Starter, None))


async def ask(db: Database, run_id: str) -> None:
    asked = {"waiting_for": "input", "reason": "It asks: Why?"}
    await add_task(db, run_id, TaskStatus.WAITING, **asked)


@pytest.mark.parametrize(
    ("pattern", "spec", "waiting_for"),
    [
        ("loop", {"prompt": "x", "until": ["true"]}, "input"),
        ("team", {"goal": "x", "ask": True}, "input"),
        ("team", {"goal": "x", "ask": False}, None),
        ("team", {"goal": "x"}, None),
        ("one that is gone", {}, "input"),
    ],
)
async def test_a_run_that_waits_for_nobody_is_never_shown_as_waiting(
    db: Database, use: Runs, pattern: str, spec: dict[str, Any], waiting_for: str | None
) -> None:
    run_id = await add_run(db, pattern=pattern, spec={"directory": "/", **spec})
    await ask(db, run_id)
    assert (await use.get(run_id)).waiting_for == waiting_for


async def test_a_run_goes_on_while_one_of_its_tasks_does(db: Database, use: Runs) -> None:
    run_id = await add_run(db, pattern="loop")
    await ask(db, run_id)
    working = await add_task(db, run_id, TaskStatus.RUNNING)
    run = await use.get(run_id)
    assert run.waiting_for is None
    assert f"{working} is running" in str(run.reason)
