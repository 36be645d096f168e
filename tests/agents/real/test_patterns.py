"""The real agents inside patterns: in a loop that learns from its check, in every role of a team,
and two of them together in a workflow."""

import contextlib
import json
from typing import Any

import pytest
import tomlkit

from tests.agents.model import ModelServer
from tests.agents.real.conftest import Open
from tests.agents.setup import Unavailable, agent_setup
from tests.e2e.support.ensembles import YES, on_branch, rest, start, tasks_of
from tests.e2e.support.repositories import git

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


PLAN = """## Plan
- [ ] the word is right, check: `grep right word.txt`
- [ ] the README tells of the word
## Contract
- Write small files."""
SPOIL = "echo mine > word.txt; git commit -qam mine; git update-ref refs/heads/main HEAD"


def test_one_implements_and_another_reviews(open_scene: Open, model: ModelServer) -> None:
    """Claude Code plans and implements, Codex reviews; what a reviewer does to files is nothing."""
    with contextlib.ExitStack() as stack:
        try:
            critic = stack.enter_context(agent_setup("codex", model))
        except Unavailable as reason:
            pytest.skip(str(reason))
        env = {**critic.recipe.env, **critic.recipe.secrets}
        known = {"agents": {"codex": {**critic.settings, "env": env}}}
        scene = open_scene("claude", tomlkit.dumps(known))
        scene.script(
            {"text": PLAN}, {"bash": "echo right > word.txt"}, DONE,
            {"bash": "echo The word is right. >> README.md"}, DONE,
        )  # fmt: skip
        looked = {"summary": "I looked."}
        critic.scripts.put(
            critic.lane,
            [says(looked), {"bash": SPOIL}, says(looked), says({**looked, "done": [2]})],
        )
        main = git(scene.repository, "rev-parse", "main")
        run_id = start(
            scene.kapelle, "workflow", scene.repository, agent="claude", reviewers=["codex"],
            task="Write the word and tell of it.", wait=False,
        )  # fmt: skip
        run = rest(scene.kapelle, run_id, 480)
        assert run["status"] == "completed", run["reason"]
        done = tasks_of(scene.kapelle, run_id)
        assert [(one["title"].split()[0], one["agent"]) for one in done] == [
            ("Assess", "claude"), ("Review", "codex"), ("Implement", "claude"),
            ("Review", "codex"), ("Implement", "claude"), ("Review", "codex"),
        ]  # fmt: skip
        assert all(one["evidence"] for one in run["result"]["milestones"])
        assert on_branch(scene.repository, run, "word.txt") == "right\n"
        assert "The word is right." in (on_branch(scene.repository, run, "README.md") or "")
        assert git(scene.repository, "rev-parse", "main") == main
        # The reviewer was told the plan, and the implementer what the reviewer said.
        assert "the word is right" in critic.scripts.requests(critic.lane)[0].text
        assert "I looked." in scene.requests()[-1].text
