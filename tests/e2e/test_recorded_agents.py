"""What the real agents printed, through the whole of Kapelle: the same task, the same states."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from tests.e2e.support import replay
from tests.e2e.support.instance import Instance

STREAMS = Path(__file__).parents[1] / "data" / "streams"
# Those whose program prints the stream; the others' is made by a bridge beside the program.
AGENTS = ("claude", "codex", "gemini", "opencode", "qwen", "copilot")
STATES = [
    "attempt.completed",
    "attempt.started",
    "check.passed",
    "check.started",
    "task.completed",
    "task.created",
    "task.queued",
    "task.running",
]


def play(kapelle: Instance, agent: str, scenario: str, repository: Path) -> Any:
    program = repository.parent / f"{agent}-{scenario}"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -I {replay.__file__}\n", encoding="utf-8")
    program.chmod(0o755)
    recording = STREAMS / agent / f"{scenario}.json"
    settings = {
        "type": agent,
        "program": str(program),
        "model": "m1",
        "base_url": "http://127.0.0.1:1/v1",
        "env": {replay.RECORDING: str(recording), "HOME": str(repository.parent)},
    }
    config = kapelle.home.config
    config.write_text(tomlkit.dumps({"agents": {agent: settings}}), encoding="utf-8")
    return kapelle.submit(
        "Write hello.txt.",
        repository,
        agent=agent,
        workspace="in_place",
        checks=["grep -q hello hello.txt"],
    )


def events(kapelle: Instance, task_id: str) -> list[Any]:
    done = kapelle.cli("events", "--json", "--task", task_id, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


@pytest.mark.parametrize("agent", AGENTS)
def test_the_same_task_gives_the_same_states_with_every_agent(
    kapelle: Instance, repository: Path, agent: str
) -> None:
    task = kapelle.wait(play(kapelle, agent, "work", repository))
    recording = json.loads((STREAMS / agent / "work.json").read_text("utf-8"))
    assert task["status"] == "completed", task["reason"]
    assert sorted(event["kind"] for event in events(kapelle, task["id"])) == STATES
    attempt = task["attempts"][0]
    assert (attempt["agent"], attempt["claimed"], attempt["failure"]) == (agent, "success", None)
    assert attempt["session_id"] == recording["expected"]["session"]
    assert "The file is written." in task["result"]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_refused_login_stops_every_agent_alike(
    kapelle: Instance, repository: Path, agent: str
) -> None:
    task = kapelle.wait(play(kapelle, agent, "401", repository))
    assert (task["status"], len(task["attempts"])) == ("failed", 1)
    assert task["attempts"][0]["failure"] == "authentication"
    assert f"kapelle agents config set {agent} api_key" in task["reason"]
