"""Agents that work in one checkout are kept from files that somebody else holds."""

from typing import Any

import pytest

from tests.agents.real.conftest import Open

GUARDED = ["claude", "codex", "gemini", "opencode", "acp-codex", "acp-opencode", "acp-claude"]


@pytest.mark.parametrize("agent", GUARDED)
def test_a_locked_file_is_not_written(agent: str, open_scene: Open) -> None:
    scene = open_scene(agent)
    scene.place = scene.repository
    locked = scene.repository / "locked.txt"
    scene.kapelle.cli(
        "locks", "take", "locked.txt", "--reason", "a release", cwd=scene.repository, check=True
    )
    steps: list[dict[str, Any]] = [{"write": {"path": "locked.txt", "content": "theirs\n"}}]
    steps.append({"bash": "echo theirs > locked.txt"})
    write = {"write": {"path": "free.txt", "content": "free\n"}}
    scene.script(*steps, write, {"text": "Done."})
    task = scene.run("Write both.", workspace="in_place")
    assert task["status"] == "completed", task["reason"]
    assert not locked.exists()
    assert (scene.repository / "free.txt").read_text(encoding="utf-8") == "free\n"
    told = scene.requests()[-1].text.count("locked.txt is locked by a person (a release)")
    assert told == len(steps)
