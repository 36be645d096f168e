"""Plans of a team that are larger than it may take on, and what is left of those who plan."""

from pathlib import Path

from tests.e2e.support.ensembles import (
    YES,
    answer,
    diamond_team,
    files_on_branch,
    perform,
    rule,
    with_playbook,
)
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git

GOAL = {"goal": "Make all parts.", "success_criteria": ["there are four parts"]}


def test_what_a_plan_has_no_room_for_is_told_and_planned_again(
    kapelle: Instance, repository: Path
) -> None:
    rest = [
        {"id": "c", "title": "right part", "task": "WORK-C"},
        {"id": "d", "title": "join part", "task": "WORK-D", "depends_on": ["c"]},
    ]
    told = "left out, for a plan has at most 2 subgoals(.|\n)*Plan only what is still missing"
    second = rule(told, answer({"subgoals": rest}))
    with_playbook(kapelle, second + diamond_team(YES))
    run = perform(kapelle, "team", repository, **GOAL, max_subgoals=2)
    assert run["status"] == "completed", run["reason"]
    first, last = run["result"]["iterations"]
    assert [outcome["status"] for outcome in first["outcomes"]] == ["merged"] * 2 + ["blocked"] * 2
    assert [outcome["status"] for outcome in last["outcomes"]] == ["merged"] * 2
    assert files_on_branch(repository, run) >= {"a.txt", "b.txt", "c.txt", "d.txt"}


def test_those_who_only_answer_leave_no_branch(kapelle: Instance, repository: Path) -> None:
    with_playbook(kapelle, diamond_team())
    run = perform(kapelle, "team", repository, **GOAL)
    tasks = kapelle.get(f"/tasks?run_id={run['id']}")["tasks"]
    changed = {task["workspace"]["branch"] for task in tasks if task["title"].endswith("part")}
    branches = git(repository, "branch", "--format=%(refname:short)", "--list", "kapelle/task_*")
    assert set(branches.split()) == changed
    assert len(changed) == 4
