"""The settings of Gemini CLI that have no flag, as a file of system defaults.

Of its settings files this is the one that yields to the user's own, login and MCP servers
included. Gemini reads it only where root owns it and all directories above it, see are_read_in.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from kapelle.agents.base import AgentRequest
from kapelle.domain.specs import McpServer

# Kapelle itself tries again, and knows when.
_ATTEMPTS = 3


def settings_of(request: AgentRequest, env: dict[str, str]) -> str:
    """The file's content for one attempt."""
    settings: dict[str, Any] = {
        "general": {
            "maxAttempts": _ATTEMPTS,
            "enableAutoUpdate": False,
            # Its clean-up takes sessions that were resumed for broken ones, and deletes them.
            "sessionRetention": {"enabled": False},
        },
        "privacy": {"usageStatisticsEnabled": False},
        # Otherwise every @word of a prompt is searched for in the whole workspace.
        "context": {"fileFiltering": {"enableRecursiveFileSearch": False}},
        "mcpServers": {name: _server(server) for name, server in request.mcp_servers.items()},
    }
    if request.max_turns is not None:
        settings["model"] = {"maxSessionTurns": request.max_turns}
    # With an address and no login of the user's choice it takes a way to log in that it refuses.
    if "GOOGLE_GEMINI_BASE_URL" in env and (env | os.environ).get("GEMINI_API_KEY"):
        settings["security"] = {"auth": {"selectedType": "gemini-api-key"}}
    return json.dumps(settings)


def are_read_in(directory: Path) -> bool:
    """Whether Gemini trusts a file there: nobody but root may be able to change it."""
    try:
        places = [directory.resolve(strict=True), *directory.resolve().parents]
        found = [place.stat() for place in places]
    except OSError:
        return False
    writable = stat.S_IWGRP | stat.S_IWOTH
    return os.geteuid() == 0 and all(not (at.st_uid or at.st_mode & writable) for at in found)


def _server(server: McpServer) -> dict[str, Any]:
    if server.url:
        headers = {name: _twice_literal(value) for name, value in server.headers.items()}
        return {"url": _literal(server.url), "type": "http", "headers": headers, "trust": True}
    command, *args = [_literal(argument) for argument in server.command]
    env = {name: _twice_literal(value) for name, value in server.env.items()}
    return {"command": command, "args": args, "env": env, "trust": True}


def _literal(text: str) -> str:
    """Text in which Gemini finds no variable to replace: every $ is one's default value."""
    return text.replace("$", "${KAPELLE_NOT_SET:-$}")


def _twice_literal(text: str) -> str:
    """The same for values that are expanded again when the server is started."""
    return text.replace("$", "${KAPELLE_NOT_SET:-\\$}")
