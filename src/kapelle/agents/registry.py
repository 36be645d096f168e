"""Find agents by name: built-in ones in `agents/adapters`, others by an entry point."""

import difflib
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from kapelle.agents import adapters
from kapelle.agents.base import AgentAdapter, AgentRequest, Capabilities
from kapelle.agents.terminal import for_terminal
from kapelle.domain.errors import AgentMisconfigured, AgentNotFound, KapelleError
from kapelle.settings import AgentSettings, Settings

GROUP = "kapelle.agents"
REHEARSAL = "rehearsal"

_TEMPLATE = "command"
_ACP = "acp"
# Adapters that become an agent only by settings that name their command or model.
_NEED_SETTINGS = frozenset({_TEMPLATE, _ACP, "anthropic", "openai"})

AdapterFactory = Callable[[str, AgentSettings], AgentAdapter]


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent that a task may name; problem is the reason why it cannot be used now.

    agent is None if its adapter cannot be loaded.
    """

    name: str
    type: str
    is_default: bool
    agent: AgentAdapter | None = None
    installed: str | None = None
    problem: str | None = None
    hint: str | None = None

    @property
    def capabilities(self) -> Capabilities:
        if self.agent:
            return self.agent.capabilities
        return Capabilities()


def get(name: str, settings: Settings, *, interactive: bool = False) -> AgentAdapter:
    """Return a new adapter for the agent; raise AgentNotFound or AgentMisconfigured."""
    kind = type_of(name, settings)
    agent = _load_adapter(name, kind)(name, settings.agents.get(name, AgentSettings()))
    agent.search_path = settings.search_path
    if interactive:
        return for_terminal(agent)
    return agent


def resolve_default(settings: Settings) -> str:
    """Return the default agent's name; raise AgentNotFound if none is configured."""
    if settings.default_agent:
        type_of(settings.default_agent, settings)
        return settings.default_agent
    raise AgentNotFound("No agent was named and no default is set.", hint=_how_to_start(settings))


def available(settings: Settings) -> list[AgentInfo]:
    """Return all agents that a task may name."""
    return [_info(name, settings) for name in _names(settings)]


def describe(name: str, settings: Settings) -> AgentInfo:
    """Return the description of one agent; raise AgentNotFound if there is no such agent."""
    type_of(name, settings)
    return _info(name, settings)


def type_of(name: str, settings: Settings) -> str:
    """Return the name of the agent's adapter; raise AgentNotFound if there is no such agent."""
    entry = settings.agents.get(name)
    if entry and entry.type:
        return entry.type
    # A command makes a template even under an adapter's name, so that an adapter that is added
    # later does not change an existing configuration. The adapter acp itself takes a command.
    if entry and entry.command and name != _ACP:
        return _TEMPLATE
    if name in _adapters():
        return name
    raise _not_found(name, settings)


def _not_found(name: str, settings: Settings) -> AgentNotFound:
    names = _names(settings)
    matches = difflib.get_close_matches(name.lower(), names, 1, 0.6)
    if matches:
        text = f"There is no agent {name!r}; did you mean {matches[0]}?"
        return AgentNotFound(text, hint="`kapelle agents` lists them.")
    text = f"There is no agent {name!r}; the agents are: {', '.join(names)}."
    command = f"""kapelle config set agents.{name}.command '["{name}", "{{prompt}}"]'"""
    return AgentNotFound(text, hint=f"To use any other program, set its command: {command}")


def _info(name: str, settings: Settings) -> AgentInfo:
    kind = name
    is_default = name == settings.default_agent
    agent = installed = problem = hint = None
    try:
        kind = type_of(name, settings)
        agent = get(name, settings)
        installed = agent.installed()
        _try_command(agent, installed)
    except KapelleError as error:
        problem = error.message
        hint = error.hint
    except Exception as error:
        # Adapters may come from other packages; a broken one must not hide the others.
        problem = f"The adapter {kind!r} fails: {error!r}."
        hint = None
    return AgentInfo(name, kind, is_default, agent, installed, problem, hint)


def _try_command(agent: AgentAdapter, program: str | None) -> None:
    """Build a command without starting it; raise AgentMisconfigured if that is impossible."""
    if program and not os.path.isabs(program):
        return  # a relative program is looked up in the workspace, which is not known yet
    workspace = Path("/nowhere")
    agent.command(AgentRequest("Hello", workspace, workspace / "prompt", agent.settings))


def _load_adapter(name: str, kind: str) -> AdapterFactory:
    entry = _adapters().get(kind)
    if entry is None:
        types = ", ".join(sorted(_adapters()))
        text = f"The agent {name!r} has the unknown type {kind!r}; types are: {types}."
        raise AgentNotFound(text, hint=f"kapelle config set agents.{name}.type {_TEMPLATE}")
    try:
        return cast(AdapterFactory, entry.load())
    except Exception as error:
        text = f"The adapter {kind!r} ({entry.value}) cannot be loaded: {error}."
        raise AgentMisconfigured(text) from error


@cache
def _adapters() -> dict[str, EntryPoint]:
    """Return all adapters by name; a built-in one has precedence over an installed one."""
    by_name = {entry.name: entry for entry in entry_points(group=GROUP)}
    for _, name, _ in pkgutil.iter_modules(adapters.__path__):
        # The module adapters/name.py holds the class NameAgent.
        value = f"{adapters.__name__}.{name}:{name.capitalize()}Agent"
        by_name[name] = EntryPoint(name, value, GROUP)
    return by_name


def _names(settings: Settings) -> list[str]:
    return sorted({*settings.agents, *(set(_adapters()) - _NEED_SETTINGS)})


def _how_to_start(settings: Settings) -> str:
    """Return the hint of an error that no default agent is configured."""
    infos = available(settings)
    names = [info.name for info in infos if info.installed and info.name != REHEARSAL]
    if names:
        name = names[0]
        start = f"Installed: {', '.join(names)}. To choose one"
    else:
        name = "claude"
        start = "No coding agent is installed here. Install one, such as claude, codex or gemini"
        start += ", then"
    return f"{start}: kapelle init, or: kapelle config set default_agent {name}"
