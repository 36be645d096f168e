"""The Python API of runs and schedules against a real daemon."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kapelle as api
from tests.e2e.support.ensembles import YES, answer, play, rule, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git

OWN = '''
from kapelle.patterns import Context, PatternSpec, pattern

class Spec(PatternSpec):
    words: list[str]

@pattern("own", spec=Spec)
async def own(ctx: Context, spec: Spec) -> dict:
    """Counts words."""
    return {"count": len(spec.words)}
'''


def connect(kapelle: Instance) -> api.Client:
    return api.connect(home=kapelle.home.root, start=False)


def writes(name: str) -> str:
    return play({"write": name, "content": "1"})


def test_a_pipeline_from_its_steps_to_the_archive(
    kapelle: Instance, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    with connect(kapelle) as client:
        second = api.StepSpec(prompt=writes("b"), name="second", checks=["test -f a"])
        run = client.runs.start(
            "pipeline", steps=[writes("a"), second], agent="rehearsal", title="Both"
        )
        run = client.runs.wait(run.id)
        assert (run.status, run.title, run.directory) == ("completed", "Both", str(repository))
        assert len(client.runs.result(run.id)["steps"]) == 2
        tasks = [step.subject for step in client.runs.steps(run.id) if step.kind == "task"]
        events = list(client.events(after=0, run_id=run.id, follow=False))
        assert {event.task_id for event in events} >= set(tasks)
        assert events[-1].kind == "run.completed"
        assert client.runs.diff(run.id).files == ["a", "b"]
        assert b"+1" in client.runs.patch(run.id)
        assert [found.id for found in client.runs.list(pattern="pipeline")] == [run.id]
        assert client.runs.archive(run.id).archived_at is not None
        assert list(client.runs.list()) == []


def test_a_whole_spec_may_be_changed_by_keywords(kapelle: Instance, repository: Path) -> None:
    steps = [api.StepSpec(prompt="one"), api.StepSpec(prompt="two")]
    spec = api.PipelineSpec(directory=str(repository), steps=steps, title="Old")
    with connect(kapelle) as client:
        run = client.runs.start("pipeline", spec, title="New", agent="rehearsal")
        assert (run.title, run.spec["agent"]) == ("New", "rehearsal")
        assert client.runs.wait(run.id).status == "completed"
        again = client.runs.start("pipeline", spec, agent="rehearsal", idempotency_key="k")
        same = client.runs.start("pipeline", spec, agent="rehearsal", idempotency_key="k")
        assert again.id == same.id != run.id
        client.runs.wait(same.id)


async def test_loops_and_choices_without_blocking(kapelle: Instance, repository: Path) -> None:
    grow = play({"run": "echo x >> n"})
    async with api.connect_async(home=kapelle.home.root, start=False) as client:
        loop = await client.runs.start(
            "loop",
            prompt=grow,
            until=["test $(wc -l < n) = 3"],
            agent="rehearsal",
            directory=repository,
        )
        choice = await client.runs.start(
            "best-of",
            prompt=grow,
            count=2,
            agent="rehearsal",
            eval="wc -l < n",
            direction="maximize",
            directory=repository,
        )
        loop, choice = await asyncio.gather(client.runs.wait(loop.id), client.runs.wait(choice.id))
        assert (loop.status, choice.status) == ("completed", "completed"), (loop, choice)
        assert (await client.runs.diff(loop.id)).patch.count("+x") == 3
        merged = await client.runs.merge(loop.id)
        assert (merged.id, merged.base) == (loop.id, "main")
        assert (await client.runs.get(loop.id)).merged_at is not None
    assert git(repository, "show", "main:n") == "x\nx\nx"


def test_a_team_asks_and_goes_on_with_the_answer(kapelle: Instance, repository: Path) -> None:
    intake = {"success_criteria": ["done"], "questions": ["Which colour?"]}
    plan = {"subgoals": [{"id": "only", "title": "the part", "task": "WORK"}]}
    with_playbook(
        kapelle,
        rule("You prepare", answer(intake))
        + rule("You plan[\\s\\S]*Which colour\\? blue", answer(plan))
        + rule("You review", answer(YES))
        + rule("^WORK", {"write": "w.txt", "content": "1\n"}),
    )
    with connect(kapelle) as client:
        run = client.runs.start(
            "team", goal="Build it", ask=True, agent="rehearsal", directory=repository
        )
        run = client.runs.wait(run.id)
        assert (run.status, run.waiting_for) == (api.RunStatus.WAITING, "input")
        (question,) = run.questions
        assert question.text == "Which colour?"
        with pytest.raises(api.Conflict, match="has no result yet"):
            client.runs.result(run.id)
        client.runs.answer(run.id, "blue", token=question.token)
        assert client.runs.wait(run.id).status == "completed"


def test_the_course_of_a_run_can_be_changed(kapelle: Instance, repository: Path) -> None:
    slow = play({"run": "sleep 60"})
    with connect(kapelle) as client:
        run = client.runs.start(
            "pipeline", steps=[slow, "then"], agent="rehearsal", directory=repository
        )
        first = _first_task(client, run.id)
        client.runs.pause(run.id, now=True)
        assert client.runs.wait(run.id).status == "paused"
        assert client.runs.resume(run.id).status in {"queued", "running"}
        assert client.runs.wait(run.id, timeout_s=0.5).status == "running"
        client.runs.cancel(run.id, "enough", with_tasks=True)
        ended = client.runs.wait(run.id)
        assert (ended.status, ended.reason) == ("cancelled", "enough")
        assert client.tasks.wait(first).status == "cancelled"


def _first_task(client: api.Client, run_id: str) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for step in client.runs.steps(run_id):
            if step.subject and client.tasks.get(step.subject).status == "running":
                return step.subject
        time.sleep(0.05)
    raise AssertionError("no task ran")


def test_a_pattern_of_ones_own_is_listed_and_started(kapelle: Instance, repository: Path) -> None:
    (repository / ".kapelle" / "patterns").mkdir(parents=True)
    (repository / ".kapelle" / "patterns" / "own.py").write_text(OWN, encoding="utf-8")
    where: dict[str, Any] = {"directory": repository, "agent": "rehearsal"}
    with connect(kapelle) as client:
        found = {pattern.name: pattern for pattern in client.patterns(repository)}
        assert found["own"].summary == "Counts words."
        assert "words" in found["own"].spec_schema["properties"]
        assert "own" not in {pattern.name for pattern in client.patterns()}
        run = client.runs.start("own", words=["a", "b"], **where)
        client.runs.wait(run.id)
        assert client.runs.result(run.id) == {"count": 2}
        with pytest.raises(api.InvalidInput, match="words"):
            client.runs.start("own", where)
        with pytest.raises(api.KapelleError, match="nothing"):
            client.runs.start("nothing", directory=repository)
        with pytest.raises(api.InvalidInput, match="a loop needs a condition"):
            client.runs.start("loop", prompt="x", directory=repository)


def test_a_schedule_from_its_trigger_to_its_end(kapelle: Instance, tmp_path: Path) -> None:
    with connect(kapelle) as client:
        spec = api.TaskSpec(prompt="hello", directory=str(tmp_path), agent="rehearsal")
        nightly = client.schedules.create(
            "task", spec, cron="0 3 * * *", timezone="Europe/Berlin", title="Nightly"
        )
        assert (nightly.kind, nightly.title, nightly.status) == ("task", "Nightly", "active")
        firing = client.schedules.run(nightly.id)
        started = _started(client, nightly.id) if firing.subject is None else firing.subject
        assert client.tasks.wait(started).schedule_id == nightly.id
        assert [found.subject for found in client.schedules.firings(nightly.id)] == [started]
        assert client.schedules.pause(nightly.id).status == "paused"
        assert client.schedules.resume(nightly.id).status == "active"
        at = datetime.now(UTC) + timedelta(days=1)
        fields = {"prompt": "x", "agent": "rehearsal", "directory": tmp_path}
        once = client.schedules.create("task", fields, at=at, missed="catchup")
        assert (once.at, once.missed) == (at, "catchup")
        assert [found.id for found in client.schedules.list()] == [once.id, nightly.id]
        assert client.schedules.cancel(nightly.id, with_work=True).status == "cancelled"
        assert client.schedules.get(nightly.id).ended_at is not None
        client.schedules.cancel(once.id)
        with pytest.raises(api.InvalidInput, match="cron"):
            client.schedules.create("task", spec, cron="never")


def _started(client: api.Client, schedule_id: str) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        subject = next(client.schedules.firings(schedule_id)).subject
        if subject:
            return subject
        time.sleep(0.05)
    raise AssertionError("nothing was started")
