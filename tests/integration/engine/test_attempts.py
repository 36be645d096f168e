"""A performer that has lost its attempt to another one writes nothing any more."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.rows import task_row

from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import Exit
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.accounts import Candidate
from kapelle.engine.tasks.attempt import Attempt, ClaimLost, Findings, Finish
from kapelle.engine.tasks.executor import perform
from kapelle.engine.tasks.queue import begin
from kapelle.engine.tasks.settle import conclude
from kapelle.home import Home
from kapelle.runner.process_dir import Launch
from kapelle.runner.runner import Runner
from kapelle.secrets import Vault
from kapelle.store import attempts, events, tasks
from kapelle.store.database import Database
from kapelle.workspaces import Workspaces

_DONE = Finish(Exit(kind="exited", code=0)), Findings(True, result="mine")


@pytest.fixture
def parts(db: Database, tmp_path: Path) -> Parts:
    home = Home(tmp_path / "home")
    home.create()
    return Parts(
        home=home,
        db=db,
        runner=Runner(home.root),
        workspaces=Workspaces(home.root, "Kapelle", "kapelle@localhost"),
        environ={},
        secret="secret",
        vault=Vault(home),
        performer="this",
    )


@pytest.fixture
async def attempt(parts: Parts) -> Attempt:
    values = task_row(directory=str(parts.home.root))
    await parts.db.write(tasks.insert, values, [])
    choice = (values["id"], [Candidate("rehearsal", "rehearsal")])
    [attempt_id] = await parts.db.write(begin, [choice], "this")
    return await Attempt.load(parts, attempt_id)


@pytest.fixture(params=["taken over", "settled"])
async def lost(parts: Parts, attempt: Attempt, request: pytest.FixtureRequest) -> Attempt:
    if request.param == "settled":
        await conclude(parts, attempt.id, *_DONE)
    else:
        await parts.db.write(attempts.take_over, "another")
    return attempt


async def stored(attempt: Attempt) -> tuple[Any, Any]:
    read = attempt.parts.db.read
    return await read(attempts.row, attempt.id), await read(tasks.row, attempt.task_id)


async def test_what_is_lost_is_not_written_to(parts: Parts, lost: Attempt) -> None:
    before = (
        await parts.db.read(attempts.row, lost.id),
        await parts.db.read(tasks.row, lost.task_id),
    )
    told = await parts.db.read(events.last_seq)
    with pytest.raises(ClaimLost):
        await lost.update(model="mine")
    with pytest.raises(ClaimLost):
        await lost.update_task(workspace_commit="mine")
    with pytest.raises(ClaimLost):
        await lost.warn("stalled", "mine")
    with pytest.raises(ClaimLost):
        await lost.process("checks/0")
    await conclude(parts, lost.id, _DONE[0], Findings(False, "mine"))
    await perform(parts, lost.id)
    assert await stored(lost) == before
    assert await parts.db.read(events.last_seq) == told
    assert lost.row["model"] is None


async def test_no_process_is_started_for_what_is_lost(lost: Attempt, tmp_path: Path) -> None:
    launch = Launch(lost.process_dir, ["touch", "here"], tmp_path, {}, None, 9.0, 1.0, (), "mine")
    with pytest.raises(ClaimLost):
        await lost.execute("agent", launch)
    assert not lost.is_started


async def test_whoever_took_it_over_settles_it(parts: Parts, attempt: Attempt) -> None:
    await parts.db.write(attempts.take_over, "another")
    parts.performer = "another"
    await conclude(parts, attempt.id, *_DONE)
    task = await parts.db.read(tasks.get, attempt.task_id)
    assert (task.status, task.result) == (TaskStatus.COMPLETED, "mine")
    assert task.attempts[-1].status is AttemptStatus.COMPLETED
