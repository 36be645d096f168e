"""Who was first before a crash is first after it: merging, and working in one directory."""

from pathlib import Path

from tests.chaos.test_run_control import own
from tests.e2e.support.ensembles import (
    YES,
    answer,
    on_branch,
    play,
    rest,
    rule,
    start,
    tasks_of,
    with_playbook,
)
from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import until

GOAL = {"goal": "Make it.", "success_criteria": ["it is made"], "max_iterations": 1}
# In the user's repository, whose objects the workspace borrows.
_MERGED = (
    'until git --git-dir="$(readlink -f "$(cat .git/objects/info/alternates)")/.." '
    "cat-file -e kapelle/$KAPELLE_RUN_ID:p 2>/dev/null; do sleep 0.05; done"
)


def _plan(*subgoals: tuple[str, list[str]]) -> str:
    plan = [
        {"id": name, "title": name, "task": f"WORK-{name}", "depends_on": after}
        for name, after in subgoals
    ]
    return rule("You plan the work", answer({"subgoals": plan})) + rule("You review", answer(YES))


def _titles(kapelle: Instance, run_id: str, status: str) -> set[str]:
    return {task["title"] for task in tasks_of(kapelle, run_id) if task["status"] == status}


def test_a_conflict_that_is_being_resolved_is_not_overtaken(
    kapelle: Instance, repository: Path
) -> None:
    resolve = "sleep 1.5; sed -i -E '/^(<<<<<<<|=======|>>>>>>>)/d' same"
    parts = rule("Resolve every conflict", {"run": resolve})
    parts += rule("^WORK-P", {"run": "echo p > p; echo p > same"})
    parts += rule("^WORK-Q", {"run": f"{_MERGED}; sleep 0.5; echo q > same"})
    parts += rule("^WORK-R", {"run": f"{_MERGED}; echo r > same"})
    with_playbook(kapelle, parts + _plan(("P", []), ("Q", []), ("R", [])))
    kapelle.start()
    run_id = start(kapelle, "team", repository, **GOAL)
    # R has the conflict, and Q waits for its turn to be merged.
    until(
        lambda: (
            "R (conflict)" in _titles(kapelle, run_id, "running")
            and "Q" in _titles(kapelle, run_id, "completed")
        ),
        "both",
    )
    kapelle.kill()
    kapelle.start()
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    assert sorted((on_branch(repository, run, "same") or "").split()) == ["p", "q", "r"]


def test_in_one_directory_one_works_after_the_other(kapelle: Instance, tmp_path: Path) -> None:
    place, log = tmp_path / "plain", tmp_path / "log"
    place.mkdir()

    def work(name: str, seconds: float) -> str:
        return rule(f"^WORK-{name}", {"run": f"echo {name}+ >> {log}; sleep {seconds}; "
                                              f"echo {name}- >> {log}"})  # fmt: skip

    parts = work("A", 0) + work("S", 0) + work("X", 0.5) + work("F", 2)
    with_playbook(kapelle, parts + _plan(("A", []), ("S", []), ("X", ["S"]), ("F", ["A"])))
    kapelle.start()
    run_id = start(kapelle, "team", place, **GOAL)
    until(lambda: log.exists() and "F+" in log.read_text(encoding="ascii"), "the last to begin")
    kapelle.kill()
    kapelle.start()
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    lines = log.read_text(encoding="ascii").split()
    assert [line[0] for line in lines[::2]] == [line[0] for line in lines[1::2]], lines


def await_progress(kapelle: Instance, run_id: str, name: str) -> None:
    until(lambda: name in kapelle.get(f"/runs/{run_id}")["progress"], name)


def test_a_gate_lets_in_no_more_than_it_has_places_for(kapelle: Instance, repository: Path) -> None:
    body = """
inside, most = set(), 0

async def work(number):
    nonlocal most
    async with ctx.lock("gate", places=2):
        inside.add(number)
        most = max(most, len(inside))
        await ctx.sleep(0.4 if number % 2 else 0.2)
        await ctx.progress(**{f"done {number}": True})
        inside.discard(number)

await ctx.gather(*(work(number) for number in range(6)))
return most
"""
    own(repository, body)
    kapelle.start()
    run_id = start(kapelle, "own", repository)
    for number in (1, 3):
        await_progress(kapelle, run_id, f"done {number}")
        kapelle.kill()
        kapelle.start()
    run = rest(kapelle, run_id)
    assert (run["status"], run["progress"]) == (
        "completed",
        {f"done {number}": True for number in range(6)},
    )
    steps = kapelle.get(f"/runs/{run_id}/steps")
    assert len([step for step in steps if step["kind"] == "lock"]) == 6


def test_those_before_a_crash_come_in_before_others(kapelle: Instance, repository: Path) -> None:
    body = """
async def work(name, first):
    await ctx.sleep(first)
    async with ctx.lock("gate"):
        await ctx.progress(**{name: "in"})
        await ctx.task(PROMPT, title=name, workspace="own")
        await ctx.progress(order=name)

await ctx.gather(work("late", 0.3), work("early", 0))
"""
    own(repository, body, PROMPT=play({"run": "sleep 1.5"}))
    kapelle.start()
    run_id = start(kapelle, "own", repository)
    until(lambda: "early" in _titles(kapelle, run_id, "running"), "the first")
    until(lambda: len(kapelle.get(f"/runs/{run_id}/steps")) >= 4, "the other to wait")
    kapelle.kill()
    kapelle.start()
    run = rest(kapelle, run_id)
    assert run["status"] == "completed", run["reason"]
    begun = sorted(tasks_of(kapelle, run_id), key=lambda task: task["created_at"])
    assert [task["title"] for task in begun] == ["early", "late"]
    assert begun[0]["ended_at"] < begun[1]["created_at"]
