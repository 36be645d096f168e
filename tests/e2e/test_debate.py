"""`kapelle debate`: rounds, consensus or not, what is done about it, what the other side says."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import (
    answer,
    cast,
    files_on_branch,
    on_branch,
    perform,
    purposes_of,
    rule,
    tasks_of,
)
from tests.e2e.support.instance import ApiError, Instance

STATE = "You are side"


def stance(verdict: str, position: str) -> dict[str, Any]:
    return answer({"verdict": verdict, "position": position, "reasons": ["I looked."]})


YIELDS = (
    rule(rf"{STATE}[\s\S]*Use spaces", stance("agree", "Use spaces"))
    + rule(STATE, {"write": "mine.txt"}, stance("disagree", "Use tabs"))
)  # fmt: skip
HOLDS = (
    rule(rf"{STATE}[\s\S]*Use tabs", stance("agree", "Use spaces"))
    + rule(STATE, stance("disagree", "Use spaces"))
)  # fmt: skip
TWO = {"prompt": "Tabs or spaces?", "sides": ["left", "right"]}


def test_both_state_by_themselves_until_they_agree_or_the_rounds_are_over(
    kapelle: Instance, repository: Path
) -> None:
    minutes = {"summary": "They use spaces.", "agreed": ["spaces"]}
    clerk = rule(r"took no part[\s\S]*Round 2, side two", answer(minutes))
    stubborn = rule(STATE, stance("partial", "It depends"))
    cast(kapelle, left=YIELDS, right=HOLDS, clerk=clerk, stubborn=stubborn)
    run = perform(kapelle, "debate", repository, **TWO, minutes="clerk")
    assert (run["status"], run["reason"]) == ("completed", "consensus in 2 rounds")
    [held] = run["result"]["debates"]
    assert [[one["verdict"] for one in pair.values()] for pair in held["rounds"]] == [
        ["disagree", "disagree"],
        ["agree", "agree"],
    ]
    assert held["minutes"]["agreed"] == ["spaces"]
    purposes = purposes_of(kapelle, run["id"])
    assert sorted(purposes[:2]) == [("side_one", 1), ("side_two", 1)]
    assert sorted(purposes[2:4]) == [("side_one", 2), ("side_two", 2)]
    assert purposes[4:] == [("minutes", None)]
    first = tasks_of(kapelle, run["id"])[:2]
    assert {task["agent"] for task in first} == {"left", "right"}
    assert not any("Use" in task["prompt"] for task in first)
    told = {**TWO, "sides": ["left", "stubborn"], "rounds": 2, "loops": 2}
    run = perform(kapelle, "debate", repository, **told)
    assert (run["status"], run["reason"]) == ("completed", "disagreement after 2 rounds")
    assert [len(held["rounds"]) for held in run["result"]["debates"]] == [2, 2]
    again = tasks_of(kapelle, run["id"])[-1]["prompt"]
    assert "## The debate before\nRound 1, side one: disagree" in again
    assert "mine.txt" not in files_on_branch(repository, run)


def test_one_side_acts_and_the_other_verifies_with_a_refinement(
    kapelle: Instance, repository: Path
) -> None:
    poor = {"holds": False, "issues": ["style.txt is empty"]}
    spoil = {"write": "style.txt", "content": "verified\n"}
    right = [
        rule("Mend what it found[\\s\\S]*style.txt is empty",
             {"write": "style.txt", "content": "spaces\n"}),
        rule("DO IT", {"write": "style.txt", "content": ""}, {"result": "made"}),
        HOLDS,
    ]  # fmt: skip
    left = [
        rule(r"the other side has acted[\s\S]*\+spaces", spoil, answer({"holds": True})),
        rule("the other side has acted", answer(poor)),
        YIELDS,
    ]
    cast(kapelle, left="\n".join(left), right="\n".join(right))
    act = {"action": "DO IT", "actor": "two", "verify": True, "checks": ["test -f style.txt"]}
    run = perform(kapelle, "debate", repository, **TWO, **act)
    assert run["status"] == "completed", run["reason"]
    [held] = run["result"]["debates"]
    assert [found["holds"] for found in held["verifications"]] == [False, True]
    acts = [role for role, _ in purposes_of(kapelle, run["id"])][4:]
    assert acts == ["act", "verify", "refine", "verify"]
    assert on_branch(repository, run, "style.txt") == "spaces\n"
    cast(kapelle, left="\n".join(left[1:]), right="\n".join(right))
    run = perform(kapelle, "debate", repository, **TWO, **act)
    told = "consensus in 2 rounds, but the other side does not accept what was done"
    assert (run["status"], run["reason"]) == ("failed", told)
    run = perform(kapelle, "debate", repository, **TWO, **{**act, "checks": ["false"]})
    assert run["reason"].startswith("consensus in 2 rounds, but it was not done: ")


def test_one_agent_on_both_sides_and_an_act_after_a_disagreement(
    kapelle: Instance, repository: Path
) -> None:
    told = r"You took part[\s\S]*Use tabs[\s\S]*Use spaces[\s\S]*WRITE IT DOWN"
    split = (
        rule(f"{STATE} one", stance("agree", "Use tabs"))
        + rule(f"{STATE} two", stance("disagree", "Use spaces"))
        + rule(told, {"write": "open.txt", "content": "tabs or spaces\n"})
    )
    cast(kapelle, both=split)
    spec = {"prompt": "Tabs?", "agent": "both", "rounds": 1, "action": "WRITE IT DOWN"}
    run = perform(kapelle, "debate", repository, **spec)
    assert (run["status"], run["reason"]) == ("completed", "disagreement after 1 round")
    assert run["result"]["debates"][0]["verifications"] == []
    assert on_branch(repository, run, "open.txt") == "tabs or spaces\n"


def test_what_does_not_fit_is_refused(kapelle: Instance, repository: Path) -> None:
    for spec, told in (
        ({"sides": ["left"]}, "two sides"),
        ({"verify": True}, "add `action`"),
        ({"rounds": 11}, "10"),
    ):
        with pytest.raises(ApiError, match=told):
            perform(kapelle, "debate", repository, prompt="x", **spec)
