"""Wishes about runs and the steps that begin beside them, on both databases."""

import errno
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.integration.rows import task_row

from kapelle.domain.errors import (
    Conflict,
    Forbidden,
    GitError,
    InvalidInput,
    LimitReached,
    Unavailable,
)
from kapelle.domain.ids import new_id
from kapelle.domain.question import QuestionSpec
from kapelle.domain.states import RunStatus, StopCause, Stopper, TaskStatus
from kapelle.engine import questions
from kapelle.engine.children import require_undecided
from kapelle.engine.parts import Parts
from kapelle.engine.runs import control
from kapelle.engine.runs.control import (
    Control,
    RunCancelled,
    RunPaused,
    RunSuperseded,
    RunSuspended,
)
from kapelle.engine.runs.journal import Journal, StepNotReady, StepRequest, no_work, play
from kapelle.engine.tasks import actions
from kapelle.engine.tasks.accounts import AgentCandidate
from kapelle.engine.tasks.queue import begin_attempts
from kapelle.store import questions as asked
from kapelle.store import runs, steps, tasks
from kapelle.store.database import Connection, Database
from kapelle.store.runs import RunClaim


def parts(db: Database) -> Parts:
    """What these need of the parts: the database, and that no check is being made."""
    return cast(Parts, SimpleNamespace(db=db, checking={}))


async def add_run(db: Database, **changes: Any) -> str:
    values = {
        "id": new_id("run"),
        "pattern": "own",
        "title": "a title",
        "spec": {"directory": "/"},
        "directory": "/",
        "status": RunStatus.RUNNING,
        "progress": {},
        "workspace_kind": "in_place",
        "workspace_path": "/",
        "created_at": datetime.now(UTC),
    } | changes
    await db.write(runs.insert, values)
    return str(values["id"])


async def add_task(
    db: Database, run_id: str | None, status: TaskStatus = TaskStatus.QUEUED, **changes: Any
) -> str:
    values = task_row(run_id=run_id, status=status, **changes)
    await db.write(tasks.insert, values, [])
    return str(values["id"])


async def row(db: Database, run_id: str) -> Any:
    return await db.read(runs.load_row, run_id)


@pytest.mark.parametrize(
    ("stop", "raised"), [("pause", RunPaused), ("cancel", RunCancelled), ("abandon", RunCancelled)]
)
async def test_no_step_begins_after_a_wish(
    db: Database, stop: str, raised: type[BaseException]
) -> None:
    """Even if the run had looked for wishes before this one came."""
    run_id = await add_run(db)
    gate = Control(parts(db), run_id)
    journal = Journal(parts(db), run_id, {}, gate)
    await gate.require()
    await db.write(runs.update, run_id, stop=stop)
    with pytest.raises(raised):
        await db.write(journal.store, StepRequest("sleep", "1 s", no_work, position="0001"))
    assert await db.read(steps.load_by_position, run_id) == {}


async def test_what_has_left_off_is_played_again_when_it_may_go_on(db: Database) -> None:
    run_id = await add_run(db)
    gate = Control(parts(db), run_id)
    await db.write(runs.update, run_id, stop="pause")
    await gate.require(still=True)
    with pytest.raises(RunPaused):
        await gate.require()
    await db.write(runs.update, run_id, stop=None)
    with pytest.raises(RunPaused):
        await gate.require(still=True)


@pytest.mark.parametrize(
    "lost", [{"performer": "another"}, {"executions": 2}, {"status": RunStatus.PAUSED}]
)
async def test_an_execution_that_has_lost_its_run_writes_no_step(
    db: Database, lost: dict[str, Any]
) -> None:
    """Neither the end of one that is under way, nor a further one."""
    run_id = await add_run(db, performer="this", executions=1)

    async def lose(_step: StepRequest) -> str:
        await db.write(runs.update, run_id, **lost)
        return "made"

    journal = Journal(parts(db), run_id, {}, Control(parts(db), run_id, RunClaim("this", 1)))
    with pytest.raises(RunSuperseded):
        await play(journal.step(StepRequest("commit", "a commit", lose)))
    with pytest.raises(RunSuperseded):
        await db.write(journal.store, StepRequest("sleep", "1 s", no_work, position="0002"))
    known = await db.read(steps.load_by_position, run_id)
    assert [step["ended_at"] for step in known.values()] == [None]


async def test_an_error_is_of_its_class_again_when_it_is_remembered(db: Database) -> None:
    run_id = await add_run(db)

    async def fail(_step: StepRequest) -> None:
        raise GitError("git refused", hint="Try again.")

    journal = Journal(parts(db), run_id, {}, Control(parts(db), run_id))
    with pytest.raises(GitError):
        await play(journal.step(StepRequest("commit", "a commit", fail)))
    known = await db.read(steps.load_by_position, run_id)
    again = Journal(parts(db), run_id, known, Control(parts(db), run_id))
    with pytest.raises(GitError, match="git refused") as raised:
        await play(again.step(StepRequest("commit", "a commit", fail)))
    assert raised.value.hint == "Try again."


@pytest.mark.parametrize("passing", [Unavailable("it is away"), OSError(errno.ENOSPC, "full")])
async def test_what_passes_is_waited_for_and_not_remembered(
    db: Database, passing: Exception
) -> None:
    run_id = await add_run(db)
    tries = iter([passing, None])

    async def made(_step: StepRequest) -> str:
        if problem := next(tries):
            raise problem
        return "made"

    journal = Journal(parts(db), run_id, {}, Control(parts(db), run_id))
    assert await play(journal.step(StepRequest("commit", "a commit", made))) == "made"
    known = await db.read(steps.load_by_position, run_id)
    assert [(step["result"], step["error"]) for step in known.values()] == [("made", None)]


async def test_what_passes_is_not_waited_for_when_a_person_wants_to_stop(db: Database) -> None:
    run_id = await add_run(db)

    async def away(_step: StepRequest) -> None:
        await db.write(runs.update, run_id, stop="cancel")
        raise Unavailable("it is away")

    journal = Journal(parts(db), run_id, {}, Control(parts(db), run_id))
    with pytest.raises(RunCancelled):
        await play(journal.step(StepRequest("commit", "a commit", away)))


async def test_what_is_stored_at_once_takes_one_transaction(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await add_run(db)
    written: list[Any] = []
    write = db.write

    async def counted(function: Callable[..., Any], *args: Any) -> Any:
        written.append(function)
        return await write(function, *args)

    monkeypatch.setattr(db, "write", counted)
    journal = Journal(parts(db), run_id, {}, Control(parts(db), run_id))

    def end(connection: Connection, made: Any) -> str:
        runs.update(connection, run_id, progress={"made": made})
        return "ended"

    step = journal.step(StepRequest("now", "now", no_work, end=end, data={"a": 1}, at_once=True))
    assert await play(step) == "ended"
    assert len(written) == 1
    (known,) = (await db.read(steps.load_by_position, run_id)).values()
    assert (known["result"], known["data"]) == ("ended", {"a": 1})
    assert known["ended_at"] is not None
    assert (await row(db, run_id))["progress"] == {"made": None}


async def test_what_goes_on_after_all_is_waited_for_again(db: Database) -> None:
    run_id = await add_run(db)
    ends = iter([StepNotReady(), None])

    def end(_connection: Connection, _made: Any) -> str:
        if problem := next(ends):
            raise problem
        return "ended"

    journal = Journal(parts(db), run_id, {}, Control(parts(db), run_id))
    assert await play(journal.step(StepRequest("task", "a task", no_work, end=end))) == "ended"


async def test_what_could_not_begin_is_remembered_too(db: Database) -> None:
    run_id = await add_run(db)

    async def begin(_step: StepRequest) -> None:
        raise LimitReached("it is over")

    async def perform(_step: StepRequest) -> str:
        return "made"

    journal = Journal(parts(db), run_id, {}, Control(parts(db), run_id))
    with pytest.raises(LimitReached):
        await play(journal.step(StepRequest("task", "a task", perform, begin=begin)))
    known = await db.read(steps.load_by_position, run_id)
    assert known["0001"]["kind"] == "task refused"
    again = Journal(parts(db), run_id, known, Control(parts(db), run_id))
    with pytest.raises(LimitReached, match="it is over"):
        await play(again.step(StepRequest("task", "a task", perform)))


async def test_the_others_hear_of_an_answer(db: Database) -> None:
    run_id = await add_run(db)
    gate = Control(parts(db), run_id)
    await db.write(steps.begin, run_id, "0001.1.0001", "ask", "Why?")
    await db.write(asked.ask, run_id, QuestionSpec(text="Why?"), place="0001.1.0001")
    with pytest.raises(RunSuspended):
        await gate.suspend("0001.1.0001")
    await gate.require()
    await db.write(questions.answer, run_id, "because")
    with pytest.raises(RunSuspended):
        await gate.require()


@pytest.mark.parametrize("action", [actions.retry, actions.requeue])
async def test_a_task_that_its_run_has_passed_is_not_done_again_in_its_worktree(
    db: Database, action: Callable[[Connection, str], Any]
) -> None:
    run_id = await add_run(db)
    shared = await add_task(db, run_id, TaskStatus.FAILED, workspace_owner=run_id)
    own = await add_task(db, run_id, TaskStatus.FAILED)
    awaited = await add_task(db, run_id, TaskStatus.FAILED, workspace_owner=run_id)
    for position, task_id in (("0001", shared), ("0002", own), ("0003", awaited)):
        await db.write(steps.begin, run_id, position, "task", "a task", subject=task_id)
    for position in ("0001", "0002"):
        await db.write(steps.end, run_id, position)
    with pytest.raises(Conflict, match="has continued in the worktree"):
        await db.write(action, shared)
    assert (await db.read(tasks.load_row, shared))["status"] == "failed"
    for task_id in (own, awaited):
        await db.write(action, task_id)
        assert (await db.read(tasks.load_row, task_id))["status"] == "queued"


@pytest.mark.parametrize("stopper", [*Stopper, None])
async def test_an_attempt_lifts_only_what_no_person_stopped(
    db: Database, stopper: Stopper | None
) -> None:
    """Whatever the reason says."""
    stopped = {"stopped_by": stopper, "reason": "cancelled by task_0: too slow"}
    task_id = await add_task(db, None, TaskStatus.CANCELLED, **stopped)
    if stopper in {Stopper.ATTEMPT, Stopper.DEPENDENCY}:
        await db.read(require_undecided, task_id)
    else:
        with pytest.raises(Forbidden):
            await db.read(require_undecided, task_id)


async def test_a_pause_brings_no_cancelled_task_back(db: Database) -> None:
    run_id = await add_run(db)
    ending = await add_task(db, run_id, TaskStatus.RUNNING, stop="cancel")
    going = await add_task(db, run_id, TaskStatus.RUNNING)
    cause = StopCause(Stopper.PERSON, "paused")
    await control.pause(parts(db), run_id, cause, now=True)
    assert (await db.read(tasks.load_row, ending))["stop"] == "cancel"
    assert (await db.read(tasks.load_row, going))["stop"] == "requeue"


@pytest.mark.parametrize("text", ["", " \n"])
async def test_an_empty_answer_is_none(db: Database, text: str) -> None:
    run_id = await add_run(db)
    await db.write(steps.begin, run_id, "0001", "ask", "Why?")
    with pytest.raises(InvalidInput, match="The answer is empty"):
        await db.write(questions.answer, run_id, text)
    assert await db.read(steps.find_unanswered, run_id) == {"0001"}


async def test_a_run_that_is_given_up_leaves_nothing_open(db: Database) -> None:
    run_id = await add_run(db)
    inner = await add_run(db, parent_id=run_id, status=RunStatus.QUEUED)
    waiting = await add_task(db, run_id, TaskStatus.QUEUED)
    running = await add_task(db, inner, TaskStatus.RUNNING)
    await db.write(control.give_up, run_id, "an internal error")
    found = await row(db, run_id)
    assert (found["status"], found["reason"]) == ("failed", "an internal error")
    assert (await row(db, inner))["status"] == "cancelled"
    assert (await db.read(tasks.load_row, waiting))["status"] == "cancelled"
    assert (await db.read(tasks.load_row, running))["stop"] == "cancel"


@pytest.mark.parametrize(
    ("values", "begins"),
    [
        ({"stop": None}, True),
        ({"stop": "pause"}, False),
        ({"status": RunStatus.PAUSED}, False),
        ({"status": RunStatus.QUEUED}, False),
        ({"stop": "abandon"}, True),
    ],
)
async def test_a_task_begins_only_while_its_run_goes_on(
    db: Database, values: dict[str, Any], begins: bool
) -> None:
    """Also if the request came after the task was chosen to begin."""
    run_id = await add_run(db)
    task_id = await add_task(db, run_id)
    chosen = await db.read(tasks.list_startable, datetime.now(UTC), 5)
    assert [task["id"] for task in chosen] == [task_id]
    await db.write(runs.update, run_id, **values)
    agents = [AgentCandidate("rehearsal", "rehearsal")]
    assert bool(await db.write(begin_attempts, [(task_id, agents)], "here")) is begins
    await db.write(runs.update, run_id, status=RunStatus.RUNNING, stop=None)
    assert bool(await db.write(begin_attempts, [(task_id, agents)], "here")) is not begins


async def test_promised_calls_count_for_all_the_runs_around(db: Database) -> None:
    outer = await add_run(db, spec={"directory": "/", "max_agent_calls": 2})
    inner = await add_run(db, parent_id=outer)
    budget = Control(parts(db), inner)
    await add_task(db, outer, TaskStatus.QUEUED)
    await add_task(db, inner, TaskStatus.BLOCKED)
    await db.read(budget.require_call)
    # One that ended before an agent was called has cost nothing.
    await add_task(db, inner, TaskStatus.CANCELLED)
    await db.read(budget.require_call)
    await add_task(db, inner, TaskStatus.QUEUED)
    with pytest.raises(LimitReached, match=f"Limit of 2 agent calls reached. .* outer run {outer}"):
        await db.read(budget.require_call)
