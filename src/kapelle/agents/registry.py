"""Finds agents by name: adapters come from the entry-point group kapelle.agents, built-ins too."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from kapelle.agents.base import Agent, Capabilities
from kapelle.domain.errors import AgentMisconfigured, AgentNotFound
from kapelle.settings import AgentSettings, Settings

GROUP = "kapelle.agents"

_TEMPLATE = "command"

# Headless calls that need no adapter, for the advice given when nothing is configured.
WELL_KNOWN = {
    "claude": '["claude", "-p", "{prompt}", "--permission-mode", "acceptEdits"]',
    "codex": '["codex", "exec", "--skip-git-repo-check", "-s", "workspace-write", "{prompt}"]',
    "gemini": '["gemini", "-p", "{prompt}", "--approval-mode", "yolo"]',
    "opencode": '["opencode", "run", "{prompt}"]',
    "aider": '["aider", "--yes-always", "--message-file", "{prompt_file}"]',
    "qwen": '["qwen", "{prompt}", "--yolo"]',
    "copilot": '["copilot", "-p", "{prompt}", "--allow-all-tools", "--allow-all-paths"]',
}

Adapter = Callable[[str, AgentSettings], Agent]


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent that may be named in a task; problem says why it cannot be used at all."""

    name: str
    type: str
    installed: str | None
    capabilities: Capabilities
    is_default: bool
    problem: str | None = None


def get(name: str, settings: Settings) -> Agent:
    """The agent of this name, set up; raises AgentNotFound or AgentMisconfigured."""
    kind = _type_of(name, settings)
    return _adapter(name, kind)(name, settings.agents.get(name, AgentSettings()))


def resolve_default(settings: Settings) -> str:
    """The agent of a task that names none; raises AgentNotFound when none is chosen."""
    if settings.default_agent:
        _type_of(settings.default_agent, settings)
        return settings.default_agent
    if settings.agents:
        names = ", ".join(sorted(settings.agents))
        raise AgentNotFound(
            f"No agent was named and no default is set; configured are: {names}.",
            hint=f"kapelle config set default_agent {min(settings.agents)}",
        )
    raise AgentNotFound("No agent was named and no default is set.", hint=_how_to_start())


def available(settings: Settings) -> list[AgentInfo]:
    """Every agent that can be named, with what is known about it."""
    return [_info(name, settings) for name in _names(settings)]


def _info(name: str, settings: Settings) -> AgentInfo:
    kind, is_default = name, name == settings.default_agent
    try:
        kind = _type_of(name, settings)
        agent = get(name, settings)
    except (AgentNotFound, AgentMisconfigured) as error:
        return AgentInfo(name, kind, None, Capabilities(), is_default, error.message)
    return AgentInfo(name, kind, agent.installed(), agent.capabilities, is_default)


def _type_of(name: str, settings: Settings) -> str:
    entry = settings.agents.get(name)
    if entry and entry.type:
        return entry.type
    # A command makes a template even under an adapter's name, so that adapters added later
    # do not change what an existing configuration means.
    if entry and entry.command:
        return _TEMPLATE
    if name in _adapters():
        return name
    known = ", ".join(_names(settings))
    raise AgentNotFound(
        f"There is no agent {name!r}; known are: {known}.", hint=_how_to_set_up(name, settings)
    )


def _adapter(name: str, kind: str) -> Adapter:
    entry = _adapters().get(kind)
    if entry is None:
        known = ", ".join(sorted(_adapters()))
        raise AgentNotFound(
            f"The agent {name!r} is of type {kind!r}, which does not exist; types are: {known}.",
            hint=f"kapelle config set agents.{name}.type {_TEMPLATE}",
        )
    try:
        return cast(Adapter, entry.load())
    except Exception as error:
        raise AgentMisconfigured(
            f"The adapter {kind!r} ({entry.value}) cannot be loaded: {error}."
        ) from error


@cache
def _adapters() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _names(settings: Settings) -> list[str]:
    # The template adapter alone is no agent: it needs a command.
    return sorted({*settings.agents, *_adapters()} - ({_TEMPLATE} - set(settings.agents)))


def _how_to_set_up(name: str, settings: Settings) -> str:
    if name in WELL_KNOWN or settings.agents:
        template = WELL_KNOWN.get(name, f'["{name}", "{{prompt}}"]')
        return f"kapelle config set agents.{name}.command '{template}'"
    return _how_to_start()


def _how_to_start() -> str:
    found = [name for name in WELL_KNOWN if shutil.which(name)]
    if not found:
        return (
            f"Install a coding agent (such as {', '.join(WELL_KNOWN)}), or set up any command: "
            """kapelle config set agents.NAME.command '["mytool", "{prompt}"]'"""
        )
    lines = [f"kapelle config set agents.{name}.command '{WELL_KNOWN[name]}'" for name in found]
    lines.append(f"kapelle config set default_agent {found[0]}")
    return "On your PATH: " + ", ".join(found) + ". To use one:\n" + "\n".join(lines)
