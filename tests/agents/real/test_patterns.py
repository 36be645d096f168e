"""The real agents inside patterns: in a loop that learns from its check, and in every role of a
team."""

import json
from typing import Any

import pytest

from tests.agents.real.conftest import Open
from tests.e2e.ensembles import YES, on_branch, rest, start

AGENTS = ("claude", "codex", "gemini", "opencode")
DONE = {"text": "Done.", "usage": [100, 10]}


def says(value: Any) -> dict[str, Any]:
    return {"text": f"Here it is:\n```json\n{json.dumps(value)}\n```", "usage": [100, 10]}


@pytest.mark.parametrize("agent", AGENTS)
def test_a_loop_goes_on_until_the_check_passes(agent: str, open_scene: Open) -> None:
    scene = open_scene(agent)
    scene.script({"bash": "echo wrong > word.txt"}, DONE, {"bash": "echo right > word.txt"}, DONE)
    check = "grep right word.txt || { echo THE-END-OF-THE-OUTPUT; exit 1; }"
    run_id = start(
        scene.kapelle, "loop", scene.repository,
        agent=agent, prompt="Write the right word.", until=[check], max_iterations=3,
    )  # fmt: skip
    run = rest(scene.kapelle, run_id, 240)
    assert run["status"] == "completed", run["reason"]
    verdicts = [item["verdict"] for item in run["result"]["iterations"]]
    assert verdicts == ["progress", "pass"]
    assert on_branch(scene.repository, run, "word.txt") == "right\n"
    # The second iteration was told how the first one failed.
    assert "THE-END-OF-THE-OUTPUT" not in scene.requests()[0].text
    assert "THE-END-OF-THE-OUTPUT" in scene.requests()[-1].text
    assert run["spent"]["agent_calls"] == 2


@pytest.mark.parametrize("agent", AGENTS)
def test_a_team_of_one_kind(agent: str, open_scene: Open) -> None:
    scene = open_scene(agent)
    plan = {"subgoals": [{"id": "word", "title": "The word", "task": "Write word.txt."}]}
    scene.script(says(plan), {"bash": "echo right > word.txt"}, DONE, says(YES))
    run_id = start(
        scene.kapelle, "team", scene.repository,
        agent=agent, goal="Write the word.", success_criteria=["word.txt has it"],
        verify=["grep right word.txt"],
    )  # fmt: skip
    run = rest(scene.kapelle, run_id, 240)
    assert run["status"] == "completed", run["reason"]
    assert on_branch(scene.repository, run, "word.txt") == "right\n"
    assert run["spent"]["agent_calls"] == 3
    assert run["spent"]["cost_usd"] is not None


@pytest.mark.parametrize("agent", AGENTS)
def test_a_lying_worker_is_caught(agent: str, open_scene: Open) -> None:
    """The model only talks: nothing is merged, and the run says so."""
    scene = open_scene(agent)
    plan = {"subgoals": [{"id": "word", "title": "The word", "task": "Write word.txt."}]}
    scene.script(says(plan), DONE, says({**YES, "goal_complete": False}))
    run_id = start(
        scene.kapelle, "team", scene.repository,
        agent=agent, goal="Write the word.", success_criteria=["word.txt has it"],
        max_iterations=1, max_task_retries=0,
    )  # fmt: skip
    run = rest(scene.kapelle, run_id, 240)
    assert run["status"] == "failed"
    outcome = run["result"]["iterations"][0]["outcomes"][0]
    assert outcome["status"] == "failed"
    assert "diff_not_empty" in outcome["reason"]
