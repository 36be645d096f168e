"""Teams: parallel parts in worktrees of their own become one verified branch, or it is said why."""

import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.support.ensembles import (
    DIAMOND,
    RESTING,
    YES,
    answer,
    cast,
    clashing_team,
    diamond_team,
    files_on_branch,
    on_branch,
    perform,
    purposes_of,
    rest,
    rule,
    start,
    subjects,
    tasks_of,
    with_playbook,
)
from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import kinds

GOAL = {"goal": "Build all parts", "success_criteria": ["all parts are there"]}


def one(task: str = "WORK") -> dict[str, Any]:
    return {"subgoals": [{"id": "only", "title": "the part", "task": task}]}


def test_a_diamond_of_parts_becomes_one_branch(kapelle: Instance, repository: Path) -> None:
    with_playbook(kapelle, diamond_team())
    run = perform(kapelle, "team", repository, **GOAL, verify=["test $(wc -l < all.txt) = 3"])
    assert run["status"] == "completed", run["reason"]
    iteration = run["result"]["iterations"][0]
    assert [outcome["status"] for outcome in iteration["outcomes"]] == ["merged"] * 4
    assert on_branch(repository, run, "all.txt") == "a\nb\nc\n"
    # Four worktrees, four branches, each merged for itself.
    assert len([line for line in subjects(repository, run) if line.startswith("Merge")]) == 4
    assert iteration["review"]["goal_complete"]
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert "task_" not in listed.stdout
    checkout = subprocess.run(
        ["git", "status", "--porcelain"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert checkout.stdout == ""


def test_a_conflict_is_given_back_to_a_worker(kapelle: Instance, repository: Path) -> None:
    resolve = {"run": "sed -i -E '/^(<<<<<<<|=======|>>>>>>>)/d' same"}
    with_playbook(kapelle, clashing_team(resolve))
    run = perform(kapelle, "team", repository, **GOAL)
    assert run["status"] == "completed", run["reason"]
    outcomes = run["result"]["iterations"][0]["outcomes"]
    assert sorted(len(outcome["tasks"]) for outcome in outcomes) == [1, 2]
    content = on_branch(repository, run, "same")
    assert content is not None
    assert sorted(content.splitlines()) == ["one", "two"]


def test_a_conflict_that_is_not_resolved_is_told(kapelle: Instance, repository: Path) -> None:
    undone = {**YES, "goal_complete": False}
    with_playbook(kapelle, clashing_team({"result": "I did it!"}, undone))
    run = perform(kapelle, "team", repository, **GOAL, max_iterations=1)
    assert run["status"] == "failed"
    statuses = [item["status"] for item in run["result"]["iterations"][0]["outcomes"]]
    assert sorted(statuses) == ["conflict", "merged"]
    assert on_branch(repository, run, "same") in {"one\n", "two\n"}


def test_a_lying_worker_is_caught(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("You plan", answer(one()))
        + rule("You review", answer({**YES, "goal_complete": False}))
        + rule("^WORK", {"result": "Done, all of it!"}),
    )
    run = perform(kapelle, "team", repository, **GOAL, max_iterations=1)
    assert run["status"] == "failed"
    outcome = run["result"]["iterations"][0]["outcomes"][0]
    assert outcome["status"] == "failed"
    assert "diff_not_empty" in outcome["reason"]
    # It was given a second chance, and told why.
    assert len(outcome["tasks"]) == 2
    second = kapelle.task(outcome["tasks"][1])
    assert "was not accepted" in second["prompt"]
    assert subjects(repository, run) == []


def test_the_reviewers_no_brings_another_iteration(kapelle: Instance, repository: Path) -> None:
    no = {**YES, "quality": False, "goal_complete": False, "feedback": "WORK-MORE is missing"}
    with_playbook(
        kapelle,
        rule("You plan[\\s\\S]*WORK-MORE", answer(one("WORK-MORE")))
        + rule("You plan", answer(one("WORK-FIRST")))
        + rule("You review[\\s\\S]*more\\.txt", answer(YES))
        + rule("You review", answer(no))
        + rule("^WORK-FIRST", {"write": "first.txt", "content": "1\n"})
        + rule("^WORK-MORE", {"write": "more.txt", "content": "2\n"}),
    )
    run = perform(kapelle, "team", repository, **GOAL)
    assert run["status"] == "completed", run["reason"]
    assert len(run["result"]["iterations"]) == 2
    each = [("plan", 1), ("work", 1), ("review", 1), ("plan", 2), ("work", 2), ("review", 2)]
    assert purposes_of(kapelle, run["id"])[-6:] == each
    assert {"first.txt", "more.txt"} <= files_on_branch(repository, run)


def test_failing_verification_is_a_hard_gate(kapelle: Instance, repository: Path) -> None:
    """No reviewer is asked, and the next plan sees the end of the output."""
    with_playbook(
        kapelle,
        rule("You plan[\\s\\S]*NEEDLE", answer(one("WORK-MEND")))
        + rule("You plan", answer(one("WORK-BREAK")))
        + rule("You review", answer(YES))
        + rule("^WORK-BREAK", {"write": "v.txt", "content": "bad\n"})
        + rule("^WORK-MEND", {"write": "v.txt", "content": "good\n"}),
    )
    check = "grep -q good v.txt || { seq 1 50000; echo NEEDLE; exit 1; }"
    run = perform(kapelle, "team", repository, **GOAL, verify=[check])
    assert run["status"] == "completed", run["reason"]
    first, second = run["result"]["iterations"]
    assert first["review"] is None
    assert not first["checks"][0]["passed"]
    assert second["review"] is not None


def test_a_failed_worker_is_a_result(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("^WORK-B", {"crash": "KILL"}) + diamond_team({**YES, "goal_complete": False}),
    )
    run = perform(kapelle, "team", repository, **GOAL, max_iterations=1, max_task_retries=0)
    assert run["status"] == "failed"
    statuses = {o["id"]: o["status"] for o in run["result"]["iterations"][0]["outcomes"]}
    assert statuses == {"a": "merged", "b": "failed", "c": "merged", "d": "blocked"}


def test_an_unreadable_plan_is_asked_for_again(kapelle: Instance, repository: Path) -> None:
    with_playbook(
        kapelle,
        rule("You plan[\\s\\S]*could not be used", answer(one()))
        + rule("You plan", {"result": "First I would look around, then I would begin."})
        + rule("You review", answer(YES))
        + rule("^WORK", {"write": "w.txt", "content": "1\n"}),
    )
    run = perform(kapelle, "team", repository, **GOAL)
    assert run["status"] == "completed", run["reason"]


def test_a_plan_in_a_circle_is_refused(kapelle: Instance, repository: Path) -> None:
    plan = {
        "subgoals": [
            {"id": "x", "title": "x", "task": "X", "depends_on": ["y"]},
            {"id": "y", "title": "y", "task": "Y", "depends_on": ["x"]},
        ]
    }
    with_playbook(kapelle, rule("You plan", answer(plan)))
    run = perform(kapelle, "team", repository, **GOAL, max_iterations=1)
    assert run["status"] == "failed"
    assert "in a circle: x, y" in run["reason"]


def test_intake_proposes_criteria(kapelle: Instance, repository: Path) -> None:
    intake = {"success_criteria": ["CRITERION"], "questions": ["Ignored, nobody is asked?"]}
    with_playbook(
        kapelle,
        rule("You prepare", answer(intake))
        + rule("You plan[\\s\\S]*CRITERION", answer(one()))
        + rule("You review[\\s\\S]*CRITERION", answer(YES))
        + rule("^WORK", {"write": "w.txt", "content": "1\n"}),
    )
    run = perform(kapelle, "team", repository, goal="Build it")
    assert run["status"] == "completed", run["reason"]
    assert run["result"]["success_criteria"] == ["CRITERION"]


def test_questions_suspend_it_and_answers_reach_the_planner(
    kapelle: Instance, repository: Path
) -> None:
    questions = [f"Question {number}?" for number in range(6)]
    intake = {"success_criteria": ["done"], "questions": questions}
    with_playbook(
        kapelle,
        rule("You prepare", answer(intake))
        + rule("You plan[\\s\\S]*Question 0\\? blue", answer(one()))
        + rule("You review", answer(YES))
        + rule("^WORK", {"write": "w.txt", "content": "1\n"}),
    )
    run = perform(kapelle, "team", repository, goal="Build it", ask=True)
    assert run["status"] == "waiting"
    assert [question["text"] for question in run["questions"]] == questions[:4]
    for question in run["questions"]:
        kapelle.post(f"/runs/{run['id']}/answer", {"answer": "blue", "token": question["token"]})
    run = rest(kapelle, run["id"])
    assert run["status"] == "completed", run["reason"]


def test_a_worker_that_asks_where_nobody_answers_has_failed(
    kapelle: Instance, repository: Path
) -> None:
    with_playbook(
        kapelle,
        rule("You plan", answer(one()))
        + rule("You review", answer(YES))
        + rule("^WORK", {"ask": "Which colour?"}),
    )
    run_id = start(kapelle, "team", repository, **GOAL, max_iterations=1, max_task_retries=0)
    shown = set()
    while (run := kapelle.get(f"/runs/{run_id}"))["status"] not in RESTING:
        shown.add(run["waiting_for"])
    assert shown == {None}
    assert run["status"] == "failed"
    (outcome,) = run["result"]["iterations"][0]["outcomes"]
    assert outcome["status"] == "failed"
    assert "nobody is there to answer" in outcome["reason"]
    assert kapelle.task(outcome["tasks"][0])["stopped_by"] == "input"
    assert "Which colour?" in outcome["reason"]
    (task_id,) = outcome["tasks"]
    assert kapelle.task(task_id)["status"] == "cancelled"


def test_every_role_may_have_its_own_agent(kapelle: Instance, repository: Path) -> None:
    cast(
        kapelle,
        thinker=rule("You plan", answer(one())),
        doer=rule("^WORK", {"write": "w.txt", "content": "1\n"}),
        critic=rule("You review", answer(YES)),
    )
    roles = {"planner": "thinker", "worker": "doer", "reviewer": "critic"}
    run = perform(kapelle, "team", repository, **GOAL, **roles)
    assert run["status"] == "completed", run["reason"]
    used = [task["agent"] for task in tasks_of(kapelle, run["id"])]
    assert used == ["thinker", "doer", "critic"]


def test_in_place_one_works_at_a_time(kapelle: Instance, tmp_path: Path) -> None:
    place = tmp_path / "plain"
    place.mkdir()
    with_playbook(
        kapelle,
        rule("You plan", answer({"subgoals": DIAMOND["subgoals"][:3]}))
        + rule("You review", answer(YES))
        + rule("^WORK", {"run": "test ! -e busy && touch busy && sleep 0.3 && rm busy"}),
    )
    run = perform(kapelle, "team", place, **GOAL)
    assert run["status"] == "completed", run["reason"]


def test_a_poor_planner_is_understood_and_what_was_said_is_in_the_events(
    kapelle: Instance, repository: Path
) -> None:
    """The intake fails, the plan is a list of texts, and one part of it is text alone."""
    words = {"id": "w", "title": "the words", "task": "WORK-WORDS", "text_only": True}
    with_playbook(
        kapelle,
        rule("You prepare", {"fail": "quota exhausted"})
        + rule("You plan", answer({"subgoals": ["WORK-FILE", words]}))
        + rule("You review", answer(YES))
        + rule("^WORK-FILE", {"write": "a.txt", "content": "a\n"}, {"result": "I wrote a."})
        + rule("^WORK-WORDS", {"result": "All is well."}),
    )
    run = perform(kapelle, "team", repository, goal="Build it")
    assert run["status"] == "completed", run["reason"]
    result = run["result"]
    assert result["success_criteria"] == ["The goal is reached as it is stated."]
    assert (result["stopped_by"], on_branch(repository, run, "a.txt")) == ("goal", "a\n")
    assert result["final_output"] == "## WORK-FILE\n\nI wrote a.\n\n## the words\n\nAll is well."
    told = {fact["text"] for task in tasks_of(kapelle, run["id"])
            for fact in kinds(kapelle, task["id"], "task.completed")}  # fmt: skip
    assert {"I wrote a.", "All is well."} <= told
    subgoals = [{"id": "WORK-FILE", "title": "WORK-FILE"}, {"id": "w", "title": "the words"}]
    assert run["progress"]["subgoals"] == subgoals
    assert run["progress"]["review"]["approves"]
    limited = perform(kapelle, "team", repository, **GOAL, max_agent_calls=1)
    assert limited["result"]["stopped_by"] == "budget"


def test_in_place_a_second_try_is_not_told_to_begin_anew(kapelle: Instance, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    with_playbook(
        kapelle,
        rule("You plan", answer(one()))
        + rule("You review", answer(YES))
        + rule("may be in your files", {"result": "Done."})
        + rule("^WORK", {"write": "half.txt", "content": "h\n"}, {"fail": "broke off"}),
    )
    run = perform(kapelle, "team", plain, **GOAL)
    assert run["status"] == "completed", run["reason"]
    assert len(run["result"]["iterations"][0]["outcomes"][0]["tasks"]) == 2


def test_a_planner_without_json_fails_its_tasks_and_ends_the_team_early(
    kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, rule("You plan", {"result": "I would begin with the first part."}))
    run = perform(kapelle, "team", repository, **GOAL)
    assert (run["status"], run["result"]["stopped_by"]) == ("failed", "failure")
    assert len(run["result"]["iterations"]) == 2
    assert "2 plans in a row could not be read" in run["reason"]
    plans = tasks_of(kapelle, run["id"])
    # Each was asked for once more; none of them counts as done.
    assert [task["status"] for task in plans] == ["failed"] * 4
    assert {task["checks"][-1]["name"] for task in plans} == {"answer"}
    assert {task["attempts"][-1]["failure"] for task in plans} == {"checks"}
    followed = kapelle.cli("events", "--run", run["id"]).stdout
    assert "task.completed" not in followed


def test_a_planner_that_answers_in_json_when_asked_again_goes_on(
    kapelle: Instance, repository: Path
) -> None:
    with_playbook(
        kapelle,
        rule("You plan[\\s\\S]*could not be used", answer(one()))
        + rule("You plan", {"result": "I would begin with the first part."})
        + rule("WORK", {"run": "date +%N > w"})
        + rule("You review", answer(YES)),
    )
    run = perform(kapelle, "team", repository, **GOAL, max_iterations=1)
    statuses = {task["title"]: task["status"] for task in tasks_of(kapelle, run["id"])}
    assert (statuses["Plan"], statuses["Plan (again)"]) == ("failed", "completed")
