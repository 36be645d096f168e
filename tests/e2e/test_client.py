"""The Python API against a real daemon: tasks from end to end in both flavours, and errors."""

import asyncio
import threading
from pathlib import Path

import pytest

import kapelle as api
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git

WRITES = """Play.
```rehearsal
[[do]]
write = "a.txt"
content = "a"
[[do]]
result = "done"
```"""
SLOW = "Play.\n```rehearsal\n[[do]]\nsleep = 60\n```"


def connect(kapelle: Instance) -> api.Client:
    return api.connect(home=kapelle.home.root, start=False)


def connect_async(kapelle: Instance) -> api.AsyncClient:
    return api.connect_async(home=kapelle.home.root, start=False)


def test_a_task_from_its_prompt_to_the_merge(
    kapelle: Instance, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    with connect(kapelle) as client:
        task = client.tasks.run(WRITES, agent="rehearsal", checks=["test -f a.txt"], tags=["x"])
        assert task.directory == str(repository)
        task = client.tasks.wait(task.id)
        assert (task.status, task.result) == (api.TaskStatus.COMPLETED, "done")
        assert [check.passed for check in task.checks] == [True]
        assert client.tasks.get(task.id[:20]) == task
        assert client.tasks.diff(task.id).files == ["a.txt"]
        assert b"+a" in client.tasks.patch(task.id)
        assert client.tasks.merge(task.id).base == "main"
        assert client.tasks.archive(task.id).archived_at is not None
        assert [found.id for found in client.tasks.list(archived=True, tag="x")] == [task.id]
        assert list(client.tasks.list()) == []
    assert git(repository, "show", "main:a.txt") == "a"


def test_what_agents_and_people_share(
    kapelle: Instance, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    with connect(kapelle) as client:
        note = client.notes.put("plan/one", "first", "project:x")
        assert client.notes.put("plan/one", "second", "project:x", expected_version=note.version)
        with pytest.raises(api.Conflict):
            client.notes.put("plan/one", "late", "project:x", expected_version=note.version)
        assert client.notes.get("plan/one", "project:x").value == "second"
        assert client.notes.watch("plan/one", scope="project:x", equals="second").met
        assert not client.notes.watch("none", scope="project:x", timeout_s=0).met
        assert [one.key for one in client.notes.list("plan/", "project:x")] == ["plan/one"]
        assert client.notes.delete("plan/one", "project:x").deleted

        assert client.locks.take(["src"], reason="by hand").held
        assert [one.path for one in client.locks.list(".")] == ["src"]
        assert [one.status for one in client.locks.release(["src"])] == ["released"]

        learning = client.learnings.add("Ports", "The tests need port 7070.", tags=["ci"])
        assert client.learnings.edit(learning.id, title="A port").title == "A port"
        assert client.learnings.get(learning.id).project == str(repository)
        assert [one.id for one in client.learnings.list("port", directory=".")] == [learning.id]
        assert [hit.kind for hit in client.search("7070").hits] == ["learning"]
        assert client.learnings.delete(learning.id).id == learning.id

        asks = 'Play.\n```rehearsal\n[[do]]\nask = "Which?"\n```'
        task = client.tasks.wait(client.tasks.run(asks, agent="rehearsal").id)
        [question] = [one for one in client.questions() if one.task_id == task.id]
        assert client.answer(question.token, "the left one").answer == "the left one"
        assert client.tasks.say(task.id, "and mind the gap").told in {"now", "next_attempt"}


async def test_the_same_without_blocking(kapelle: Instance, repository: Path) -> None:
    async with connect_async(kapelle) as client:
        started = [
            await client.tasks.run(WRITES, agent="rehearsal", directory=repository)
            for _ in range(3)
        ]
        ended = await asyncio.gather(*(client.tasks.wait(task.id) for task in started))
        assert [task.result for task in ended] == ["done"] * 3
        listed = [task.id async for task in client.tasks.list(status="completed")]
        assert listed == [task.id for task in reversed(started)]
        assert (await client.tasks.diff(ended[0].id)).files == ["a.txt"]
        lines = [line async for line in client.tasks.transcript(ended[0].id, follow=True)]
        assert (lines[-1].kind, lines[-1].text) == ("result", "done")
        assert (await client.instance()).home == str(kapelle.home.root)


def test_a_list_goes_on_over_its_pages(kapelle: Instance, tmp_path: Path) -> None:
    ids = [kapelle.submit("x", tmp_path, depends_on=[]) for _ in range(60)]
    with connect(kapelle) as client:
        assert [task.id for task in client.tasks.list()] == ids[::-1]
        first = next(client.tasks.list())
        assert first.id == ids[-1]
        for task_id in ids:
            client.tasks.wait(task_id)


def test_the_course_of_a_task_can_be_changed(kapelle: Instance, tmp_path: Path) -> None:
    with connect(kapelle) as client:
        task = client.tasks.run(SLOW, agent="rehearsal", directory=tmp_path)
        later = client.tasks.run(
            "later", agent="rehearsal", directory=tmp_path, depends_on=[task.id]
        )
        assert later.status == "blocked"
        assert client.tasks.depend(later.id, []).depends_on == []
        assert client.tasks.wait(later.id).status == "completed"
        assert client.tasks.wait(task.id, timeout_s=0).status in {"queued", "running"}
        client.tasks.cancel(task.id, "enough")
        assert client.tasks.wait(task.id).reason == "enough"
        again = client.tasks.resume(later.id, "go on", max_turns=7)
        assert again.max_turns == 7
        assert len(client.tasks.wait(later.id).attempts) == 2
        assert client.tasks.retry(later.id).status in {"queued", "running"}
        client.tasks.wait(later.id)
        client.tasks.requeue(later.id)
        assert len(client.tasks.wait(later.id).attempts) == 4


def test_output_is_read_to_its_end(kapelle: Instance, tmp_path: Path) -> None:
    part = 'Play.\n```rehearsal\n[[do]]\nflood = 9000000\n[[do]]\nstderr = "é"\n```'
    with connect(kapelle) as client:
        blocked = client.tasks.run("x", agent="rehearsal", directory=tmp_path)
        task = client.tasks.wait(client.tasks.run(part, agent="rehearsal", directory=tmp_path).id)
        assert client.tasks.output(task.id).encode() == kapelle.output(task.id)
        assert len(client.tasks.output(task.id)) > 9_000_000
        assert client.tasks.output(task.id, stream="err", attempt=1) == "é\n"
        client.tasks.wait(blocked.id)


def test_errors_have_the_classes_of_their_codes(kapelle: Instance, tmp_path: Path) -> None:
    with connect(kapelle) as client:
        with pytest.raises(api.NotFound) as missing:
            client.tasks.get("zzzz")
        assert missing.value.hint == "kapelle list shows the ids."
        with pytest.raises(api.AgentNotFound, match="There is no agent 'nobody'"):
            client.tasks.run("x", agent="nobody", directory=tmp_path)
        with pytest.raises(api.InvalidInput, match="agnt is not a known field"):
            client.tasks.run("x", agnt="rehearsal", directory=tmp_path)
        with pytest.raises(api.InvalidInput, match="the prompt is empty"):
            client.tasks.run(" ", directory=tmp_path)
        with pytest.raises(api.InvalidInput, match="timeout_s"):
            client.tasks.run("x", timeout_s=float("nan"), directory=tmp_path)
        task = client.tasks.wait(client.tasks.run("x", agent="rehearsal", directory=tmp_path).id)
        with pytest.raises(api.Conflict, match="completed already"):
            client.tasks.cancel(task.id)
        with pytest.raises(api.KapelleError) as refused:
            client.tasks.merge(task.id)
        assert (refused.value.code, refused.value.http_status) == ("conflict", 409)


def test_over_tcp_a_token_is_needed(
    kapelle: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = kapelle.get("/daemon")["url"]
    with api.connect(url, home=kapelle.home.root) as client:
        assert client.instance().url == url
    with api.connect(url, "wrong") as client, pytest.raises(api.Unauthorized, match="from token"):
        client.instance()
    monkeypatch.setenv("KAPELLE_URL", url)
    monkeypatch.setenv("KAPELLE_TOKEN", kapelle.home.token.read_text(encoding="ascii"))
    with api.connect() as client:
        assert client.instance().url == url
    with (
        api.connect("http://127.0.0.1:1") as client,
        pytest.raises(api.Unavailable, match="Nothing answers at url"),
    ):
        client.instance()


def test_without_a_daemon_it_is_said_or_one_is_started(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home")
    try:
        with api.connect(home=instance.home.root, start=False) as client:
            with pytest.raises(api.Unavailable, match="No daemon is running"):
                client.instance()
            assert not instance.home.root.exists()
        with api.connect(home=instance.home.root) as client:
            assert client.instance().home == str(instance.home.root)
            task = client.tasks.run("hello", agent="rehearsal", directory=tmp_path)
            assert client.tasks.wait(task.id).status == "completed"
    finally:
        instance.destroy()


def test_one_client_may_be_used_by_threads_beside_another(
    kapelle: Instance, tmp_path: Path
) -> None:
    results: list[str | None] = []

    def work(client: api.Client, number: int) -> None:
        prompt = f'Play.\n```rehearsal\n[[do]]\nresult = "{number}"\n```'
        task = client.tasks.run(prompt, agent="rehearsal", directory=tmp_path)
        results.append(client.tasks.wait(task.id).result)

    with connect(kapelle) as one, connect(kapelle) as other:
        threads = [
            threading.Thread(target=work, args=(client, number))
            for number, client in enumerate([one, other, one, other, one, other])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(map(str, results)) == ["0", "1", "2", "3", "4", "5"]


def test_what_else_the_daemon_tells(kapelle: Instance, tmp_path: Path) -> None:
    part = "Play.\n```rehearsal\n[[do]]\nusage = { input = 10, output = 3, cost = 0.5 }\n```"
    with connect(kapelle) as client:
        task = client.tasks.run(part, agent="rehearsal", directory=tmp_path, project="p")
        client.tasks.wait(task.id)
        report = client.usage("task", project="p", since=task.created_at)
        assert [(row.key, row.cost_usd) for row in report.rows] == [(task.id, 0.5)]
        assert client.usage(since=task.created_at.date().replace(year=2999)).rows == []
        assert "rehearsal" in {agent.name for agent in client.agents(tmp_path)}
        assert {"pipeline", "loop", "team"} <= {found.name for found in client.patterns()}
