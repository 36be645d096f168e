"""Agents that may change files, but do nothing else without permission, which nobody gives."""

from dataclasses import replace

from kapelle.agents.base import Command
from kapelle.domain.errors import AgentMisconfigured
from kapelle.settings import AgentSettings

# What stands for "do not ask" in an adapter's command, and what goes there instead.
_FLAGS: dict[str, tuple[list[str], list[str]]] = {
    "claude": (["--dangerously-skip-permissions"], ["--permission-mode", "acceptEdits"]),
    "codex": (
        ["--dangerously-bypass-approvals-and-sandbox"],
        ["--sandbox", "workspace-write"],
    ),
    "copilot": (["--allow-all"], ["--allow-tool=write"]),
    "gemini": (["--approval-mode", "yolo"], ["--approval-mode", "auto_edit"]),
    "qwen": (["--yolo"], ["--approval-mode", "auto-edit"]),
}
# These run no commands at all: aider edits what its model names, plain models only answer.
_HARMLESS = frozenset({"aider", "anthropic", "openai"})
_CANNOT = {
    "opencode": "opencode is told in its configuration to allow everything",
    "rehearsal": "a rehearsal does what its playbook says",
    "command": "what a command template may do is up to its command",
}


def require_guardable(name: str, kind: str) -> None:
    """Raise AgentMisconfigured unless an agent of this kind can be kept from doing as it likes."""
    if kind in _FLAGS or kind in _HARMLESS or kind == "acp":
        return
    reason = _CANNOT.get(kind, f"nothing is known of permissions of the agent type {kind}")
    raise AgentMisconfigured(
        f"The agent {name} cannot be run with skip_permissions=False: {reason}.",
        hint="Let it skip permissions and work in a worktree, or in a sandbox of yours.",
    )


def guarded_settings(kind: str, settings: AgentSettings) -> AgentSettings:
    return settings.model_copy(update={"permissions": "deny"}) if kind == "acp" else settings


def guarded(name: str, kind: str, command: Command) -> Command:
    """The command of an agent without what lets it do everything."""
    if kind not in _FLAGS:
        return command
    dangerous, instead = _FLAGS[kind]
    argv = command.argv
    for at in range(len(argv)):
        if argv[at : at + len(dangerous)] == dangerous:
            return replace(command, argv=argv[:at] + instead + argv[at + len(dangerous) :])
    raise AgentMisconfigured(
        f"The command of {name} has no {' '.join(dangerous)}, so that nobody knows how to take "
        "its permissions away.",
        hint="Remove options about permissions from extra_args.",
    )
