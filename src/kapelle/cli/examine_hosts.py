"""What `kapelle doctor` finds about programs that may use Kapelle over MCP: their patience.

A tool that waits for a task answers after up to 60 s; a host that gives up sooner shows an error.
"""

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kapelle.cli.finding import Finding
from kapelle.cli.repository import current, root
from kapelle.home import Home

LONG_POLL_S = 60.0
_CLAUDE_VARIABLE = "MCP_TOOL_TIMEOUT"


def mcp_hosts(home: Home) -> Iterator[Finding]:
    impatient = [*_claude_code(), *_codex()]
    yield from impatient
    if not impatient:
        text = "neither Claude Code nor Codex is set to give up within 60 s"
        yield Finding("mcp hosts", "ok", text)


def _claude_code() -> Iterator[Finding]:
    """Its limit holds for all servers, in milliseconds, from its environment or its settings."""
    own = Path(os.environ.get("CLAUDE_CONFIG_DIR") or "~/.claude").expanduser()
    project = (root(current()) or current()) / ".claude"
    files = (own / "settings.json", project / "settings.json", project / "settings.local.json")
    places = [("the environment", os.environ.get(_CLAUDE_VARIABLE))]
    for path in dict.fromkeys(files):
        variables = _table(_read(path), "env")
        places.append((str(path), variables.get(_CLAUDE_VARIABLE)))
    for where, value in places:
        seconds = _number(value)
        if seconds is not None and seconds / 1000 < LONG_POLL_S:
            hint = f"Set {_CLAUDE_VARIABLE} to more than 60000 there."
            yield _impatient("Claude Code", seconds / 1000, where, hint)


def _codex() -> Iterator[Finding]:
    """Its limit belongs to one server, so only that of Kapelle counts."""
    own = Path(os.environ.get("CODEX_HOME") or "~/.codex").expanduser()
    project = (root(current()) or current()) / ".codex"
    # In the home directory itself the two are one.
    for path in dict.fromkeys((own / "config.toml", project / "config.toml")):
        for name, server in _table(_read(path), "mcp_servers").items():
            seconds = _number(server.get("tool_timeout_sec")) if isinstance(server, dict) else None
            ours = "kapelle" in json.dumps([name, server], default=str)
            if ours and seconds is not None and seconds < LONG_POLL_S:
                hint = f"Set mcp_servers.{name}.tool_timeout_sec to more than 60 there."
                yield _impatient("Codex", seconds, str(path), hint)


def _impatient(host: str, seconds: float, where: str, hint: str) -> Finding:
    text = f"{host} gives tools {seconds:g} s ({where}), and Kapelle's may wait for 60 s"
    return Finding("mcp hosts", "warning", text, hint)


def _read(path: Path) -> dict[str, Any]:
    """Somebody else's settings; what cannot be read is their affair."""
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _table(values: dict[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
