"""What people do to runs: cancel, pause, resume and answer."""

import time
from pathlib import Path

import pytest

from tests.e2e.support.ensembles import (
    SLOW,
    await_running_task,
    await_status,
    on_branch,
    perform,
    play,
    rest,
    sleeping,
    start,
    tasks_of,
    write_pattern,
)
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.staging import until


def test_cancelling_ends_a_check_too(kapelle: Instance, repository: Path) -> None:
    run_id = start(kapelle, "loop", repository, prompt=play({"result": "x"}), until=["sleep 61"])
    until(lambda: sleeping(kapelle, 61), "a check")
    kapelle.post(f"/runs/{run_id}/cancel")
    assert rest(kapelle, run_id)["status"] == "cancelled"
    assert not sleeping(kapelle, 61)


def test_cancelling_without_its_tasks(kapelle: Instance, repository: Path) -> None:
    run_id = start(kapelle, "loop", repository, prompt=SLOW, until=["false"])
    task = await_running_task(kapelle, run_id)
    kapelle.post(f"/runs/{run_id}/cancel", {"with_tasks": False})
    assert rest(kapelle, run_id)["status"] == "cancelled"
    assert kapelle.wait(task["id"])["status"] == "completed"
    assert len(tasks_of(kapelle, run_id)) == 1


def test_a_pause_lets_the_agent_end_and_holds_across_a_restart(
    kapelle: Instance, repository: Path
) -> None:
    spec = {"prompt": SLOW, "until": ["test $(wc -l < n.txt) -ge 3"]}
    run_id = start(kapelle, "loop", repository, **spec)
    await_running_task(kapelle, run_id)
    kapelle.post(f"/runs/{run_id}/pause")
    run = await_status(kapelle, run_id, "paused")
    assert [task["status"] for task in tasks_of(kapelle, run_id)] == ["completed"]
    with pytest.raises(ApiError, match="paused already"):
        kapelle.post(f"/runs/{run_id}/pause")
    kapelle.kill()
    kapelle.start()
    time.sleep(1.5)
    assert kapelle.get(f"/runs/{run_id}")["status"] == "paused"
    assert len(tasks_of(kapelle, run_id)) == 1
    kapelle.post(f"/runs/{run_id}/resume")
    run = rest(kapelle, run_id)
    assert run["status"] == "completed"
    assert len(run["result"]["iterations"]) == 3
    with pytest.raises(ApiError, match="already"):
        kapelle.post(f"/runs/{run_id}/resume")


def test_a_pause_now_stops_the_agent_and_goes_on_with_it(
    kapelle: Instance, repository: Path
) -> None:
    run_id = start(kapelle, "loop", repository, prompt=SLOW, until=["true"])
    task = await_running_task(kapelle, run_id)
    kapelle.post(f"/runs/{run_id}/pause", {"now": True})
    await_status(kapelle, run_id, "paused")
    assert kapelle.task(task["id"])["status"] == "queued"
    kapelle.post(f"/runs/{run_id}/resume")
    run = rest(kapelle, run_id)
    assert run["status"] == "completed"
    ended = kapelle.task(task["id"])
    assert [attempt["status"] for attempt in ended["attempts"]] == ["cancelled", "completed"]


# The first time it hangs and does not listen; then it does its work.
STUBBORN = play(
    {"run": "echo x >> n.txt; test -e ../../was || { touch ../../was; trap '' TERM; sleep 600; }"}
)


def test_a_pause_that_waits_for_its_task_can_be_had_at_once(
    kapelle: Instance, repository: Path
) -> None:
    run_id = start(kapelle, "loop", repository, prompt=STUBBORN, until=["test -s n.txt"])
    task = await_running_task(kapelle, run_id)
    until(lambda: sleeping(kapelle, 600), "an agent at work")
    kapelle.post(f"/runs/{run_id}/pause")
    with pytest.raises(ApiError, match="paused already"):
        kapelle.post(f"/runs/{run_id}/pause")
    time.sleep(1)
    assert kapelle.get(f"/runs/{run_id}")["status"] == "running"
    kapelle.post(f"/runs/{run_id}/pause", {"now": True})
    await_status(kapelle, run_id, "paused")
    assert kapelle.task(task["id"])["status"] == "queued"
    assert not sleeping(kapelle, 600)
    kapelle.post(f"/runs/{run_id}/resume")
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    assert len(run["result"]["iterations"]) == 1
    assert on_branch(repository, run, "n.txt") == "x\n"
    ended = kapelle.task(task["id"])
    assert [attempt["status"] for attempt in ended["attempts"]] == ["cancelled", "completed"]


@pytest.mark.parametrize("now", [False, True])
def test_stopping_all_agents_does_not_cancel_the_task_of_a_run_that_is_being_paused(
    kapelle: Instance, repository: Path, now: bool
) -> None:
    run_id = start(kapelle, "loop", repository, prompt=STUBBORN, until=["test -s n.txt"])
    task = await_running_task(kapelle, run_id)
    until(lambda: sleeping(kapelle, 600), "an agent at work")
    kapelle.post(f"/runs/{run_id}/pause", {"now": now})
    assert kapelle.task(task["id"])["status"] == "running"
    kapelle.cli("stop", "--agents", check=True)
    assert not sleeping(kapelle, 600)
    kapelle.start()
    assert kapelle.get(f"/runs/{run_id}")["status"] == "paused"
    assert kapelle.task(task["id"])["status"] == "queued"
    kapelle.post(f"/runs/{run_id}/resume")
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    assert on_branch(repository, run, "n.txt") == "x\n"


def test_an_empty_answer_is_refused(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    return await ctx.ask("Which colour?")
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    with pytest.raises(ApiError, match="answer") as refused:
        kapelle.post(f"/runs/{run['id']}/answer", {"answer": ""})
    assert refused.value.status == 422
    typed = kapelle.cli("runs", "answer", run["id"], "")
    assert typed.returncode == 2
    assert "The answer is empty" in typed.stderr
    assert kapelle.get(f"/runs/{run['id']}")["questions"] == run["questions"]


def test_a_question_waits_for_its_answer(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    colour = await ctx.ask("Which colour?", default="red")
    both = await ctx.gather(ctx.ask("How many?"), ctx.ask("How large?"))
    return [colour, *both]
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    assert (run["status"], run["waiting_for"]) == ("waiting", "input")
    assert run["questions"][0]["text"] == "Which colour?"
    assert run["questions"][0]["default"] == "red"
    kapelle.kill()
    kapelle.start()
    first = run["questions"][0]["token"]
    kapelle.post(f"/runs/{run['id']}/answer", {"answer": "blue", "token": first})
    run = rest(kapelle, run["id"])
    assert [question["text"] for question in run["questions"]] == ["How many?", "How large?"]
    with pytest.raises(ApiError, match="several questions"):
        kapelle.post(f"/runs/{run['id']}/answer", {"answer": "3"})
    with pytest.raises(ApiError, match="answered already"):
        kapelle.post(f"/runs/{run['id']}/answer", {"answer": "green", "token": first})
    for question, text in zip(run["questions"], ["3", "big"], strict=True):
        kapelle.post(f"/runs/{run['id']}/answer", {"answer": text, "token": question["token"]})
    run = rest(kapelle, run["id"])
    assert (run["status"], run["result"]) == ("completed", ["blue", "3", "big"])
    with pytest.raises(ApiError, match="already"):
        kapelle.post(f"/runs/{run['id']}/answer", {"answer": "x"})


def test_a_task_that_asks_makes_its_run_wait(kapelle: Instance, repository: Path) -> None:
    asks = play({"ask": "Which colour?"})
    run_id = start(kapelle, "loop", repository, prompt=asks, until=["true"], max_iterations=1)
    until(lambda: kapelle.get(f"/runs/{run_id}")["waiting_for"], "a question")
    run = kapelle.get(f"/runs/{run_id}")
    assert (run["status"], run["waiting_for"]) == ("running", "input")
    assert "Which colour?" in run["reason"]
    task = tasks_of(kapelle, run_id)[0]
    assert f"kapelle answer {task['id']}" in run["reason"]
    followed = kapelle.cli("runs", "tail", run_id)
    assert followed.returncode == 3
    kapelle.post(f"/tasks/{task['id']}/cancel")
    assert rest(kapelle, run_id)["status"] == "failed"
