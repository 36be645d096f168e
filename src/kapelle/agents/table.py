"""The table of docs/agents.md: which agent can do what, made from the adapters themselves."""

from kapelle.agents.base import Capabilities
from kapelle.agents.registry import get
from kapelle.settings import AgentSettings, Settings

_AGENTS = {
    **{
        name: AgentSettings(model="m")
        for name in ("claude", "codex", "gemini", "opencode", "aider", "qwen", "copilot")
    },
    "acp": AgentSettings(type="acp", command=["claude-agent-acp"]),
    "anthropic": AgentSettings(model="m"),
    "openai": AgentSettings(model="m"),
    "command": AgentSettings(
        command=["x", "{model}", "{system}", "{session}", "{prompt}"],
        output="json",
        read={"session": "id", "result": "text"},
    ),
    "rehearsal": AgentSettings(),
}
_COLUMNS = {
    "resume": "resume",
    "fork": "fork",
    "model": "model",
    "turns limit": "max_turns",
    "budget limit": "budget",
    "system prompt": "system_prompt",
    "MCP": "mcp",
    "hooks": "hooks",
    "ACP": "acp",
    "usage": "usage",
    "cost": "cost",
}


def table() -> str:
    """One row for each agent; what it cannot do itself and Kapelle does for it is said so."""
    lines = ["| agent | tested | " + " | ".join(_COLUMNS) + " |"]
    lines.append("|---" * (len(_COLUMNS) + 2) + "|")
    settings = Settings(agents=_AGENTS)
    for name in _AGENTS:
        agent = get(name, settings)
        cells = [_cell(field, agent.capabilities) for field in _COLUMNS.values()]
        lines.append(f"| `{name}` | {agent.tested or ''} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(field: str, capabilities: Capabilities) -> str:
    if getattr(capabilities, field):
        return "own" if field in {"max_turns", "budget", "cost"} else "yes"
    # Without an option of its own, what it reports is counted, and it is stopped.
    if field in {"max_turns", "budget"} and capabilities.usage:
        return "watched"
    if field == "cost" and capabilities.usage:
        return "price table"
    return ""


if __name__ == "__main__":
    print(table())
