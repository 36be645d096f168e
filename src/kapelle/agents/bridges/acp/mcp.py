"""MCP servers in ACP's words."""

from collections.abc import Mapping
from typing import Any

from kapelle.agents.bridges.acp.events import emit


def servers(
    known: Mapping[str, Mapping[str, Any]], capabilities: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Those that the agent can use; there is a notice about every other one."""
    told = []
    for name, server in known.items():
        if server["command"]:
            program, *arguments = server["command"]
            env = _pairs(server["env"])
            told.append({"name": name, "command": program, "args": arguments, "env": env})
        elif capabilities.get("http") is True:
            headers = _pairs(server["headers"])
            told.append({"type": "http", "name": name, "url": server["url"], "headers": headers})
        else:
            emit("notice", f"This agent cannot use the MCP server {name}: it takes commands only.")
    return told


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
