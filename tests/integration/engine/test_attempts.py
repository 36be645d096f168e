"""A performer that has lost its attempt to another one writes nothing any more."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integration.rows import task_row

from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.outcome import Evidence
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.domain.task import Exit
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.accounts import AgentCandidate
from kapelle.engine.tasks.attempt import ActiveAttempt, ClaimLost
from kapelle.engine.tasks.executor import perform
from kapelle.engine.tasks.queue import TaskQueue, begin_attempts
from kapelle.engine.tasks.settle import conclude
from kapelle.home import Home
from kapelle.runner.process_dir import Launch
from kapelle.runner.runner import Runner
from kapelle.runner.shim import files
from kapelle.secrets.vault import Vault
from kapelle.store import accounts, attempts, events, tasks
from kapelle.store.database import Database
from kapelle.workspaces import Workspaces

_DONE = Evidence(Exit(kind="exited", code=0), success=True, result="mine")


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
async def attempt(parts: Parts) -> ActiveAttempt:
    values = task_row(directory=str(parts.home.root))
    await parts.db.write(tasks.insert, values, [])
    choice = (values["id"], [AgentCandidate("rehearsal", "rehearsal")])
    [attempt_id] = await parts.db.write(begin_attempts, [choice], "this")
    return await ActiveAttempt.load(parts, attempt_id)


@pytest.fixture(params=["taken over", "settled"])
async def lost(
    parts: Parts, attempt: ActiveAttempt, request: pytest.FixtureRequest
) -> ActiveAttempt:
    if request.param == "settled":
        await conclude(parts, attempt.id, _DONE)
    else:
        await parts.db.write(attempts.take_over, "another")
    return attempt


async def stored(attempt: ActiveAttempt) -> tuple[Any, Any]:
    read = attempt.parts.db.read
    return await read(attempts.load_row, attempt.id), await read(tasks.load_row, attempt.task_id)


async def test_what_is_lost_is_not_written_to(parts: Parts, lost: ActiveAttempt) -> None:
    before = (
        await parts.db.read(attempts.load_row, lost.id),
        await parts.db.read(tasks.load_row, lost.task_id),
    )
    told = await parts.db.read(events.load_last_seq)
    with pytest.raises(ClaimLost):
        await lost.update(model="mine")
    with pytest.raises(ClaimLost):
        await lost.update_task(workspace_commit="mine")
    with pytest.raises(ClaimLost):
        await lost.warn("stalled", "mine")
    with pytest.raises(ClaimLost):
        await lost.process("checks/0")
    await conclude(parts, lost.id, Evidence(_DONE.exit, reason="mine"))
    await perform(parts, lost.id)
    assert await stored(lost) == before
    assert await parts.db.read(events.load_last_seq) == told
    assert lost.row["model"] is None


async def test_no_process_is_started_for_what_is_lost(lost: ActiveAttempt, tmp_path: Path) -> None:
    launch = Launch(lost.process_dir, ["touch", "here"], tmp_path, {}, None, 9.0, 1.0, (), "mine")
    with pytest.raises(ClaimLost):
        await lost.execute("agent", launch)
    assert not lost.is_started


async def test_whoever_took_it_over_settles_it(parts: Parts, attempt: ActiveAttempt) -> None:
    await parts.db.write(attempts.take_over, "another")
    parts.performer = "another"
    await conclude(parts, attempt.id, _DONE)
    task = await parts.db.read(tasks.get, attempt.task_id)
    assert (task.status, task.result) == (TaskStatus.COMPLETED, "mine")
    assert task.attempts[-1].status is AttemptStatus.COMPLETED


class Trial:
    """A limit that has ended by its word, and tasks that would work under it."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.ended = parts, datetime.now(UTC) - timedelta(hours=1)

    async def add(self, **values: Any) -> str:
        row = task_row(directory=str(self.parts.home.root), **values)
        await self.parts.db.write(tasks.insert, row, [])
        return str(row["id"])

    async def begin(self, *task_ids: str, model: str | None = None) -> list[str]:
        among = [AgentCandidate("rehearsal", "rehearsal", model)]
        return await self.parts.db.write(begin_attempts, [(id_, among) for id_ in task_ids], "this")

    async def limit(self, account: str) -> None:
        await self.parts.db.write(accounts.pause, account, self.ended, "limited")

    async def ready(self) -> list[str]:
        found = await self.parts.db.read(tasks.list_startable, datetime.now(UTC), 100)
        return [task["id"] for task in found]


@pytest.fixture
def trial(parts: Parts) -> Trial:
    return Trial(parts)


async def test_one_that_tries_puts_off_all_that_are_alike(trial: Trial) -> None:
    await trial.limit("rehearsal")
    first, *others = [await trial.add() for _ in range(5)]
    own = await trial.add(env=["KEY"])
    assert len(await trial.begin(first, others[0])) == 1
    assert await trial.ready() == [own]
    row = await trial.parts.db.read(tasks.load_row, others[-1])
    assert row["reason"] == "another task tries first whether the limit is over"


async def test_a_limit_of_a_model_is_tried_by_that_model(trial: Trial) -> None:
    await trial.limit("rehearsal#slow")
    other, first, second = [await trial.add() for _ in range(3)]
    assert await trial.begin(other, model="fast")
    assert await trial.begin(first, model="slow")
    assert not await trial.begin(second, model="slow")


@pytest.mark.parametrize("ended", [False, True])
async def test_once_the_first_has_tried_for_long_all_go(trial: Trial, ended: bool) -> None:
    """A later one does not hold the others back once more."""
    await trial.limit("rehearsal")
    first, second, third = [await trial.add() for _ in range(3)]
    [tried] = await trial.begin(first)
    long_ago = datetime.now(UTC) - timedelta(minutes=1)
    await trial.parts.db.write(attempts.update, tried, started_at=long_ago)
    if ended:
        failure = Failure(FailureClass.CRASH, "it crashed")
        crash = Exit(kind="signaled", signal=11)
        evidence = Evidence(crash, reason="it crashed", failure=failure)
        await conclude(trial.parts, tried, evidence)
    assert len(await trial.begin(second)) == 1
    assert len(await trial.begin(third)) == 1


async def test_a_task_that_failed_was_not_refused(trial: Trial) -> None:
    await trial.limit("rehearsal")
    first, second, third = [await trial.add() for _ in range(3)]
    [tried] = await trial.begin(first)
    no = Failure(FailureClass.TASK, "no")
    await conclude(trial.parts, tried, Evidence(_DONE.exit, reason="no", failure=no))
    assert len(await trial.begin(second, third)) == 2


async def test_of_an_attempt_that_is_given_up_every_process_is_stopped(
    parts: Parts, attempt: ActiveAttempt
) -> None:
    application = await attempt.process("serve/1")
    queue: Any = SimpleNamespace(_parts=parts)
    await TaskQueue._give_up(queue, attempt.id)
    for directory in (attempt.process_dir, application.directory):
        assert (directory / files.STOP).is_file()
    assert (await stored(attempt))[0]["exit_kind"] == "lost"
