"""The Python API while the daemon is killed: nothing is missed, and nothing is done twice."""

import asyncio
import re
import threading
from pathlib import Path

import psutil
import pytest

import kapelle as api
from tests.e2e.support.instance import Instance
from tests.e2e.support.proxies import forgetful_door

SHORT = 'Play.\n```rehearsal\n[[do]]\nsleep = 2\n[[do]]\nresult = "done"\n```'


def connect(kapelle: Instance, start: bool = False) -> api.Client:
    return api.connect(home=kapelle.home.root, start=start)


def test_events_go_on_where_they_were_when_the_daemon_was_killed(
    kapelle: Instance, tmp_path: Path
) -> None:
    seen: list[api.Event] = []
    last = threading.Event()

    def follow() -> None:
        with connect(kapelle) as client:
            for event in client.events(after=0):
                seen.append(event)
                if event.kind == "task.completed" and event.task_id == tasks[-1]:
                    last.set()
                    return

    tasks = [kapelle.submit("first", tmp_path)]
    following = threading.Thread(target=follow)
    tasks.append("not yet")
    following.start()
    for _ in range(2):
        kapelle.wait(tasks[0])
        kapelle.kill()
        kapelle.start()
    tasks[-1] = kapelle.submit("last", tmp_path)
    assert last.wait(60)
    following.join()
    with connect(kapelle) as client:
        whole = list(client.events(after=0, follow=False))
        mine = list(client.events(after=0, follow=False, task_id=tasks[0]))
    assert seen == whole[: len(seen)]
    assert sum(event.kind == "daemon.started" for event in seen) == 3
    assert mine == [event for event in whole if event.task_id == tasks[0]]


async def test_async_events_do_the_same(kapelle: Instance, tmp_path: Path) -> None:
    async with api.connect_async(home=kapelle.home.root, start=False) as client:

        async def follow() -> list[int]:
            numbers = []
            async for event in client.events(after=0):
                numbers.append(event.seq)
                if event.kind == "task.completed":
                    break
            return numbers

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.5)
        await asyncio.to_thread(kapelle.kill)
        await asyncio.to_thread(kapelle.start)
        await client.tasks.run("x", agent="rehearsal", directory=tmp_path)
        numbers = await asyncio.wait_for(following, 60)
    assert numbers == list(range(1, len(numbers) + 1))


def test_waiting_outlasts_a_kill_and_the_client_starts_the_daemon_again(
    kapelle: Instance, tmp_path: Path
) -> None:
    with connect(kapelle, start=True) as client:
        task = client.tasks.run(SHORT, agent="rehearsal", directory=tmp_path)
        first = client.instance().pid
        killer = threading.Timer(1, kapelle.kill)
        killer.start()
        ended = client.tasks.wait(task.id)
        killer.join()
        assert (ended.status, ended.result, len(ended.attempts)) == ("completed", "done", 1)
        assert client.instance().pid != first


def test_a_transcript_is_followed_across_a_kill(kapelle: Instance, tmp_path: Path) -> None:
    part = "\n".join(f'[[do]]\nsay = "{number}"\n[[do]]\nsleep = 0.3' for number in range(10))
    prompt = f"Play.\n```rehearsal\n{part}\n```"
    with connect(kapelle, start=True) as client:
        task = client.tasks.run(prompt, agent="rehearsal", directory=tmp_path)
        killer = threading.Timer(1.2, kapelle.kill)
        killer.start()
        lines = list(client.tasks.transcript(task.id, follow=True))
        killer.join()
        said = [line.text for line in lines if line.kind == "text"]
        assert said == [str(number) for number in range(10)]
        assert client.tasks.get(task.id).status == "completed"


def test_a_daemon_that_was_told_to_stop_is_not_brought_back(
    kapelle: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long it may be away is waited for in full by the test of the command line.
    monkeypatch.setattr("kapelle.client.http.RETURN_S", 3)
    with connect(kapelle, start=True) as client:
        task_id = kapelle.play("[[do]]\nsleep = 60", tmp_path)
        stopper = threading.Timer(0.5, kapelle.stop)
        stopper.start()
        with pytest.raises(api.Unavailable, match="The daemon was stopped"):
            client.tasks.wait(task_id)
        stopper.join()
        assert not kapelle.home.socket.exists()
        # A new question starts it.
        client.tasks.cancel(task_id)
        assert client.tasks.wait(task_id).status == "cancelled"


def test_a_submission_whose_answer_was_lost_is_made_once(kapelle: Instance, tmp_path: Path) -> None:
    with (
        forgetful_door(kapelle.home.socket, b"POST /api/v1/tasks ") as door,
        api.connect(door.url, home=kapelle.home.root) as client,
    ):
        task = client.tasks.run("x", agent="rehearsal", directory=tmp_path)
    assert door.received.count(b"POST /api/v1/tasks ") == 2
    keys = re.findall(rb"(?i)idempotency-key: (\w+)", door.received)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert [found["id"] for found in kapelle.get("/tasks")["tasks"]] == [task.id]
    kapelle.wait(task.id)


def test_other_writes_are_sent_once(kapelle: Instance, tmp_path: Path) -> None:
    task_id = kapelle.play("[[do]]\nsleep = 60", tmp_path)
    path = f"POST /api/v1/tasks/{task_id}/cancel ".encode()
    with (
        forgetful_door(kapelle.home.socket, path) as door,
        api.connect(door.url, home=kapelle.home.root) as client,
    ):
        with pytest.raises(api.Unavailable) as lost:
            client.tasks.cancel(task_id)
        assert lost.value.code == "connection_lost"
        assert "may have done it" in str(lost.value.hint)
        assert door.received.count(path) == 1
        assert client.tasks.wait(task_id).status == "cancelled"


def test_the_same_key_gives_the_same_task(kapelle: Instance, tmp_path: Path) -> None:
    with connect(kapelle) as client:
        made = [
            client.tasks.run("x", agent="rehearsal", directory=tmp_path, idempotency_key="k").id
            for _ in range(2)
        ]
        assert made[0] == made[1]
        client.tasks.wait(made[0])


async def test_readers_that_stop_early_leave_nothing_open(kapelle: Instance) -> None:
    async def glance(client: api.AsyncClient) -> None:
        async for event in client.events(after=0):
            assert event.seq == 1
            break

    there = api.connect_async(home=kapelle.home.root, start=False)
    with connect(kapelle) as other:
        async with there as client:
            await glance(client)
            assert next(other.events(after=0)).seq == 1
            before = psutil.Process().num_fds()
            for _ in range(20):
                await glance(client)
                assert next(other.events(after=0)).seq == 1
            await asyncio.sleep(0.2)
            assert psutil.Process().num_fds() <= before + 2
