"""Runs inside runs: they share what the outer one has, and end with it."""

from pathlib import Path

import pytest

from tests.e2e.support.ensembles import (
    FOR_EVER,
    await_running_task,
    await_status,
    perform,
    play,
    rest,
    sleeping,
    start,
    write_pattern,
)
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.staging import until

NESTED = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    inner = await ctx.run("loop", {"prompt": PROMPT, "until": ["true"]}, workspace="run")
    return {"inner": inner.id, "status": inner.status, "files": await ctx.changes()}
"""


def test_a_run_inside_a_run(kapelle: Instance, repository: Path) -> None:
    prompt = play({"write": "inner.txt", "content": "x\n"})
    write_pattern(repository, f"PROMPT = {prompt!r}\n{NESTED}")
    run = perform(kapelle, "own", repository)
    assert run["status"] == "completed", run["reason"]
    inner = kapelle.get(f"/runs/{run['result']['inner']}")
    assert inner["parent_id"] == run["id"]
    assert inner["workspace"]["owner"] == run["id"]
    assert "inner.txt" in run["result"]["files"]
    assert run["spent"]["agent_calls"] == 1


def test_cancelling_reaches_every_child(kapelle: Instance, repository: Path) -> None:
    write_pattern(repository, f"PROMPT = {FOR_EVER!r}\n{NESTED}")
    run_id = start(kapelle, "own", repository)
    await_status(kapelle, run_id, "running")
    (found,) = until(lambda: kapelle.get(f"/runs?parent_id={run_id}")["runs"], "a run inside")
    inner = found["id"]
    task = await_running_task(kapelle, inner)
    kapelle.post(f"/runs/{run_id}/cancel", {"reason": "enough"})
    run = rest(kapelle, run_id)
    assert (run["status"], run["reason"]) == ("cancelled", "enough")
    assert kapelle.get(f"/runs/{inner}")["status"] == "cancelled"
    assert kapelle.task(task["id"])["status"] == "cancelled"
    assert not sleeping(kapelle, 60)
    with pytest.raises(ApiError, match="already"):
        kapelle.post(f"/runs/{run_id}/cancel")


def test_a_run_that_could_call_nobody_does_not_begin(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    await ctx.task("first")
    await ctx.run("loop", {"prompt": "second", "until": ["true"]})
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository, max_agent_calls=1)
    assert run["status"] == "failed"
    assert "Limit of 1 agent call reached." in run["reason"]
    assert kapelle.get(f"/runs?parent_id={run['id']}")["runs"] == []
    assert run["spent"]["agent_calls"] == 1
    run = perform(kapelle, "own", repository, max_agent_calls=2)
    assert run["status"] == "completed", run["reason"]
    assert run["spent"]["agent_calls"] == 2


def test_a_pattern_that_starts_itself_without_end_is_refused_at_some_depth(
    kapelle: Instance, tmp_path: Path
) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    inner = await ctx.run("own", {})
    if not inner.ok:
        raise Failed(inner.reason)
"""
    write_pattern(tmp_path, body)
    run = perform(kapelle, "own", tmp_path)
    assert run["status"] == "failed"
    assert "Runs are nested 20 deep. Does a pattern start itself without end?" in run["reason"]
    made = kapelle.get("/runs?nested=true&limit=100")["runs"]
    assert len(made) == 20
    assert {run["status"] for run in made} == {"failed"}
