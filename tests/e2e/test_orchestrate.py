"""`kapelle orchestrate`: a conductor's plan is carried out, mended and verified by others."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.support.ensembles import answer, files_on_branch, rest, rule, start, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git
from tests.e2e.test_children import SLEEP, Speaker, wait_for

CONDUCT = "You conduct coding agents"
TESTS = 'cat a.txt b.txt d.txt e.txt && test "$(wc -l < c.txt)" -ge 2\n'


def part(name: str, *after: str, **more: Any) -> dict[str, Any]:
    title = f"part {name}"
    return {"id": name, "title": title, "task": f"WORK-{name}", "depends_on": after, **more}


def makes(name: str, *needed: str) -> str:
    look = {"run": f"cat {' '.join(needed)}"} if needed else {"say": "I begin"}
    file = f"{name}.txt"
    return rule(f"^WORK-{name}", look, {"write": file, "content": f"{name}\n"}, {"result": "made"})


FIVE = [
    part("a"), part("b", "a"),
    part("c", "a", kind="loop", checks=["test $(wc -l < c.txt) -ge 2"]),
    part("d", "b", "c"), part("e", "d"),
]  # fmt: skip
AGAIN = [{**part("b", "a"), "task": "WORK-b with another compiler"}]
FIRST, SECOND = rf"{CONDUCT}[\s\S]*turn 1 of", rf"{CONDUCT}[\s\S]*the compiler is missing"
WORK = [
    makes("a"),
    rule(r"^WORK-b with another[\s\S]*failed: [\s\S]*the compiler is missing",
         {"write": "b.txt", "content": "b\n"}),
    rule("^WORK-b", {"fail": "the compiler is missing"}),
    rule("^WORK-c", {"run": "echo x >> c.txt"}),
    makes("d", "b.txt", "c.txt"), makes("e", "d.txt"),
]  # fmt: skip


def test_a_goal_in_five_parts_over_a_failure_and_a_crash(
    kapelle: Instance, repository: Path
) -> None:
    spoil = {"write": "conductor.txt", "content": "mine\n"}
    book = [rule(SECOND, answer({"parts": AGAIN})), rule(FIRST, spoil, answer({"parts": FIVE}))]
    with_playbook(kapelle, "\n".join([*book, *WORK]))
    (repository / "tests.sh").write_text(TESTS, encoding="utf-8")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=The tests")
    run_id = start(kapelle, "orchestrate", repository, goal="All five", until=["sh tests.sh"])
    plan = wait_for(lambda: kapelle.get(f"/runs/{run_id}")["progress"].get("plan"))
    assert [one["id"] for one in plan] == ["a", "b", "c", "d", "e"]
    assert "part d" in kapelle.cli("status", run_id, cwd=repository).stdout
    wait_for(lambda: kapelle.get(f"/runs/{run_id}")["progress"]["plan"][0]["status"] == "merged")
    kapelle.kill()
    kapelle.start()
    rest(kapelle, run_id, 120)
    run = kapelle.get(f"/runs/{run_id}")
    assert (run["status"], run["reason"]) == ("completed", "reached in iteration 2"), run
    assert {one["status"] for one in run["result"]["plan"]} == {"merged"}
    assert [len(one["work"]) for one in run["result"]["plan"]] == [1, 2, 1, 1, 1]
    assert run["verified"]
    files = files_on_branch(repository, run)
    assert {f"{name}.txt" for name in "abcde"} <= files
    assert "conductor.txt" not in files
    kapelle.post(f"/runs/{run_id}/merge")
    git(repository, "cat-file", "-e", "main:e.txt")


def test_without_progress_or_evidence_it_ends_with_the_reason(
    kapelle: Instance, repository: Path
) -> None:
    verdict = {"reached": False, "reason": "there is no page"}
    judge = rule("You judge", answer(verdict))
    with_playbook(kapelle, judge + rule(CONDUCT, answer({"done": True})))
    told = ["A page", "-a", "rehearsal", "--patience", "2", "--progress"]
    done = kapelle.cli("orchestrate", *told, cwd=repository)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line[:1] == "{"]
    assert [(one.get("iteration"), one.get("phase"), one.get("lack")) for one in lines[:-1]] == [
        (number, "not done", "there is no page") for number in (1, 2)
    ]
    run_id = lines[-1]["run_id"]
    circle = answer({"parts": [part("a", "b"), part("b", "a")]})
    rest(kapelle, run_id)
    run = kapelle.get(f"/runs/{run_id}")
    assert (run["status"], run["reason"]) == (
        "failed", "no progress in 2 iterations: there is no page"
    )  # fmt: skip
    with_playbook(kapelle, rule(CONDUCT, circle))
    run_id = start(kapelle, "orchestrate", repository, goal="A page", patience=1)
    rest(kapelle, run_id)
    assert "in a circle" in kapelle.get(f"/runs/{run_id}")["reason"]
    with_playbook(kapelle, rule(CONDUCT, answer({"impossible": "no such language"})))
    done = kapelle.cli("orchestrate", "A page", "-a", "rehearsal", "-f", cwd=repository)
    assert done.returncode == 1
    assert "the conductor gave up: no such language" in done.stdout + done.stderr


def test_a_judge_decides_and_a_conductor_below_is_a_part(
    kapelle: Instance, repository: Path
) -> None:
    below = part("below", kind="orchestrate")
    book = [
        rule("You judge", answer({"reached": True, "reason": "it is there"})),
        rule(rf"{CONDUCT}[\s\S]*## The goal\nWORK-below",
             answer({"parts": [part("a")], "done": True})),
        rule(CONDUCT, answer({"parts": [below], "done": True})),
        makes("a"),
    ]  # fmt: skip
    with_playbook(kapelle, "\n".join(book))
    told = ["One", "-a", "rehearsal", "--max-depth", "2", "-f"]
    followed = kapelle.cli("orchestrate", *told, cwd=repository)
    run_id = followed.stdout.split()[0]
    assert "work: part below (orchestrate): merged" in followed.stdout
    assert "✓ part below " in kapelle.cli("status", run_id).stdout
    run = kapelle.get(f"/runs/{run_id}")
    assert (run["status"], run["result"]["verdict"]["reached"]) == ("completed", True), run
    assert "a.txt" in files_on_branch(repository, run)
    run_id = start(kapelle, "orchestrate", repository, goal="One", max_depth=1, patience=1)
    rest(kapelle, run_id)
    [refused] = kapelle.get(f"/runs/{run_id}")["result"]["plan"]
    assert refused["reason"] == "No conductor may be below this one (--max-depth)."


def test_a_sixth_level_a_worker_and_a_dollar_too_much_are_refused(
    tmp_path: Path, repository: Path
) -> None:
    kapelle = Instance(tmp_path / "home", KAPELLE_LIMITS__MAX_ATTEMPTS="6")
    kapelle.start()
    try:
        with_playbook(kapelle, rule(CONDUCT, {"sleep": 120}))
        limits = {"max_depth": 5, "max_workers": 20, "budget_usd": 3}
        run_id = start(kapelle, "orchestrate", repository, goal="More", **limits)
        [task] = wait_for(lambda: kapelle.get("/tasks?status=running")["tasks"])
        first = voice = at_work(kapelle, task["id"], repository)
        for _level in range(5):
            voice = at_work(kapelle, voice.create(SLEEP)["id"], repository)
        body = {"prompt": "x", "directory": str(repository)}
        told = voice.refused("limit_reached", "POST", "/tasks", body)
        assert told.startswith(f"This would be level 6 below {run_id}, and 5 are allowed")
        for _worker in range(15):
            first.create("x")
        told = first.refused("limit_reached", "POST", "/tasks", body)
        assert told.startswith(f"20 tasks below {run_id} are open, and 20 may be")
        told = first.refused("limit_reached", "POST", "/tasks", {**body, "budget_usd": 4})
        assert "$3 is left" in told
        kapelle.post(f"/runs/{run_id}/cancel")
        rest(kapelle, run_id)
        wait_for(lambda: not kapelle.get("/tasks?status=running&status=queued")["tasks"])
    finally:
        kapelle.destroy()


def at_work(kapelle: Instance, task_id: str, repository: Path) -> Speaker:
    kapelle.wait_for_status(task_id, "running")
    wait_for(lambda: kapelle.task(task_id)["workspace"]["branch"])
    return Speaker.attempt(kapelle, task_id, repository)
