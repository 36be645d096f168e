"""A provider refuses: each refusal is named for what it is, and answered by its policy."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.agents.real.agents import ALL, WITH_TOOLS
from tests.agents.real.conftest import Open
from tests.agents.real.scene import UNDERSTUDY, Scene

Record = Callable[[Scene, Any, str], None]
WRITE = {"write": {"path": "hello.txt", "content": "hello\n"}}
ANSWER = {"text": "The file is written."}


def work(agent: str) -> list[Any]:
    return [WRITE, ANSWER] if agent in WITH_TOOLS else [WRITE]


@pytest.mark.parametrize("agent", ALL)
def test_a_401_stops_at_once_and_names_the_fix(
    agent: str, open_scene: Open, record: Record
) -> None:
    scene = open_scene(agent)
    scene.script({"error": 401, "times": -1})
    task = scene.run("Write hello.txt.", retry={"policy": "same", "delay_s": 1})
    record(scene, task, "401")
    assert task["status"] == "failed"
    assert [a["failure"] for a in task["attempts"]] == ["authentication"], task["attempts"]
    assert f"kapelle agents config set {agent} api_key" in task["reason"]
    live = scene.kapelle.cli("agents", "check", agent, "--live")
    assert live.returncode == 1, live.stdout


@pytest.mark.parametrize("agent", ALL)
def test_a_429_waits_for_its_reset_and_spends_no_try(
    agent: str, open_scene: Open, record: Record
) -> None:
    scene = open_scene(agent)
    scene.script({"error": 429, "times": -1, "retry_after": 2})
    task_id = scene.submit("Write hello.txt.", checks=["test -f hello.txt"])
    task = scene.until(task_id, "waiting")
    record(scene, task, "429")
    assert task["waiting_for"] == "rate_limit"
    assert task["attempts"][-1]["failure"] == "rate_limit", task["attempts"]
    other = scene.submit("Write hello.txt too.", checks=["test -f hello.txt"])
    assert scene.until(other, "waiting")["waiting_for"] == "rate_limit"
    assert scene.kapelle.task(other)["attempts"] == []
    scene.script(*work(agent))
    scene.kapelle.post(f"/tasks/{other}/cancel")
    _wake(scene, task_id)
    task = scene.wait(task_id)
    assert task["status"] == "completed", task["reason"]


def _wake(scene: Scene, task_id: str) -> None:
    """A limit that does not say when it ends is waited out for minutes: a person may go on."""
    if (scene.kapelle.task(task_id)["not_before"] or "") > "":
        scene.kapelle.post(f"/tasks/{task_id}/resume", {})


@pytest.mark.parametrize("agent", ALL)
def test_a_fallback_agent_takes_over_from_one_that_is_limited(agent: str, open_scene: Open) -> None:
    scene = open_scene(agent)
    scene.script({"error": 429, "times": -1, "retry_after": 600})
    task = scene.run(
        "Write hello.txt.", checks=["grep -q hello hello.txt"], fallback_agents=[UNDERSTUDY]
    )
    assert task["status"] == "completed", task["reason"]
    assert [a["agent"] for a in task["attempts"]] == [agent, UNDERSTUDY]
    assert task["attempts"][0]["failure"] == "rate_limit", task["attempts"][0]


@pytest.mark.parametrize("status", [500, 529])
@pytest.mark.parametrize("agent", ALL)
def test_an_overloaded_provider_is_outlasted(
    agent: str, status: int, open_scene: Open, record: Record
) -> None:
    scene = open_scene(agent)
    scene.script({"error": status, "times": -1})
    task_id = scene.submit("Write hello.txt.", checks=["test -f hello.txt"])
    scene.until(task_id, "running")
    task = scene.until(task_id, "queued")
    record(scene, task, str(status))
    assert task["attempts"][-1]["failure"] == "overloaded", task["attempts"]
    scene.script(*work(agent))
    task = scene.wait(task_id)
    assert task["status"] == "completed", task["reason"]


# Over ACP opencode says nothing of it, and compacts again and again until the limit of turns.
@pytest.mark.parametrize("agent", [name for name in ALL if name != "acp-opencode"])
def test_a_prompt_that_is_too_long_is_named(agent: str, open_scene: Open, record: Record) -> None:
    scene = open_scene(agent)
    scene.script({"overflow": True, "times": -1})
    task = scene.run("Write hello.txt.")
    record(scene, task, "overflow")
    assert task["status"] == "failed"
    assert task["attempts"][-1]["failure"] == "context_overflow", task["attempts"]


@pytest.mark.parametrize("agent", ALL)
def test_a_model_that_does_not_exist_is_named(agent: str, open_scene: Open, record: Record) -> None:
    scene = open_scene(agent)
    scene.script({"error": 404, "times": -1})
    task = scene.run("Write hello.txt.")
    record(scene, task, "404")
    assert task["status"] == "failed"
    assert task["attempts"][-1]["failure"] == "capability", task["attempts"]
