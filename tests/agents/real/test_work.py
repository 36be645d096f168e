"""An agent works: it writes a file, runs a command, answers; it is resumed and told more."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.agents.real.agents import ALL, WITH_TOOLS
from tests.agents.real.conftest import Open
from tests.agents.real.scene import PRICE, Scene, head_of

Record = Callable[[Scene, Any, str], None]
WRITE = {"write": {"path": "hello.txt", "content": "hello\n"}, "usage": [1000, 50], "cached": 600}
RUN = {"bash": "echo ran > ran.txt", "usage": [2000, 60]}
ANSWER = {"text": "The file is written.", "usage": [3000, 70]}


@pytest.mark.parametrize("agent", ALL)
def test_it_writes_a_file_runs_a_command_and_answers(
    agent: str, open_scene: Open, record: Record
) -> None:
    scene = open_scene(agent)
    tools = agent in WITH_TOOLS
    scene.script(*([WRITE, RUN, ANSWER] if tools else [WRITE]))
    before = head_of(scene.repository)
    checks = ["grep -q hello hello.txt", "diff_not_empty"]
    task = scene.run("Write hello.txt. --help $& {model} `id`", checks=checks)
    record(scene, task, "work")
    assert task["status"] == "completed", task["reason"]
    attempt = task["attempts"][-1]
    assert (attempt["agent"], attempt["claimed"], attempt["failure"]) == (agent, "success", None)
    assert scene.file(task, "hello.txt") == "hello\n"
    assert attempt["session_id"]
    if tools:
        assert scene.file(task, "ran.txt") == "ran\n"
        assert "The file is written." in task["result"]
    assert "--help $& {model} `id`" in scene.requests()[0].text
    assert head_of(scene.repository) == before
    _usage_is_as_scripted(agent, attempt, tools)
    kinds = [line["event"] for line in scene.transcript(task["id"])]
    assert {"session", "result"} <= set(kinds)
    if tools:
        assert kinds.count("tool_call") == kinds.count("tool_result") == 2


def _usage_is_as_scripted(agent: str, attempt: Any, tools: bool) -> None:
    usage = attempt["usage"]
    if agent == "aider":
        # It rounds what it prints, and tells of no cache.
        assert (usage["input_tokens"], usage["output_tokens"]) == (1000, 50)
        return
    assert usage is not None
    assert usage["turns"] == 3
    assert (usage["input_tokens"], usage["output_tokens"]) == (6000, 180)
    cached = 0 if agent == "acp-gemini" else 600  # which does not tell it over this protocol
    assert usage["cached_tokens"] == cached
    if agent == "acp-opencode":
        assert usage["cost_usd"] == pytest.approx((5400 * 3 + 180 * 15) / 1e6)  # by its own price
        return
    if agent in {"claude", "acp-claude"}:
        assert usage["cost_usd"] > 0  # by their own tables
        return
    cost = (
        (6000 - cached) * PRICE["input"] + cached * PRICE["cached"] + 180 * PRICE["output"]
    ) / 1e6
    assert usage["cost_usd"] == pytest.approx(cost)


@pytest.mark.parametrize("agent", ALL)
def test_a_resumed_session_has_its_history_and_counts_only_its_own_usage(
    agent: str, open_scene: Open, record: Record
) -> None:
    scene = open_scene(agent)
    scene.script({"text": "I looked around the violins.", "usage": [1000, 50]})
    task = scene.run("Look at the violins first.", checks=["test -f hello.txt"])
    assert (task["status"], task["attempts"][-1]["failure"]) == ("failed", "checks")
    seen = len(scene.requests())
    scene.script({**WRITE, "cached": 0}, *([ANSWER] if agent in WITH_TOOLS else []))
    scene.kapelle.cli("resume", task["id"], check=True)
    task = scene.wait(task["id"])
    record(scene, task, "resume")
    assert task["status"] == "completed", task["reason"]
    first, second = task["attempts"]
    assert (second["mode"], second["session_id"]) == ("resume", first["session_id"])
    resumed = scene.requests()[seen].text
    assert "Look at the violins first." in resumed
    assert "I looked around the violins." in resumed
    assert "test -f hello.txt" in resumed
    tokens = (4000, 120) if agent in WITH_TOOLS else (1000, 50)
    assert (second["usage"]["input_tokens"], second["usage"]["output_tokens"]) == tokens


@pytest.mark.parametrize("agent", ALL)
def test_a_follow_up_goes_into_the_same_session(agent: str, open_scene: Open) -> None:
    scene = open_scene(agent)
    scene.script({"text": "There are seven cellos."})
    task = scene.run("Count the cellos.")
    assert task["status"] == "completed", task["reason"]
    seen = len(scene.requests())
    scene.script(WRITE, *([ANSWER] if agent in WITH_TOOLS else []))
    scene.kapelle.cli("continue", task["id"], "Now write hello.txt.", check=True)
    task = scene.wait(task["id"])
    assert task["status"] == "completed", task["reason"]
    text = scene.requests()[seen].text
    assert "There are seven cellos." in text
    assert "Now write hello.txt." in text
    assert scene.file(task, "hello.txt") == "hello\n"


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "acp-claude", "acp-codex"])
def test_a_forked_session_knows_the_past_and_leaves_it_alone(agent: str, open_scene: Open) -> None:
    scene = open_scene(agent)
    scene.script({"text": "There are seven cellos."})
    task = scene.run("Count the cellos.")
    seen = len(scene.requests())
    scene.script(WRITE, ANSWER)
    done = scene.kapelle.cli("continue", task["id"], "Write hello.txt.", "--fork", check=True)
    other = scene.wait(done.stdout.strip())
    assert other["status"] == "completed", other["reason"]
    assert "There are seven cellos." in scene.requests()[seen].text
    assert other["attempts"][-1]["session_id"] != task["attempts"][-1]["session_id"]


@pytest.mark.parametrize("agent", ALL)
def test_a_model_that_only_talks_does_not_pass_the_checks(agent: str, open_scene: Open) -> None:
    scene = open_scene(agent)
    scene.setup.scripts.sabotaged = True
    scene.script(WRITE, ANSWER)
    task = scene.run("Write hello.txt.", checks=["test -f hello.txt", "diff_not_empty"])
    assert (task["status"], task["attempts"][-1]["failure"]) == ("failed", "checks")
    assert not any(check["passed"] for check in task["checks"])


def test_claude_hears_what_a_person_says_while_it_works(open_scene: Open) -> None:
    scene = open_scene("claude")
    go = scene.setup.root / "go"
    # The second answer is on its way long enough for something to be said before its end.
    steps: list[Any] = [{"bash": f"until test -e {go}; do sleep 0.1; done"}, {**ANSWER, "delay": 5}]
    scene.script(*steps, WRITE, ANSWER)
    task_id = scene.submit("Write what you are told.")

    def say(text: str, after: int) -> None:
        scene.setup.scripts.await_requests(scene.setup.lane, after)
        told = scene.kapelle.cli("say", task_id, text, "--json", check=True)
        assert json.loads(told.stdout)["told"] == "now"

    say("Violins first.", 1)
    go.touch()
    say("Then the cellos.", 2)
    task = scene.wait(task_id)
    assert (task["status"], len(task["attempts"])) == ("completed", 1), task["reason"]
    assert "Violins first." in scene.requests()[1].text
    assert "Then the cellos." in scene.requests()[2].text
    assert scene.file(task, "hello.txt") == "hello\n"
