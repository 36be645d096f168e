"""`kapelle workflow`: a plan, cycles of review and implementation, and a way out of every trouble."""

from pathlib import Path
from typing import Any

from tests.e2e.ensembles import (
    answer,
    await_status,
    cast,
    files_on_branch,
    on_branch,
    perform,
    rest,
    rule,
    start,
    tasks_of,
)
from tests.e2e.instance import Instance
from tests.e2e.repositories import git
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


CODER = "\n".join(
    [
        rule(rf"{ASSESS}[\s\S]*could not be used", {"result": PLAN}),
        rule(ASSESS, {"write": "assess.txt"}, {"result": "I have thought about it."}),
        doing("one", *writes("one")),
        doing("two", *writes("two"), after="`test -f two.txt` fails"),
        doing("two", {"result": "Two is done, believe me."}),
        doing("three", {"rate_limit": {"reset_in_s": 1}}),
        doing("four", {"crash": "SEGV"}),
    ]
)
SIX = doing("six", {"run": "echo six >> README.md"}, {"result": "Told six."})
OTHER = "".join(doing(name, *writes(name)) for name in ("three", "four", "five")) + SIX
SPOIL = {"run": "rm README.md; echo mine > critic.txt; git add -A; git commit -qm mine; rm -rf ."}
CRITIC = "\n".join(
    [
        rule(rf"{REVIEW}[\s\S]*Told six", answer({**FINE, "done": [6]})),
        rule(rf"{REVIEW}[\s\S]*nothing yet", {**SPOIL, "ok_codes": [0, 1]}, answer(FINE)),
        rule(REVIEW, answer({**FINE, "done": [1, 2, 3, 4, 5], "issues": ["Go on."]})),
    ]
)


def test_six_milestones_over_every_trouble_on_the_way(kapelle: Instance, repository: Path) -> None:
    cast(kapelle, coder=CODER, other=OTHER, critic=CRITIC)
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
    assert all(f"`test -f {name}.txt` passed on" in told for name, told in zip(NAMES, evidence))
    assert evidence[5] == "seen by critic in the review of cycle 8"
    files = files_on_branch(repository, run)
    assert {f"{name}.txt" for name in NAMES} <= files
    assert not files & {"assess.txt", "critic.txt"}
    assert (on_branch(repository, run, "README.md") or "").endswith("six\n")
    done = [entry["agent"] for entry in run["result"]["worklog"] if entry["phase"] == "implement"]
    # An agent that crashed three times pauses, so that the other one goes on.
    assert done == ["coder"] * 3 + ["other"] * 4
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
    assert "`test -f two.txt` fails" in notes(kapelle, run_id, "worklog/cycle-2-implement")
