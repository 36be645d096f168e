"""The same task gives the same states and the same events, whichever agent works on it."""

from typing import Any

import pytest

from tests.agents.real.agents import ALL, WITH_TOOLS
from tests.agents.real.conftest import Open

STATES = [
    "task.created",
    "task.queued",
    "task.running",
    "attempt.started",
    "check.passed",
    "check.started",
    "attempt.completed",
    "task.completed",
]
TASK: dict[str, Any] = {"checks": ["grep -q hello hello.txt"], "title": "The same for all"}


@pytest.mark.parametrize("agent", ALL)
def test_every_agent_gives_the_same_states_and_events(agent: str, open_scene: Open) -> None:
    scene = open_scene(agent)
    scene.script(
        {"write": {"path": "hello.txt", "content": "hello\n"}, "usage": [10, 5]},
        *([{"text": "Done."}] if agent in WITH_TOOLS else []),
    )
    task = scene.run("Write hello.txt.", **TASK)
    kinds = [event["kind"] for event in scene.events(task["id"])]
    assert sorted(kinds) == sorted(STATES)
    assert (kinds[0], kinds[-1]) == ("task.created", "task.completed")
    lines = [line["event"] for line in scene.transcript(task["id"])]
    assert lines[-1] == "end"
    assert lines.count("result") == 1
    assert set(lines) <= {
        "attempt", "session", "model", "text", "tool_call", "tool_result", "usage", "plan",
        "notice", "result", "check", "stderr", "end",
    }  # fmt: skip
