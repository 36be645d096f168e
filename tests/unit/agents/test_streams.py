"""The adapters on what the real agents printed; `make test-agents ARGS=--record` records anew."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kapelle.agents.base import AgentAdapter, Summary
from kapelle.agents.failures import classify
from kapelle.agents.registry import get
from kapelle.agents.summary import complete_summary, summarise
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings, Settings

STREAMS = sorted((Path(__file__).parents[2] / "data" / "streams").glob("*/*.json"))
CORE = ("claude", "codex", "gemini", "opencode", "aider")


def agent_of(recording: dict[str, Any]) -> AgentAdapter:
    own = AgentSettings(type=recording["type"], program=sys.executable)
    if recording["type"] == "acp":
        own = AgentSettings(type="acp", command=[recording["program"]])
    return get(recording["agent"], Settings(agents={recording["agent"]: own}))


def summary_of(agent: AgentAdapter, recording: dict[str, Any]) -> Summary:
    summary = summarise(agent, recording["out"])
    if recording["side"]:
        return complete_summary(summary, summarise(agent, recording["side"]))
    return summary


def test_there_are_recordings_of_every_agent_that_counts() -> None:
    found = {(path.parent.name, path.stem) for path in STREAMS}
    wanted = {"work", "resume", "401", "429", "500", "529", "overflow", "404"}
    assert {(agent, scenario) for agent in CORE for scenario in wanted} <= found
    assert {"acp-claude", "acp-codex", "acp-gemini"} <= {agent for agent, _ in found}


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_stream_means_what_it_meant(path: Path) -> None:
    recording = json.loads(path.read_text("utf-8"))
    expected = recording["expected"]
    agent = agent_of(recording)
    summary = summary_of(agent, recording)
    exit = Exit.model_validate(recording["exit"])
    tail = "\n".join([*recording["out"], *recording["err"]])[-15_000:]
    verdict = agent.judge(summary, exit, tail)
    assert verdict.success == (expected["failure"] is None)
    assert verdict.claimed == expected["claimed"]
    assert summary.session_id == expected["session"]
    if expected["result"] is not None:
        assert verdict.result == expected["result"]
    if expected["failure"] and not recording["ended_by_kapelle"]:
        failure = verdict.failure or classify(summary, exit, tail)
        assert (failure.kind, bool(failure.evidence)) == (expected["failure"], True)
    counted = summary.usage.model_dump() if summary.usage else None
    if counted and recording["scenario"] != "resume":
        # What a resumed session had counted before is in another recording.
        told = {name: counted[name] for name in ("input_tokens", "output_tokens", "turns")}
        assert told == {name: expected["usage"][name] for name in told}


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recording_is_small_and_tells_nothing_about_a_machine(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text) < 100_000
    assert "/root/" not in text
    assert json.loads(text)["version"]
