"""A loop that comes to a limit says so, wherever in an iteration that happens."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.ensembles import on_branch, perform, play
from tests.e2e.support.instance import Instance


@pytest.mark.parametrize(
    "judging",
    [
        {"until": ["sleep 30"], "max_iterations": 1},
        {"eval": "test ! -e n.txt || sleep 30; echo 1", "direction": "minimize"},
    ],
    ids=["until", "eval"],
)
def test_time_that_ends_inside_a_check_is_the_budget(
    kapelle: Instance, repository: Path, judging: dict[str, Any]
) -> None:
    prompt = play({"write": "n.txt", "content": "n\n"})
    run = perform(kapelle, "loop", repository, prompt=prompt, max_seconds=4, **judging)
    assert run["status"] == "failed"
    assert run["result"]["stopped_by"] == "budget", run["reason"]
    assert run["reason"].startswith("Time limit of 4 s reached.")
    assert run["result"]["reason"] == run["reason"]
    assert run["result"]["iterations"][-1]["number"] == 1
    assert on_branch(repository, run, "n.txt") is None


def test_a_limit_inside_its_steps_ends_the_loop_as_a_loop(
    kapelle: Instance, repository: Path
) -> None:
    steps = [play({"run": "echo x >> n.txt"}), play({"result": "I only looked."})]
    spec = {"steps": steps, "until": ["false"], "max_agent_calls": 3}
    run = perform(kapelle, "loop", repository, **spec)
    assert (run["status"], run["result"]["stopped_by"]) == ("failed", "budget")
    assert "Limit of 3 agent calls" in run["reason"]
    done, begun = run["result"]["iterations"]
    assert (len(done["tasks"]), done["verdict"]) == (2, "progress")
    assert (begun["tasks"], begun["verdict"]) == ([], "fail")
    assert on_branch(repository, run, "n.txt") == "x\n"
