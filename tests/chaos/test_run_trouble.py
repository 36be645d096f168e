"""What may happen to a run while it is under way, other than a request."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.record import is_clean
from tests.chaos.test_run_control import FOR_EVER, own
from tests.e2e.support.ensembles import (
    await_running_task,
    await_status,
    on_branch,
    perform,
    play,
    rest,
    start,
    tasks_of,
)
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git
from tests.e2e.support.staging import until

GROW = play({"run": "echo x >> n.txt"})


@pytest.mark.parametrize("leave", ["raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_a_pattern_cannot_end_the_daemon(kapelle: Instance, repository: Path, leave: str) -> None:
    kapelle.start()
    daemon = kapelle.process
    own(repository, f"await ctx.sleep(0.01)\n{leave}")
    run = perform(kapelle, "own", repository)
    assert run["status"] == "failed"
    assert leave.split()[1].partition("(")[0] in run["reason"]
    own(repository, f"async def leave():\n    {leave}\nawait ctx.gather(leave(), ctx.sleep(0.2))")
    run = perform(kapelle, "own", repository)
    assert run["status"] == "failed"
    assert leave.split()[1].partition("(")[0] in run["reason"]
    assert daemon is not None
    assert daemon.poll() is None


def test_a_pattern_that_is_away_for_a_while(kapelle: Instance, repository: Path) -> None:
    """As when the user's checkout is switched to another branch."""
    kapelle.start()
    own(repository, "return await ctx.ask('Why?')")
    run = perform(kapelle, "own", repository)
    path = repository / ".kapelle/patterns/own.py"
    text = path.read_text(encoding="utf-8")
    path.unlink()
    kapelle.post(f"/runs/{run['id']}/answer", {"answer": "because"})
    run = rest(kapelle, run["id"])
    assert run["status"] == "paused"
    assert "There is no pattern 'own'" in run["reason"]
    path.write_text("def broken(:\n", encoding="utf-8")
    kapelle.post(f"/runs/{run['id']}/resume")
    until(lambda: "SyntaxError" in str(kapelle.get(f"/runs/{run['id']}")["reason"]), "the reason")
    assert kapelle.get(f"/runs/{run['id']}")["status"] == "paused"
    path.write_text(text, encoding="utf-8")
    kapelle.post(f"/runs/{run['id']}/resume")
    run = rest(kapelle, run["id"])
    while run["status"] == "paused":
        run = rest(kapelle, run["id"])
    assert (run["status"], run["result"]) == ("completed", "because")


def test_a_pattern_that_changed_leaves_no_agent_behind(kapelle: Instance, repository: Path) -> None:
    kapelle.start()
    own(repository, "await ctx.task(PROMPT)", PROMPT=FOR_EVER)
    run_id = start(kapelle, "own", repository)
    task = await_running_task(kapelle, run_id)
    kapelle.kill()
    own(repository, "await ctx.sleep(0.1)")
    kapelle.start()
    run = rest(kapelle, run_id)
    assert run["status"] == "failed"
    assert "the pattern changed" in run["reason"]
    assert kapelle.task(task["id"])["status"] == "cancelled"


def test_a_check_that_runs_while_the_daemon_is_killed_is_run_once(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    kapelle.start()
    count = tmp_path / "count"
    slow = f"echo x >> {count}; sleep 2; echo seen"
    prompt = play({"result": "ready"})
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=[slow, "test -d ."])
    until(count.exists, "the check")
    for _ in range(3):
        kapelle.kill()
        kapelle.start()
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    assert count.read_text(encoding="ascii") == "x\n"
    steps = kapelle.get(f"/runs/{run_id}/steps")
    check = next(step for step in steps if step["kind"] == "check")
    assert [item["output"] for item in check["result"]] == ["seen", ""]
    assert check["result"][0]["duration_s"] >= 2


def test_a_worktree_that_was_deleted_during_a_pause(kapelle: Instance, repository: Path) -> None:
    kapelle.start()
    prompt = play({"run": "echo x >> n.txt; sleep 0.5"})
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=["test $(wc -l < n.txt) = 3"])
    await_running_task(kapelle, run_id)
    kapelle.post(f"/runs/{run_id}/pause")
    run = await_status(kapelle, run_id, "paused")
    shutil.rmtree(run["workspace"]["path"])
    kapelle.post(f"/runs/{run_id}/resume")
    run = rest(kapelle, run_id)
    while run["status"] == "paused":
        run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    assert on_branch(repository, run, "n.txt") == "x\n" * 3
    assert is_clean(repository)


def test_a_worktree_that_is_deleted_while_an_agent_works(
    kapelle: Instance, repository: Path
) -> None:
    """The agent's work is lost, which is said; the run goes on from what was committed."""
    kapelle.start()
    prompt = play({"run": "echo x >> n.txt; test $(wc -l < n.txt) = 1 || sleep 1"})
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=["test $(wc -l < n.txt) = 3"])
    await_running_task(kapelle, run_id, 2)
    time.sleep(0.3)
    shutil.rmtree(kapelle.get(f"/runs/{run_id}")["workspace"]["path"])
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    iterations = run["result"]["iterations"]
    assert [item["verdict"] for item in iterations] == ["progress", "fail", "progress", "pass"]
    assert run["workspace"]["path"] in iterations[1]["problem"]
    assert on_branch(repository, run, "n.txt") == "x\n" * 3
    assert git(repository, "status", "--porcelain") == ""
    assert is_clean(repository)


def test_the_time_of_a_run_goes_on_across_restarts(kapelle: Instance, repository: Path) -> None:
    """Also while nothing begins or ends; only when no daemon lives the clock stands."""
    kapelle.start()
    run_id = start(kapelle, "loop", repository, prompt=FOR_EVER, until=["true"], max_seconds=60)
    await_running_task(kapelle, run_id)
    time.sleep(5)
    before = kapelle.get(f"/runs/{run_id}")["spent"]["seconds"]
    kapelle.kill()
    time.sleep(4)
    kapelle.start()
    until(lambda: kapelle.get(f"/runs/{run_id}")["spent"]["seconds"] < before + 3, "the clock", 5)
    # It is looked after every two seconds.
    assert kapelle.get(f"/runs/{run_id}")["spent"]["seconds"] > before - 3
    kapelle.post(f"/runs/{run_id}/cancel")
    assert rest(kapelle, run_id)["spent"]["agent_calls"] == 1


@pytest.mark.parametrize("failpoint", [None, "perform_after_verify@1", "perform_end@1"])
def test_the_end_of_the_budget_is_the_same_after_a_crash(
    kapelle: Instance, repository: Path, failpoint: str | None
) -> None:
    """Between the request that the agent ends and what the run makes of its end."""
    kapelle.start(**({"KAPELLE_FAILPOINT": failpoint} if failpoint else {}))
    prompt = play({"run": "echo half > half.txt; sleep 60"})
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=["true"], max_seconds=2)
    if failpoint:
        kapelle.await_death()
        kapelle.start()
    run = rest(kapelle, run_id)
    assert run["status"] == "failed"
    assert run["result"]["stopped_by"] == "budget"
    assert run["result"]["iterations"] == [
        {
            "number": 1, "verdict": "fail", "score": None, "commit": None, "tasks": [],
            "problem": None, "changed": False,
        }
    ]  # fmt: skip
    kinds = [step["kind"] for step in kapelle.get(f"/runs/{run_id}/steps")]
    assert kinds == ["commit", "progress", "task"]
    assert not Path(run["workspace"]["path"], "half.txt").exists()
    # A run without a commit has no branch in the user's repository.
    assert git(repository, "branch", "--list", run["workspace"]["branch"]) == ""


def test_a_branch_that_cannot_be_put_back_is_told(kapelle: Instance, repository: Path) -> None:
    kapelle.start()
    prompt = play({"run": f"mv {repository}/.git {repository}/away; sleep 60"})
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=["true"], max_seconds=2)
    run = rest(kapelle, run_id)
    assert run["status"] == "failed"
    assert "Time limit of 2 s reached; its branch could not be put back to " in run["reason"]
    assert run["result"]["reason"] == run["reason"]


def test_branches_together_call_no_more_agents_than_the_run_may(
    kapelle: Instance, repository: Path
) -> None:
    kapelle.start()
    body = "await ctx.gather(*(ctx.task(PROMPT, workspace='own') for _ in range(5)))"
    own(repository, body, PROMPT=GROW)
    run = perform(kapelle, "own", repository, max_agent_calls=2)
    assert run["status"] == "failed"
    assert "Limit of 2 agent calls" in run["reason"]
    assert run["spent"]["agent_calls"] == 2
    assert [task["status"] for task in tasks_of(kapelle, run["id"])] == ["completed"] * 2


def test_a_run_inside_calls_no_more_agents_than_the_one_around_it_may(
    kapelle: Instance, repository: Path
) -> None:
    kapelle.start()
    body = """
inner = await ctx.run("loop", {"prompt": PROMPT, "until": ["false"], "max_iterations": 5})
return [inner.status, inner.reason]
"""
    own(repository, body, PROMPT=GROW)
    run = perform(kapelle, "own", repository, max_agent_calls=2)
    assert run["status"] == "completed"
    assert run["result"][0] == "failed"
    assert f"agent calls reached. It is a limit of the outer run {run['id']}." in run["result"][1]
    assert run["spent"]["agent_calls"] == 2


def test_long_lines_of_its_history_survive_a_crash(kapelle: Instance, repository: Path) -> None:
    kapelle.start()
    own(repository, "await ctx.progress(text='x' * 300_000)\nreturn await ctx.ask('Why?')")
    run = perform(kapelle, "own", repository)
    path = kapelle.home.runs / run["id"] / "events.jsonl"
    until(lambda: path.exists() and "run.waiting" in _mirrored(path), "the history")
    # The last line is cut in the middle, the long one is the last whole one.
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if len(line) > 300_000)
    kapelle.kill()
    path.write_bytes(b"".join(lines[: last + 1]) + lines[last][:1000])
    (kapelle.home.runs / "position").write_text("0", encoding="ascii")
    kapelle.start()
    kapelle.post(f"/runs/{run['id']}/answer", {"answer": "because"})
    assert rest(kapelle, run["id"])["status"] in {"completed", "waiting"}
    until(lambda: "run.completed" in _mirrored(path), "the history")
    _, body = kapelle.request("GET", f"/events?after=0&follow=false&run_id={run['id']}")
    told = [line[7:] for line in body.decode().splitlines() if line.startswith("event: ")]
    assert _mirrored(path) == told


def _mirrored(path: Path) -> list[Any]:
    import json

    return [json.loads(line)["kind"] for line in path.read_text(encoding="utf-8").splitlines()]
