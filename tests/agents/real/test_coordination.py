"""Agents that Kapelle gave its own tools use them: work for others, notes, questions, learnings."""

import json
import re
from typing import Any

import pytest

from tests.agents.real.conftest import Open
from tests.agents.real.scene import Scene
from tests.e2e.support.staging import until

# What each agent makes of the name of a server's tool.
NAMES = {
    "claude": "mcp__kapelle__{}",
    "codex": "mcp__kapelle{}",
    "gemini": "mcp_kapelle_{}",
    "opencode": "kapelle_{}",
}
CHILD = {"child": r'"id": ?"(task_[0-9a-z]{26})"'}
TOKEN = {"token": r'"token": ?"(task_[0-9a-z]{26}:1)"'}
LEARNING: dict[str, Any] = {
    "title": "The fork rings at 440",
    "content": "Strike it before you tune.",
}
# The first is long enough that the daemon tells of progress before it answers; both together are
# longer than any client of MCP waits for one answer.
SHORT_S, LONG_S = 6, 55
_PATIENCE_S = 240.0


class Steps:
    """The script of one agent, with the names that it has for the tools."""

    def __init__(self, agent: str) -> None:
        self._name = NAMES[agent]
        self.all: list[dict[str, Any]] = []

    def call(self, tool: str, find: dict[str, str] | None = None, **args: Any) -> int:
        """Add a call; the number of requests that have come when it is answered."""
        self.all.append({"tool": self._name.format(tool), "args": args, "find": find or {}})
        return len(self.all) + 1


def answered(scene: Scene, count: int) -> str:
    """What a tool answered, as the model is told it, without the marks of quotes in quotes."""
    found = scene.setup.scripts.await_requests(scene.setup.lane, count, _PATIENCE_S)
    return json.dumps(found[count - 1].turns[-1]).replace("\\", "")


@pytest.mark.parametrize("agent", NAMES)
def test_an_agent_conducts_asks_and_remembers(agent: str, open_scene: Open) -> None:
    # Codex declares the tools of MCP servers only for models that it does not know.
    scene = open_scene(agent, **({"model": "m1"} if agent == "codex" else {}))
    kapelle, go = scene.kapelle, scene.setup.root / "go"
    part = f'[[do]]\nrun = "until test -e {go}; do sleep 0.1; done"\n[[do]]\nresult = "a440"\n'
    steps = Steps(agent)
    steps.call("task_report", text="Half of it is tuned.")
    steps.call("task_create", prompt=f"Play.\n```rehearsal\n{part}```\n", agent="rehearsal")
    steps.call("wait", CHILD, ids=["$child"], timeout_s=SHORT_S)
    waited = steps.call("wait", CHILD, ids=["$child"], timeout_s=LONG_S)
    steps.call("wait", CHILD, ids=["$child"], timeout_s=LONG_S)
    read = steps.call("task_get", CHILD, task_id="$child")
    steps.call("note_set", key="pitch", value="a440")
    asked = steps.call("question_ask", text="Sharp or flat?", choices=["sharp"], timeout_s=0)
    told = steps.call("question_wait", TOKEN, token="$token", timeout_s=LONG_S)
    steps.call("learning_report", **LEARNING)
    steps.call("task_finish", result={"pitch": 440})
    scene.script(*steps.all, {"text": "All is in tune."})
    task_id = scene.submit("Tune it.", coordinate=True)

    assert '"pending"' in answered(scene, waited)
    go.touch()
    assert re.search('"result": ?"a440"', answered(scene, read))
    answered(scene, asked)
    task = scene.until(task_id, "waiting")
    assert (task["waiting_for"], task["question"]) == ("input", "Sharp or flat?")
    assert task["report"] == "Half of it is tuned."
    kapelle.cli("answer", task_id, "rather flat", check=True)
    assert "rather flat" in answered(scene, told)
    task = scene.wait(task_id)
    assert (task["status"], len(task["attempts"])) == ("completed", 1), task["reason"]
    assert json.loads(task["result"]) == {"pitch": 440}
    noted = kapelle.cli("notes", "get", "pitch", "--scope", task_id, check=True)
    assert noted.stdout.strip() == "a440"

    def kept() -> Any:
        return kapelle.get(f"/learnings?directory={scene.repository}&status=kept")["learnings"]

    [learning] = until(kept, "a learning that is kept")
    assert learning["task_id"] == task_id
    scene.script({"text": "Done."})
    assert scene.run("Go on.")["status"] == "completed"
    prompt = scene.requests()[-1].text
    assert "## Memory" in prompt
    assert LEARNING["title"] in prompt
