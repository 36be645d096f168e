"""MCP servers that a user configures reach every agent that can use them."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agents.real.agents import WITH_TOOLS
from tests.agents.real.conftest import Open

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]


# Over ACP Codex hides them behind a search of its own, which the scripted model does not make.
@pytest.mark.parametrize("agent", [name for name in WITH_TOOLS if name != "acp-codex"])
def test_a_tool_of_a_tasks_mcp_server_is_called(agent: str, open_scene: Open) -> None:
    # Codex declares the tools of MCP servers only for models that it does not know.
    more = {"model": "m1"} if agent == "codex" else {}
    scene = open_scene(agent, **more)
    mcp = {"pitch": {"command": SERVER, "env": {"PITCH": "a440-secret-word"}}}
    call: dict[str, Any] = {"tool": "ping", "args": {}}
    if agent == "acp-qwen":  # it declares none: its model searches for them and calls by name
        call = {"tool": "tool_call", "args": {"name": "mcp__pitch__ping", "arguments": {}}}
    scene.script({"bash": "python3 -c 'import time; time.sleep(2)'"}, call, {"text": "It rang."})
    task = scene.run("Strike the fork.", mcp=mcp)
    assert task["status"] == "completed", task["reason"]
    assert task["mcp"] == ["pitch"]
    assert "pong-a440-secret-word" in scene.requests()[-1].text, scene.requests()[-1].tools
