"""`kapelle workflow`: a plan, cycles of review and implementation, a way out of every trouble."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.support.ensembles import (
    answer,
    cast,
    files_on_branch,
    on_branch,
    perform,
    purposes_of,
    rest,
    rule,
    start,
    tasks_of,
)
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git
from tests.e2e.test_children import wait_for

NAMES = ["one", "two", "three", "four", "five"]
PLAN = "\n".join(
    [
        "## Plan",
        *(f"- [ ] {name} is there, check: `test -f {name}.txt`" for name in NAMES),
        "- [ ] six is told in the README",
        "## Contract",
        "- Write small files.",
    ]
)
ASSESS, REVIEW, IMPLEMENT = "You prepare work", "You review work", "You work in this directory"
FINE = {"summary": "I looked."}


def doing(milestone: str, *steps: dict[str, Any], after: str = "") -> str:
    return rule(rf"{IMPLEMENT}[\s\S]*{after}[\s\S]*## The milestone\n{milestone}", *steps)


def writes(name: str) -> list[dict[str, Any]]:
    return [{"write": f"{name}.txt", "content": f"{name}\n"}, {"result": f"Wrote {name}."}]


def notes(kapelle: Instance, run_id: str, name: str) -> str:
    key = f"workflow/{run_id}/{name}"
    return kapelle.cli("notes", "get", key, "--scope", run_id, check=True).stdout


SIX = doing("six", {"run": "echo six >> README.md"}, {"result": "Told six."})
CODER = "\n".join(
    [
        rule(rf"{ASSESS}[\s\S]*could not be used", {"result": PLAN}),
        rule(ASSESS, {"write": "assess.txt"}, {"result": "I have thought about it."}),
        doing("one", *writes("one")),
        doing("two", *writes("two"), after="`test -f two.txt` fails"),
        doing("two", {"result": "Two is done, believe me."}),
        doing("three", {"rate_limit": {"reset_in_s": 1}}),
        doing("four", {"crash": "SEGV"}),
        doing("five", *writes("five")),
        SIX,
    ]
)
# Its work outlasts the limit of the one before.
OTHER = doing("three", {"sleep": 2}, *writes("three"))
OTHER += "".join(doing(name, *writes(name)) for name in ("four", "five")) + SIX
SPOIL = {
    "run": "rm README.md; echo mine > critic.txt; git add -A; git commit -qm mine; "
    "for one in $(git for-each-ref --format='%(refname)' refs/heads); do git update-ref -d $one; "
    "done; rm -rf ."
}
CRITIC = "\n".join(
    [
        rule(rf"{REVIEW}[\s\S]*Told six", answer({**FINE, "done": [6]})),
        rule(rf"{REVIEW}[\s\S]*nothing yet", {**SPOIL, "ok_codes": [0, 1]}, answer(FINE)),
        rule(REVIEW, answer({**FINE, "done": [1, 2, 3, 4, 5], "issues": ["Go on."]})),
    ]
)


def test_six_milestones_over_every_trouble_on_the_way(kapelle: Instance, repository: Path) -> None:
    cast(kapelle, coder=CODER, other=OTHER, critic=CRITIC)
    git(repository, "branch", "keepsake")
    run_id = start(
        kapelle, "workflow", repository, task="All six", implementers=["coder", "other"],
        reviewers=["critic"], retry_delay_s=0, checks=["test -f README.md"],
        limits=["implement:turns=50,minutes=10", "review:completion"],
    )  # fmt: skip
    wait_for(lambda: kapelle.get(f"/runs/{run_id}")["progress"].get("done", 0) >= 2)
    kapelle.kill()
    kapelle.start()
    run = rest(kapelle, run_id, 180)
    assert run["reason"] == "all 6 milestones hold, as reviewed", run["result"] or run["progress"]
    evidence = [one["evidence"] for one in run["result"]["milestones"]]
    assert all(
        f"`test -f {name}.txt` passed on" in told
        for name, told in zip(NAMES, evidence[:5], strict=True)
    )
    assert evidence[5] == "seen by critic in the review of cycle 8"
    files = files_on_branch(repository, run)
    assert {f"{name}.txt" for name in NAMES} <= files
    assert not files & {"assess.txt", "critic.txt"}
    assert {"keepsake", "main"} <= set(
        git(repository, "branch", "--format=%(refname:short)").split()
    )
    assert (on_branch(repository, run, "README.md") or "").endswith("six\n")
    done = [entry["agent"] for entry in run["result"]["worklog"] if entry["phase"] == "implement"]
    # Whether one that crashed three times is left alone for a while is not the pattern's to say.
    assert (done[:5], len(done)) == (["coder"] * 3 + ["other"] * 2, 7)
    threes = [
        task for task in tasks_of(kapelle, run_id) if "## The milestone\nthree" in task["prompt"]
    ]
    assert [task["stopped_by"] for task in threes] == ["rate_limit", None]
    purposes = purposes_of(kapelle, run_id)
    assert purposes[:3] == [("assess", 0), ("assess", 0), ("review", 1)]  # one was repaired
    assert {role for role, _ in purposes} == {"assess", "review", "implement"}
    fours = [
        task for task in tasks_of(kapelle, run_id) if "## The milestone\nfour" in task["prompt"]
    ]
    assert [(task["agent"], task["status"]) for task in fours] == [
        *[("coder", "failed")] * 3,
        ("other", "completed"),
    ]
    assert notes(kapelle, run_id, "plan").startswith(
        "- [x] 1. one is there check: `test -f one.txt`"
    )
    assert notes(kapelle, run_id, "contract").strip() == "- Write small files."
    [plan] = kapelle.get(f"/notes?scope={run_id}&prefix=workflow/{run_id}/plan")["notes"]
    assert plan["author"] == run_id
    assert "`test -f two.txt` fails" in notes(kapelle, run_id, "worklog/cycle-2-implement")


ONE = "## Plan\n- [ ] one is there, check: `test -f one.txt`\n## Contract\nNone."
LAZY = rule(ASSESS, {"result": ONE}) + doing("easy", *writes("easy")) + rule(IMPLEMENT)
SHORT = {"agent": "coder", "task": "One", "retry_delay_s": 0}


def answered(kapelle: Instance, run_id: str, text: str) -> Any:
    """The run when it rests again after an answer."""
    kapelle.post(f"/runs/{run_id}/answer", {"answer": text})
    return rest(kapelle, run_id)


def test_without_progress_it_is_blocked_until_a_person_resumes_it(
    kapelle: Instance, repository: Path
) -> None:
    cast(kapelle, coder=LAZY + rule(REVIEW, answer({**FINE, "done": [1]})))
    run = perform(kapelle, "workflow", repository, **SHORT)
    blocked = run["progress"]["blocked"]
    assert (run["status"], blocked["code"]) == ("waiting", "progress")
    assert (blocked["phase"], blocked["cycle"]) == ("implement", 3)
    assert blocked["reason"] in run["reason"]
    assert blocked["fix"] in run["reason"]
    worktree, branch = Path(run["workspace"]["path"]), run["workspace"]["branch"]
    made = len(tasks_of(kapelle, run["id"]))
    for wrong, told in {
        "dance 1": "'dance 1' is no phase with a cycle.",
        "implement 9": "name one from 1 to 3.",
    }.items():
        run = answered(kapelle, run["id"], wrong)
        assert told in run["reason"]
        assert run["progress"]["blocked"] == blocked
    git(worktree, "checkout", "--quiet", "-b", "elsewhere")
    run = answered(kapelle, run["id"], "resume")
    assert "The worktree is on elsewhere." in run["reason"]
    git(worktree, "checkout", "--quiet", branch)
    assert len(tasks_of(kapelle, run["id"])) == made
    plan = ["notes", "set", f"workflow/{run['id']}/plan", "-", "--scope", run["id"]]
    kapelle.cli(*plan, input="- [x] easy is there, check: `test -f easy.txt`", check=True)
    run = answered(kapelle, run["id"], "implement 2")
    assert run["reason"] == "all 1 milestones hold, as reviewed", run
    assert run["result"]["milestones"][0]["evidence"].startswith("`test -f easy.txt` passed")
    assert run["result"]["blocked"] is None


def test_a_check_that_passes_before_the_work_ticks_nothing_without_the_reviewer(
    kapelle: Instance, repository: Path
) -> None:
    """Who wrote the plan with its checks also implements it, and does nothing."""
    plan = "## Plan\n- [ ] the export works, check: `true`\n- [ ] it is tested, check: `test -d .`"
    liar = rule(ASSESS, {"result": f"{plan}\n## Contract\n- small"})
    liar += rule(IMPLEMENT, {"result": "Done."})
    strict = rule(REVIEW, answer({"summary": "Nothing was done.", "issues": ["No export."]}))
    cast(kapelle, liar=liar, strict=strict)
    spec = {"task": "Export", "implementers": ["liar"], "reviewers": ["strict"], "wait": False}
    run = perform(kapelle, "workflow", repository, **spec)
    assert run["status"] == "failed"
    assert "no new milestone; the next is: the export works" in run["reason"]
    milestones = run["result"]["milestones"]
    assert [(one["blind"], one["evidence"]) for one in milestones] == [(True, None), (False, None)]
    # What it does then is ticked by the reviewer, who saw it.
    cast(kapelle, liar=liar, kind=rule(REVIEW, answer({**FINE, "done": [1, 2]})))
    run = perform(kapelle, "workflow", repository, **{**spec, "reviewers": ["kind"]})
    assert run["status"] == "completed", run["reason"]
    assert [one["evidence"].partition(" in")[0] for one in run["result"]["milestones"]] == [
        "seen by kind"
    ] * 2


def test_another_branch_blocks_it_before_anything_is_written_and_the_plan_is_put_back(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    wait = {"run": f"until test -e {go}; do sleep 0.05; done"}
    cast(kapelle, coder=LAZY + rule(REVIEW, wait, answer(FINE)))
    run_id = start(kapelle, "workflow", repository, **SHORT)
    wait_for(lambda: kapelle.get(f"/runs/{run_id}")["progress"].get("phase") == "review")
    run = kapelle.get(f"/runs/{run_id}")
    git(Path(run["workspace"]["path"]), "checkout", "--quiet", "-b", "elsewhere")
    scope = ["--scope", run_id]
    kapelle.cli("notes", "delete", f"workflow/{run_id}/plan", *scope, check=True)
    kapelle.cli("notes", "set", f"workflow/{run_id}/contract", "Be quick.", *scope, check=True)
    go.touch()
    run = rest(kapelle, run_id)
    assert run["progress"]["blocked"]["code"] == "branch"
    assert [task["title"] for task in tasks_of(kapelle, run_id)] == [
        "Assess (cycle 0)",
        "Review (cycle 1)",
    ]
    git(Path(run["workspace"]["path"]), "checkout", "--quiet", run["workspace"]["branch"])
    kapelle.cli(
        "notes", "set", f"workflow/{run_id}/plan", "Just do it.", "--scope", run_id, check=True
    )
    run = answered(kapelle, run_id, "resume")
    assert "Assess (cycle 1)" in [task["title"] for task in tasks_of(kapelle, run_id)]
    assert notes(kapelle, run_id, "plan").startswith("- [ ] 1. one is there")
    assert "## Contract\nBe quick." in tasks_of(kapelle, run_id)[-1]["prompt"]
    run = answered(kapelle, run_id, "stop")
    assert (run["status"], run["result"]["blocked"]["code"]) == ("failed", "progress")


def test_unattended_it_fails_with_the_reason_and_what_to_do(
    kapelle: Instance, repository: Path
) -> None:
    cast(
        kapelle,
        coder=rule(ASSESS, {"result": "No plan, no contract."}),
        broken=rule(".", {"crash": "SEGV"}),
        planner=rule(ASSESS, {"result": ONE}),
    )
    run = perform(kapelle, "workflow", repository, **SHORT, wait=False)
    assert run["reason"].startswith("blocked in assess of cycle 0: the answer of coder")
    assert run["result"]["blocked"]["code"] == "plan"
    assert len(tasks_of(kapelle, run["id"])) == 3
    told = {"implementers": ["planner"], "reviewers": ["broken"], "wait": False}
    run = perform(kapelle, "workflow", repository, **SHORT, **told)
    assert run["reason"].startswith("blocked in review of cycle 1: no agent could do it: broken: ")
    assert run["result"]["blocked"]["code"] == "agents"
    assert len(tasks_of(kapelle, run["id"])) == 4
    # The limits that docs/workflow.md names.
    limits = ["--limit", "implement:turns=60,usd=3,minutes=40", "--limit", "review:minutes=15"]
    begun = kapelle.cli("workflow", "x", "--agent", "coder", *limits, "--json", cwd=repository)
    assert begun.returncode == 0, begun.stderr
    asked = json.loads(begun.stdout)
    assert [limit["phase"] for limit in asked["spec"]["limits"]] == ["implement", "review"]
    kapelle.post(f"/runs/{asked['id']}/cancel")
    refused = kapelle.cli("workflow", "x", "--limit", "dance:turns=2", cwd=repository)
    assert refused.returncode == 2
    assert "assess" in refused.stderr
