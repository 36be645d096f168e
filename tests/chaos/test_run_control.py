"""Wishes that come at the worst moment: amid a crash, amid a question, amid another wish."""

import contextlib
import http.client
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import (
    await_running_task,
    await_status,
    on_branch,
    perform,
    play,
    rest,
    start,
    tasks_of,
    write_pattern,
)
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.staging import until

FOR_EVER = play({"run": "sleep 60"})
# A daemon that dies by what it is asked for may do so before it has answered.
LAST_WORDS = contextlib.suppress(OSError, http.client.HTTPException)
STUBBORN = play({"hang": True, "stubborn": True})


def own(repository: Path, body: str, pattern: str = "own", **prompts: str) -> None:
    """A pattern of one's own; the prompts are constants of its file."""
    lines = "".join(f"{name} = {prompt!r}\n" for name, prompt in prompts.items())
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    head = f'@pattern("{pattern}", spec=PatternSpec)\nasync def own(ctx, spec):\n'
    write_pattern(repository, f"{lines}\n{head}{indented}\n", pattern)


def told(kapelle: Instance, run_id: str, kind: str) -> int:
    _, body = kapelle.request("GET", f"/events?after=0&follow=false&run_id={run_id}")
    return body.count(f"event: {kind}\n".encode()) + body.count(f"event: {kind}\r\n".encode())


def progress(kapelle: Instance, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = kapelle.get(f"/runs/{run_id}")["progress"]
    return found


@pytest.mark.parametrize(
    "end", ["return (await ctx.task(PROMPT)).status", "return (await ctx.check('sleep 62')).passed"]
)
def test_what_is_cancelled_is_cancelled(kapelle: Instance, repository: Path, end: str) -> None:
    """Also if the pattern makes a result of what the cancelling has ended."""
    kapelle.start()
    own(repository, end, PROMPT=FOR_EVER)
    run_id = start(kapelle, "own", repository)
    until(lambda: [s for s in kapelle.get(f"/runs/{run_id}/steps") if not s["ended_at"]], "a step")
    time.sleep(0.5)
    kapelle.post(f"/runs/{run_id}/cancel", {"reason": "enough"})
    run = rest(kapelle, run_id)
    assert (run["status"], run["reason"], run["result"]) == ("cancelled", "enough", None)


def test_a_cancel_survives_a_crash_beside_an_open_question(
    kapelle: Instance, repository: Path
) -> None:
    own(repository, "await ctx.gather(ctx.ask('Why?'), ctx.task(PROMPT))", PROMPT=FOR_EVER)
    kapelle.start(KAPELLE_FAILPOINT="run_before_end@1")
    run_id = start(kapelle, "own", repository)
    task = await_running_task(kapelle, run_id)
    with LAST_WORDS:
        kapelle.post(f"/runs/{run_id}/cancel", {"reason": "enough"})
    kapelle.await_death()
    kapelle.start()
    run = rest(kapelle, run_id, timeout_s=20)
    assert (run["status"], run["reason"], run["questions"]) == ("cancelled", "enough", [])
    assert kapelle.task(task["id"])["status"] == "cancelled"
    assert told(kapelle, run_id, "run.running") == 1


@pytest.mark.parametrize("failpoint", [None, "run_before_end@1"])
def test_what_a_cancelled_loop_came_to_is_the_same_after_a_crash(
    kapelle: Instance, repository: Path, failpoint: str | None
) -> None:
    kapelle.start(**({"KAPELLE_FAILPOINT": failpoint} if failpoint else {}))
    prompt = play({"run": "echo x >> n.txt; test $(wc -l < n.txt) = 1 || sleep 60"})
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=["false"])
    await_running_task(kapelle, run_id, 2)
    with LAST_WORDS:
        kapelle.post(f"/runs/{run_id}/cancel")
    if failpoint:
        kapelle.await_death()
        kapelle.start()
    run = rest(kapelle, run_id)
    assert run["status"] == "cancelled"
    assert run["result"]["stopped_by"] == "cancelled"
    assert run["result"]["iterations"][0]["verdict"] == "progress"


def test_a_check_that_nobody_watches_is_ended_too(kapelle: Instance, repository: Path) -> None:
    """When the daemon dies between the wish and the signal."""
    kapelle.start()
    own(repository, "await ctx.check('sleep 63')")
    run_id = start(kapelle, "own", repository)
    until(lambda: any(kapelle.home.processes.glob("*/claim")), "the check")
    kapelle.kill()
    with sqlite3.connect(kapelle.home.database) as connection:
        wish = "UPDATE runs SET stop = 'cancel', reason = 'enough' WHERE id = ?"
        connection.execute(wish, (run_id,))
    connection.close()
    kapelle.start()
    run = rest(kapelle, run_id)
    assert (run["status"], run["reason"]) == ("cancelled", "enough")
    assert not [p for p in kapelle.processes() if p.cmdline()[-2:] == ["sleep", "63"]]


def test_a_stubborn_agent_is_told_once_to_stop(kapelle: Instance, repository: Path) -> None:
    kapelle.start()
    run_id = start(kapelle, "loop", repository, prompt=STUBBORN, until=["true"])
    await_running_task(kapelle, run_id)
    time.sleep(0.3)
    kapelle.post(f"/runs/{run_id}/cancel")
    assert rest(kapelle, run_id)["status"] == "cancelled"
    assert told(kapelle, run_id, "task.stopping") == 1


def test_a_parent_is_cancelled_while_its_child_is_queued(
    kapelle: Instance, repository: Path
) -> None:
    body = "await ctx.run('loop', {'prompt': PROMPT, 'until': ['true']})"
    own(repository, body, PROMPT=FOR_EVER)
    kapelle.start(KAPELLE_FAILPOINT="step_after_begin@1")
    with LAST_WORDS:
        start(kapelle, "own", repository)
    kapelle.await_death()
    kapelle.start()
    run_id = next(run["id"] for run in kapelle.get("/runs")["runs"] if not run["parent_id"])
    kapelle.post(f"/runs/{run_id}/cancel")
    assert rest(kapelle, run_id)["status"] == "cancelled"
    inner = kapelle.get(f"/runs?parent_id={run_id}")["runs"]
    assert [run["status"] for run in inner] == ["cancelled"]
    assert [task["status"] for task in tasks_of(kapelle, inner[0]["id"])] in ([], ["cancelled"])


_BESIDE = """
async def slow():
    await ctx.task(PROMPT, workspace="own")
async def quick():
    for number in range(40):
        await ctx.sleep(0.1)
    await ctx.progress(quick="done")
await ctx.gather(slow(), quick())
"""


def test_a_branch_that_was_paused_goes_on_beside_one_that_works(
    kapelle: Instance, repository: Path
) -> None:
    """Resumed before the agent has ended, the other branch does not wait for it."""
    kapelle.start()
    own(repository, _BESIDE, PROMPT=play({"run": "sleep 20"}))
    run_id = start(kapelle, "own", repository)
    task = await_running_task(kapelle, run_id)
    kapelle.post(f"/runs/{run_id}/pause")
    time.sleep(0.5)
    assert kapelle.get(f"/runs/{run_id}")["status"] == "running"
    kapelle.post(f"/runs/{run_id}/resume")
    until(lambda: progress(kapelle, run_id).get("quick"), "the quick branch's end", 15)
    assert kapelle.task(task["id"])["status"] == "running"
    assert len(kapelle.task(task["id"])["attempts"]) == 1
    kapelle.post(f"/runs/{run_id}/cancel")
    assert rest(kapelle, run_id)["status"] == "cancelled"


def test_an_answer_lets_its_branch_go_on_beside_one_that_works(
    kapelle: Instance, repository: Path
) -> None:
    body = """
async def asks():
    await ctx.progress(colour=await ctx.ask("Which colour?"))
await ctx.gather(asks(), ctx.task(PROMPT, workspace="own"))
"""
    kapelle.start()
    own(repository, body, PROMPT=play({"run": "sleep 20"}))
    run_id = start(kapelle, "own", repository)
    await_running_task(kapelle, run_id)
    run = kapelle.get(f"/runs/{run_id}")
    assert [question["text"] for question in run["questions"]] == ["Which colour?"]
    token = run["questions"][0]["token"].replace(run_id, "run_" + "0" * 26)
    with pytest.raises(ApiError, match="another run"):
        kapelle.post(f"/runs/{run_id}/answer", {"answer": "red", "token": token})
    kapelle.post(f"/runs/{run_id}/answer", {"answer": "blue"})
    until(lambda: progress(kapelle, run_id).get("colour") == "blue", "the answer's effect", 10)
    assert [task["status"] for task in tasks_of(kapelle, run_id)] == ["running"]
    kapelle.post(f"/runs/{run_id}/cancel")
    assert rest(kapelle, run_id)["status"] == "cancelled"


def test_a_run_that_was_resumed_meets_its_earlier_execution(
    kapelle: Instance, repository: Path
) -> None:
    """The engine does not know that the first one ended, and takes it up beside the second."""
    kapelle.start(KAPELLE_FAILPOINT="run_after_end@1")
    prompt = play({"run": "echo x >> n.txt; sleep 0.3"})
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=["test -s n.txt"])
    await_running_task(kapelle, run_id)
    kapelle.post(f"/runs/{run_id}/pause")
    kapelle.await_death()
    kapelle.start()
    kapelle.post(f"/runs/{run_id}/resume")
    began = time.monotonic()
    run = rest(kapelle, run_id)
    assert run["status"] == "completed"
    assert len(run["result"]["iterations"]) == 1
    assert time.monotonic() - began < 4, "nobody performed it for a while"
    assert "inside the engine" not in kapelle.log_tail()


def test_a_pause_now_amid_the_checks_of_a_task(kapelle: Instance, repository: Path) -> None:
    """What the first attempt had committed already is not there when it is done again."""
    kapelle.start()
    steps = [
        {
            "name": "grow",
            "prompt": play({"run": "echo x >> n.txt"}),
            "checks": ["test $KAPELLE_ATTEMPT_NUMBER = 2 || sleep 30"],
        },
        play({"run": "cp n.txt copy.txt"}),
    ]
    run_id = start(kapelle, "pipeline", repository, steps=steps)
    task = await_running_task(kapelle, run_id)
    until(lambda: kapelle.task(task["id"])["checking"], "the check")
    kapelle.post(f"/runs/{run_id}/pause", {"now": True})
    await_status(kapelle, run_id, "paused")
    kapelle.post(f"/runs/{run_id}/resume")
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    assert on_branch(repository, run, "n.txt") == "x\n"
    assert on_branch(repository, run, "copy.txt") == "x\n"


def test_a_task_that_its_run_is_done_with(kapelle: Instance, repository: Path) -> None:
    """Done again by a person, it does not put back the worktree in which others work by now."""
    kapelle.start()
    steps = [play({"write": "one", "content": "1\n"}), play({"run": "echo 2 > two; sleep 2"})]
    run_id = start(kapelle, "pipeline", repository, steps=steps)
    await_running_task(kapelle, run_id, 2)
    first = tasks_of(kapelle, run_id)[0]
    try:
        kapelle.post(f"/tasks/{first['id']}/retry")
        said = kapelle.wait(first["id"])["reason"]
    except ApiError as error:
        said = str(error)
    assert "has continued" in said
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    assert kapelle.get(f"/runs/{run_id}/diff")["files"] == ["one", "two"]


def test_a_task_that_waits_is_done_again_by_a_person(kapelle: Instance, repository: Path) -> None:
    kapelle.start()
    prompt = (
        "Do.\n```rehearsal\n[[rule]]\nattempt = 1\ndo = [{ ask = 'Sure?' }]\n"
        "[[rule]]\ndo = [{ write = 'w', content = 'w' }]\n```\n"
    )
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=["test -f w"])
    task = until(
        lambda: [t for t in tasks_of(kapelle, run_id) if t["waiting_for"] == "input"], "a question"
    )[0]
    kapelle.post(f"/tasks/{task['id']}/retry")
    run = rest(kapelle, run_id)
    while run["status"] == "waiting":
        run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    assert len(run["result"]["iterations"]) == 1
    assert len(kapelle.task(task["id"])["attempts"]) == 2


def test_a_question_is_answered_while_the_daemon_dies(kapelle: Instance, repository: Path) -> None:
    """Between the answer and the run's being taken up."""
    own(repository, "return [await ctx.ask('One?'), await ctx.ask('Two?')]")
    kapelle.start(KAPELLE_FAILPOINT="run_after_take_up@2")
    run = perform(kapelle, "own", repository)
    assert run["status"] == "waiting"
    with LAST_WORDS:
        kapelle.post(f"/runs/{run['id']}/answer", {"answer": "1"})
    kapelle.await_death()
    kapelle.start()
    run = rest(kapelle, run["id"])
    assert [question["text"] for question in run["questions"]] == ["Two?"]
    kapelle.post(f"/runs/{run['id']}/answer", {"answer": "2"})
    run = rest(kapelle, run["id"])
    assert (run["status"], run["result"]) == ("completed", ["1", "2"])
