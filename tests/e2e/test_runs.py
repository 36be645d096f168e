"""Runs: patterns of one's own, nested runs, pause, cancel, questions and budgets."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.ensembles import perform, play, rest, start
from tests.e2e.instance import ApiError, Instance

SLOW = play({"run": "echo x >> n.txt; sleep 1"})
FOR_EVER = play({"run": "sleep 60"})


def write_pattern(repository: Path, body: str, name: str = "own") -> None:
    directory = repository / ".kapelle" / "patterns"
    directory.mkdir(parents=True, exist_ok=True)
    head = "from kapelle.patterns import Context, Failed, PatternSpec, pattern\nimport asyncio\n\n"
    (directory / f"{name}.py").write_text(head + body, encoding="utf-8")


def await_status(kapelle: Instance, run_id: str, *statuses: str, timeout_s: float = 30) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        run = kapelle.get(f"/runs/{run_id}")
        if run["status"] in statuses:
            return run
        time.sleep(0.02)
    raise AssertionError(f"{run_id} never was {statuses}: {run}")


def tasks_of(kapelle: Instance, run_id: str) -> list[Any]:
    steps = kapelle.get(f"/runs/{run_id}/steps")
    return [kapelle.task(step["subject"]) for step in steps if step["kind"] == "task"]


def await_running_task(kapelle: Instance, run_id: str, number: int = 1) -> Any:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = tasks_of(kapelle, run_id)
        if len(found) >= number and found[number - 1]["status"] == "running":
            return found[number - 1]
        time.sleep(0.02)
    raise AssertionError(f"task {number} of {run_id} never ran")


def await_waiting_task(kapelle: Instance, run_id: str) -> None:
    deadline = time.monotonic() + 30
    while kapelle.get(f"/runs/{run_id}")["waiting_for"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


OWN = '''
class Spec(PatternSpec):
    words: list[str]

@pattern("own", spec=Spec)
async def own(ctx: Context, spec: Spec) -> dict:
    """Says words, one task each, at the same time."""
    async def say(word: str) -> str:
        task = await ctx.task(
            f"Say it.\\n```rehearsal\\n[[do]]\\nresult = {word!r}\\n```\\n", workspace="own"
        )
        return task.text
    return {"said": await ctx.gather(*(say(word) for word in spec.words))}
'''


def test_a_pattern_of_ones_own(kapelle: Instance, repository: Path) -> None:
    write_pattern(repository, OWN)
    listed = kapelle.get(f"/patterns?directory={repository}")
    mine = next(item for item in listed if item["name"] == "own")
    assert mine["summary"] == "Says words, one task each, at the same time."
    assert "words" in mine["spec_schema"]["required"]
    run = perform(kapelle, "own", repository, words=["one", "two", "three"])
    assert run["status"] == "completed", run["reason"]
    assert run["result"] == {"said": ["one", "two", "three"]}
    with pytest.raises(ApiError, match="words: Field required"):
        start(kapelle, "own", repository)
    with pytest.raises(ApiError, match="did you mean own"):
        start(kapelle, "owm", repository)


def test_mistakes_in_a_pattern_are_told_with_their_line(
    kapelle: Instance, repository: Path
) -> None:
    write_pattern(repository, "def broken(:\n")
    with pytest.raises(ApiError, match=r"own\.py:4: SyntaxError"):
        start(kapelle, "own", repository)
    write_pattern(
        repository,
        '@pattern("own", spec=PatternSpec)\nasync def own(ctx, spec):\n    return 1 / 0\n',
    )
    run = perform(kapelle, "own", repository)
    assert run["status"] == "failed"
    assert "ZeroDivisionError" in run["reason"]
    assert "own.py:6" in run["reason"]
    write_pattern(repository, '@pattern("loop", spec=PatternSpec)\nasync def own(ctx, spec): ...\n')
    # What is built in is not disturbed by it, and the list tells.
    run = perform(kapelle, "loop", repository, prompt=play({"result": "x"}), until=["true"])
    assert run["status"] == "completed"
    told = [item["summary"] for item in kapelle.get(f"/patterns?directory={repository}")]
    assert any("defines already" in summary for summary in told)


def test_steps_beside_gather_are_refused(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    await asyncio.gather(ctx.sleep(0.01), ctx.sleep(0.01))
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    assert run["status"] == "failed"
    assert "ctx.gather" in run["reason"]


def test_a_pattern_that_changed_is_not_replayed(kapelle: Instance, repository: Path) -> None:
    template = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    await ctx.{first}
    await ctx.ask("Go on?")
"""
    write_pattern(repository, template.format(first="sleep(0.01)"))
    run = perform(kapelle, "own", repository)
    assert run["status"] == "waiting"
    write_pattern(repository, template.format(first="progress(a=1)"))
    kapelle.post(f"/runs/{run['id']}/answer", {"answer": "yes"})
    run = rest(kapelle, run["id"])
    assert run["status"] == "failed"
    assert "the pattern changed while the run was under way" in run["reason"]


def test_a_result_with_a_failure(kapelle: Instance, repository: Path) -> None:
    body = """
@pattern("own", spec=PatternSpec)
async def own(ctx, spec):
    raise Failed("not good enough", {"got": 7})
"""
    write_pattern(repository, body)
    run = perform(kapelle, "own", repository)
    assert (run["status"], run["reason"], run["result"]) == (
        "failed",
        "not good enough",
        {"got": 7},
    )


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
    deadline = time.monotonic() + 30
    inner = None
    while inner is None and time.monotonic() < deadline:
        found = kapelle.get(f"/runs?parent_id={run_id}")["runs"]
        inner = found[0]["id"] if found else None
    assert inner is not None
    task = await_running_task(kapelle, inner)
    kapelle.post(f"/runs/{run_id}/cancel", {"reason": "enough"})
    run = rest(kapelle, run_id)
    assert (run["status"], run["reason"]) == ("cancelled", "enough")
    assert kapelle.get(f"/runs/{inner}")["status"] == "cancelled"
    assert kapelle.task(task["id"])["status"] == "cancelled"
    assert not _sleeping(kapelle, "60")
    with pytest.raises(ApiError, match="already"):
        kapelle.post(f"/runs/{run_id}/cancel")


def test_cancelling_ends_a_check_too(kapelle: Instance, repository: Path) -> None:
    run_id = start(kapelle, "loop", repository, prompt=play({"result": "x"}), until=["sleep 61"])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not _sleeping(kapelle, "61"):
        time.sleep(0.02)
    kapelle.post(f"/runs/{run_id}/cancel")
    assert rest(kapelle, run_id)["status"] == "cancelled"
    assert not _sleeping(kapelle, "61")


def _sleeping(kapelle: Instance, seconds: str) -> list[Any]:
    found = []
    for process in kapelle.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[-2:] == ["sleep", seconds]:
                found.append(process)
    return found


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
    await_waiting_task(kapelle, run_id)
    run = kapelle.get(f"/runs/{run_id}")
    assert (run["status"], run["waiting_for"]) == ("running", "input")
    assert "Which colour?" in run["reason"]
    task = tasks_of(kapelle, run_id)[0]
    assert f"kapelle resume {task['id']}" in run["reason"]
    followed = kapelle.cli("runs", "tail", run_id)
    assert followed.returncode == 3
    kapelle.post(f"/tasks/{task['id']}/cancel")
    assert rest(kapelle, run_id)["status"] == "failed"


def test_time_runs_out_while_an_agent_works(kapelle: Instance, repository: Path) -> None:
    began = time.monotonic()
    run = perform(kapelle, "loop", repository, prompt=FOR_EVER, until=["true"], max_seconds=2)
    assert time.monotonic() - began < 20
    assert run["status"] == "failed"
    assert run["result"]["stopped_by"] == "budget"
    assert "2 s are over" in run["reason"]
    assert [task["status"] for task in tasks_of(kapelle, run["id"])] == ["cancelled"]


def test_time_runs_out_while_it_sleeps(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"run": "echo x >> n.txt"}), until=["false"], cooldown_s=60, max_seconds=2,
    )  # fmt: skip
    assert run["status"] == "failed"
    assert "2 s are over" in run["reason"]


def test_calls_of_agents_are_counted(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"run": "echo x >> n.txt"}), until=["false"], max_agent_calls=2,
    )  # fmt: skip
    assert run["status"] == "failed"
    assert "agents 2 times" in run["reason"]
    assert run["spent"]["agent_calls"] == 2


def test_money_runs_out(kapelle: Instance, repository: Path) -> None:
    costly = play(
        {"run": "echo x >> n.txt"},
        {"usage": {"input": 10, "output": 10, "cost": 0.6}},
    )
    run = perform(
        kapelle, "loop", repository, prompt=costly, until=["false"], budget_usd=1.0, max_failures=0
    )
    assert run["status"] == "failed"
    assert "budget of $1" in run["reason"]
    assert len(tasks_of(kapelle, run["id"])) == 2


def test_secrets_of_a_run_stay_out_of_the_database(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"run": "test ${#WORD} -eq 9"}), until=["test ${#WORD} -eq 9"],
        env={"WORD": "hush-hush"},
    )  # fmt: skip
    assert run["status"] == "completed", run["reason"]
    for path in (kapelle.home.database, kapelle.home.engine_database):
        for part in path.parent.glob(f"{path.name}*"):
            assert b"hush-hush" not in part.read_bytes()


def test_its_history_is_in_plain_files(kapelle: Instance, repository: Path) -> None:
    run = perform(kapelle, "loop", repository, prompt=play({"result": "x"}), until=["true"])
    directory = kapelle.home.runs / run["id"]
    deadline = time.monotonic() + 10
    while not (directory / "result.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    kinds = [event["kind"] for event in events]
    assert kinds[0] == "run.created"
    assert kinds[-1] == "run.completed"
    assert "task.completed" in kinds
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(set(numbers))
    assert json.loads((directory / "result.json").read_text(encoding="utf-8"))["result"]
    status = json.loads((directory / "status.json").read_text(encoding="utf-8"))
    assert status["status"] == "completed"
    assert (directory / "events.jsonl").stat().st_mode & 0o777 == 0o600


def test_merging_and_putting_away(kapelle: Instance, repository: Path) -> None:
    run = perform(
        kapelle, "loop", repository,
        prompt=play({"write": "new.txt", "content": "n\n"}), until=["true"],
    )  # fmt: skip
    assert "new.txt" in kapelle.get(f"/runs/{run['id']}/diff")["files"]
    merged = kapelle.post(f"/runs/{run['id']}/merge")
    assert merged["id"] == run["id"]
    assert (repository / "new.txt").exists()
    archived = kapelle.post(f"/runs/{run['id']}/archive")
    assert archived["archived_at"]
    assert not Path(run["workspace"]["path"]).exists()
    assert run["id"] not in [item["id"] for item in kapelle.get("/runs")["runs"]]
    failed = perform(kapelle, "loop", repository, prompt=play({"fail": "no"}), until=["true"])
    with pytest.raises(ApiError, match="only verified work"):
        kapelle.post(f"/runs/{failed['id']}/merge")


def test_the_same_key_starts_one_run(kapelle: Instance, repository: Path) -> None:
    spec = {"directory": str(repository), "agent": "rehearsal", "prompt": "x", "until": ["true"]}
    body = {"pattern": "loop", "spec": spec}
    key = {"Idempotency-Key": "once"}
    first = kapelle.call("POST", "/runs", body, key)
    assert kapelle.call("POST", "/runs", body, key)["id"] == first["id"]
    with pytest.raises(ApiError, match="another run"):
        kapelle.call("POST", "/runs", {**body, "spec": {**spec, "prompt": "y"}}, key)


@pytest.mark.parametrize(
    ("pattern", "spec", "told"),
    [
        ("loop", {"prompt": "x"}, "needs a condition"),
        ("loop", {"prompt": "x", "until": ["true"], "direction": "minimize"}, "exclude each other"),
        ("loop", {"until": ["true"]}, "either a prompt or steps"),
        ("pipeline", {"steps": ["one"]}, "at least 2"),
        ("pipeline", {"steps": ["a", " "]}, "steps.1.prompt: the prompt is empty"),
        ("best-of", {"prompt": "x", "candidates": ["a"]}, "no choice"),
        ("team", {"goal": "x", "planner": "nobody"}, "There is no agent 'nobody'"),
        ("team", {"goal": "x", "colour": "red"}, "colour: Extra inputs"),
    ],
)
def test_bad_specifications_are_refused(
    kapelle: Instance, repository: Path, pattern: str, spec: dict[str, Any], told: str
) -> None:
    with pytest.raises(ApiError, match=told):
        start(kapelle, pattern, repository, **spec)
    assert kapelle.get("/runs")["runs"] == []
