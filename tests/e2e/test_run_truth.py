"""What a run may never do: end well without cause, lose what it has, or take the daemon along."""

import time
from pathlib import Path

import pytest

from tests.e2e.support.ensembles import (
    YES,
    answer,
    await_running_task,
    clashing_team,
    files_on_branch,
    on_branch,
    perform,
    play,
    rest,
    rule,
    start,
    subjects,
    tasks_of,
    with_playbook,
    write_pattern,
)
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import git
from tests.e2e.support.staging import until

GOAL = {"goal": "Build it", "success_criteria": ["it is there"]}


def test_half_a_character_does_not_end_the_daemon(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    await ctx.progress(text="half \\ud83d and \\0")
    raise Failed("half \\ud83d", {"half": "\\ud83d"})
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    assert run["status"] == "failed"
    time.sleep(0.5)
    assert kapelle.process is not None
    assert kapelle.process.poll() is None
    assert [item["id"] for item in kapelle.get("/runs")["runs"]] == [run["id"]]
    assert (kapelle.home.runs / run["id"] / "events.jsonl").exists()


def test_conflict_markers_are_never_merged(kapelle: Instance, repository: Path) -> None:
    """Not even from a directory below the top, where the paths look different."""
    sub = repository / "sub"
    sub.mkdir()
    (sub / "kept").write_text("x\n", encoding="utf-8")
    git(repository, "add", ".")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@a", "commit", "-qm", "sub")
    with_playbook(kapelle, clashing_team({"write": "note", "content": "done\n"}))
    run = perform(kapelle, "team", sub, **GOAL, max_iterations=1)
    assert run["status"] == "failed"
    outcomes = {item["status"]: item for item in run["result"]["iterations"][0]["outcomes"]}
    assert "conflict markers are left in" in outcomes["conflict"]["reason"]
    assert on_branch(repository, run, "sub/same") in {"one\n", "two\n"}


def test_a_loop_whose_budget_ends_holds_its_best(kapelle: Instance, repository: Path) -> None:
    prompt = play({"run": "echo x >> n.txt"})
    spec = {"eval": "wc -l < n.txt 2>/dev/null || echo 9", "direction": "minimize"}
    run = perform(kapelle, "loop", repository, prompt=prompt, **spec, max_agent_calls=2)
    assert run["result"]["stopped_by"] == "budget"
    head = git(repository, "rev-parse", run["workspace"]["branch"])
    assert head == run["result"]["commit"] == run["result"]["best"]["commit"]
    assert on_branch(repository, run, "n.txt") == "x\n"


def test_a_cancelled_loop_keeps_its_history(kapelle: Instance, repository: Path) -> None:
    prompt = play({"run": "echo x >> n.txt; test $(wc -l < n.txt) -lt 2 || sleep 60"})
    run_id = start(
        kapelle, "loop", repository, prompt=prompt, eval="wc -l < n.txt", direction="maximize"
    )
    await_running_task(kapelle, run_id, 2)
    kapelle.post(f"/runs/{run_id}/cancel")
    run = rest(kapelle, run_id)
    assert run["status"] == "cancelled"
    assert run["result"]["best"]["score"] == 1
    assert run["result"]["scores"][:2] == [None, 1]


def test_only_the_verified_commit_is_merged(kapelle: Instance, repository: Path) -> None:
    """A score command that commits does not smuggle anything in."""
    evil = (
        "echo x > evil.txt; git add evil.txt; "
        "git -c user.name=e -c user.email=e@e commit -qm evil; echo 1"
    )
    run = perform(
        kapelle, "best-of", repository,
        prompt=play({"run": "date +%N > w"}), count=2, eval=evil, direction="minimize",
    )  # fmt: skip
    assert run["status"] == "failed"
    assert "unverified commits" in run["reason"]
    assert "evil.txt" not in files_on_branch(repository, run)


def test_a_step_on_the_way_out_is_no_step(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    try:
        answer = await ctx.ask("Well?")
        await ctx.sleep(0.01)
    finally:
        await ctx.progress(left=True)
    return answer
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    assert run["status"] == "waiting"
    kapelle.post(f"/runs/{run['id']}/answer", {"answer": "yes"})
    run = rest(kapelle, run["id"])
    assert (run["status"], run["result"]) == ("completed", "yes"), run["reason"]


def test_a_team_without_work_is_not_done(kapelle: Instance, repository: Path) -> None:
    plan = {"subgoals": [{"id": "a", "title": "a", "task": "WORK"}]}
    with_playbook(
        kapelle,
        rule("You plan", answer(plan))
        + rule("You review", answer(YES))
        + rule("^WORK", {"fail": "I cannot"}),
    )
    run = perform(kapelle, "team", repository, **GOAL, max_iterations=1)
    assert run["status"] == "failed"
    assert "I cannot" in run["reason"]
    assert subjects(repository, run) == []


def test_a_run_with_a_working_task_is_not_archived(kapelle: Instance, repository: Path) -> None:
    prompt = play({"run": "sleep 2; echo x > n.txt"})
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=["false"])
    task = await_running_task(kapelle, run_id)
    kapelle.post(f"/runs/{run_id}/cancel", {"with_tasks": False})
    assert rest(kapelle, run_id)["status"] == "cancelled"
    with pytest.raises(ApiError, match="has not ended"):
        kapelle.post(f"/runs/{run_id}/archive")
    assert kapelle.wait(task["id"])["status"] == "completed"
    assert kapelle.post(f"/runs/{run_id}/archive")["archived_at"]


def test_attempts_are_counted_where_they_begin(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    part = "x\\n```rehearsal\\n[[do]]\\nfail = 'no'\\n```\\n"
    tasks = (ctx.task(part, workspace="own", max_attempts=3) for _ in range(3))
    return [task.status for task in await ctx.gather(*tasks)]
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository, max_agent_calls=3)
    assert run["status"] == "failed"
    assert run["spent"]["agent_calls"] == 3


def test_the_shared_workspace_is_for_one_at_a_time(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    await ctx.gather(ctx.task("one"), ctx.task("two"))
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    assert run["status"] == "failed"
    assert "one after another" in run["reason"]


def test_a_target_that_is_reached_needs_no_agent(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"result": "x"}), eval="echo 3", direction="minimize", target=5,
    )  # fmt: skip
    assert run["status"] == "completed"
    assert tasks_of(kapelle, run["id"]) == []


def test_downtime_is_not_time_under_way(kapelle: Instance, repository: Path) -> None:
    prompt = play({"run": "sleep 1"})
    run_id = start(kapelle, "loop", repository, prompt=prompt, until=["true"], max_seconds=8)
    await_running_task(kapelle, run_id)
    kapelle.kill()
    time.sleep(8)
    kapelle.start()
    assert rest(kapelle, run_id)["status"] == "completed"


def test_a_run_inside_begins_where_the_outer_one_is(kapelle: Instance, repository: Path) -> None:
    first = play({"write": "outer.txt", "content": "o\n"})
    inner = play({"run": "cat outer.txt > inner.txt"})
    body = f"""
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    await ctx.task({first!r})
    inside = await ctx.run("loop", {{"prompt": {inner!r}, "until": ["true"]}})
    return (await ctx.merge(inside)).ok
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    assert (run["status"], run["result"]) == ("completed", True), run["reason"]
    assert on_branch(repository, run, "inner.txt") == "o\n"


def test_a_cancelled_optimisation_leaves_the_best_on_the_branch(
    kapelle: Instance, repository: Path
) -> None:
    measure = "test $KAPELLE_ITERATION = 2 && sleep 60; wc -l < n.txt || echo 0"
    prompt = play({"run": "echo x >> n.txt"})
    spec = {"prompt": prompt, "eval": measure, "direction": "maximize"}
    run_id = start(kapelle, "loop", repository, **spec)
    until(lambda: kapelle.get(f"/runs/{run_id}")["progress"].get("iteration") == 2, "the second")
    until(lambda: kapelle.get(f"/runs/{run_id}/steps")[-1]["kind"] == "score", "its measuring")
    kapelle.post(f"/runs/{run_id}/cancel")
    run = rest(kapelle, run_id)
    assert run["status"] == "cancelled"
    assert on_branch(repository, run, "n.txt") == "x\n"
    best = run["result"]["best"]
    assert (best["number"], best["commit"]) == (1, run["workspace"]["commit"])
    assert git(repository, "rev-parse", run["workspace"]["branch"]).strip() == best["commit"]


def test_large_scores_are_told_to_the_last_digit(kapelle: Instance, repository: Path) -> None:
    spec = {"prompt": play({"run": "echo x >> n"}), "direction": "minimize", "max_iterations": 1}
    run = perform(kapelle, "loop", repository, **spec, eval="echo $((1234567 - KAPELLE_ITERATION))")
    assert "best: 1234566 (iteration 1), 1234567 at the start" in run["reason"]
