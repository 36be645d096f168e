"""Finds agents by name: built-in ones in their file of adapters, others by an entry point."""

import difflib
import os
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from kapelle.agents import adapters
from kapelle.agents.base import (
    AgentAdapter,
    AgentCommand,
    AgentRequest,
    AgentVerdict,
    Capabilities,
    Summary,
)
from kapelle.agents.events import AgentEvent
from kapelle.domain.errors import AgentMisconfigured, AgentNotFound, InvalidInput, KapelleError
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings, Settings

GROUP = "kapelle.agents"
REHEARSAL = "rehearsal"

_TEMPLATE = "command"
_ACP = "acp"
# Adapters that are an agent only once somebody has said of which command or model.
_NEED_SETTINGS = frozenset({_TEMPLATE, _ACP, "anthropic", "openai"})

AdapterFactory = Callable[[str, AgentSettings], AgentAdapter]


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent that may be named in a task; problem says why it cannot be used as it is.

    agent is None where there is not even an adapter for it.
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
    """The agent of this name, set up; raises AgentNotFound or AgentMisconfigured."""
    kind = type_of(name, settings)
    agent = _adapter(name, kind)(name, settings.agents.get(name, AgentSettings()))
    if interactive:
        agent = _in_terminal(agent)
    agent.search_path = settings.search_path
    return agent


def resolve_default(settings: Settings) -> str:
    """The agent of a task that names none; raises AgentNotFound when none is chosen."""
    if settings.default_agent:
        type_of(settings.default_agent, settings)
        return settings.default_agent
    raise AgentNotFound("No agent was named and no default is set.", hint=_how_to_start(settings))


def available(settings: Settings) -> list[AgentInfo]:
    """Every agent that can be named, with what is known about it."""
    return [_info(name, settings) for name in _names(settings)]


def describe(name: str, settings: Settings) -> AgentInfo:
    """What is known about one agent; raises AgentNotFound when there is none of this name."""
    type_of(name, settings)
    return _info(name, settings)


def type_of(name: str, settings: Settings) -> str:
    """The adapter that an agent has; raises AgentNotFound when there is no such agent."""
    entry = settings.agents.get(name)
    if entry and entry.type:
        return entry.type
    # A command makes a template even under an adapter's name, so that adapters added later
    # do not change what an existing configuration means; acp itself runs the command it is given.
    if entry and entry.command and name != _ACP:
        return _TEMPLATE
    if name in _adapters():
        return name
    raise _not_found(name, settings)


def _not_found(name: str, settings: Settings) -> AgentNotFound:
    names = _names(settings)
    if near := difflib.get_close_matches(name.lower(), names, 1, 0.6):
        text = f"There is no agent {name!r}; did you mean {near[0]}?"
        return AgentNotFound(text, hint="`kapelle agents` lists them.")
    text = f"There is no agent {name!r}; known are: {', '.join(names)}."
    own = f"""kapelle config set agents.{name}.command '["{name}", "{{prompt}}"]'"""
    return AgentNotFound(text, hint=f"Any other program becomes one by its command: {own}")


def _info(name: str, settings: Settings) -> AgentInfo:
    kind = name
    is_default = name == settings.default_agent
    agent = installed = problem = hint = None
    try:
        kind = type_of(name, settings)
        agent = get(name, settings)
        installed = agent.installed()
        _try_out(agent, installed)
    except KapelleError as error:
        problem = error.message
        hint = error.hint
    except Exception as error:
        # Adapters may be anybody's, and one that is broken must not hide the others.
        problem = f"The adapter {kind!r} fails: {error!r}."
        hint = None
    return AgentInfo(name, kind, is_default, agent, installed, problem, hint)


def _try_out(agent: AgentAdapter, installed: str | None) -> None:
    """Have a command made, which starts nothing; raises AgentMisconfigured when there is none."""
    if installed and not os.path.isabs(installed):
        return  # such a program is looked for in the workspace, which is not known yet
    place = Path("/nowhere")
    agent.command(AgentRequest("Hello", place, place / "prompt", agent.settings))


def _adapter(name: str, kind: str) -> AdapterFactory:
    entry = _adapters().get(kind)
    if entry is None:
        known = ", ".join(sorted(_adapters()))
        text = f"The agent {name!r} is of type {kind!r}, which does not exist; types are: {known}."
        raise AgentNotFound(text, hint=f"kapelle config set agents.{name}.type {_TEMPLATE}")
    try:
        return cast(AdapterFactory, entry.load())
    except Exception as error:
        text = f"The adapter {kind!r} ({entry.value}) cannot be loaded: {error}."
        raise AgentMisconfigured(text) from error


@cache
def _adapters() -> dict[str, EntryPoint]:
    """Installed ones, and the built-in ones: name.py in adapters holds NameAgent."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for _, name, _ in pkgutil.iter_modules(adapters.__path__):
        value = f"{adapters.__name__}.{name}:{name.capitalize()}Agent"
        found[name] = EntryPoint(name, value, GROUP)
    return found


def _names(settings: Settings) -> list[str]:
    return sorted({*settings.agents, *(set(_adapters()) - _NEED_SETTINGS)})


def _how_to_start(settings: Settings) -> str:
    infos = available(settings)
    found = [info.name for info in infos if info.installed and info.name != REHEARSAL]
    none = "No coding agent is installed here. Install one, such as claude, codex or gemini, then"
    if found:
        how = f"Installed: {', '.join(found)}. To choose one"
    else:
        how = none
    name = found[0] if found else "claude"
    return f"{how}: kapelle init, or: kapelle config set default_agent {name}"


# What moves the cursor, colours, or names the window, and what a line was before it was redrawn.
_NOT_TEXT = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)


class _InTerminal(AgentAdapter):
    """What an agent is in a terminal, before its own adapter."""

    reads_whole_output = False
    hears = False

    def command(self, request: AgentRequest) -> AgentCommand:
        # Its own adapter is behind it.
        made = super().command(replace(request, interactive=True))  # type: ignore[safe-super]
        return replace(made, env={"TERM": "xterm-256color", "COLORTERM": "truecolor", **made.env})

    def parse(self, line: str) -> list[AgentEvent]:
        text = _NOT_TEXT.sub("", line).rstrip()
        if text:
            return [AgentEvent("text", text)]
        return []

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        return []

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        """Whoever was there knows how it went: only an end by force or with an error is none."""
        if exit.code == 0:
            return AgentVerdict(True)
        reason = self.exit_sentence(exit, "")
        return AgentVerdict(False, reason, failure=Failure(FailureClass.TASK, reason))


def _in_terminal(agent: AgentAdapter) -> AgentAdapter:
    """The same agent in a terminal; InvalidInput if it has no form for that."""
    can = agent.capabilities
    if not can.terminal:
        hint = "Leave --interactive out; `kapelle agents` names those that can."
        raise InvalidInput(f"The agent {agent.name} cannot be used in a terminal.", hint=hint)
    kind = type(agent)
    made: AgentAdapter = type(kind.__name__, (_InTerminal, kind), {})(agent.name, agent.settings)
    # Nothing in its output says what it uses, nor which conversation it was.
    made.reads_whole_output = False
    kept = {name: getattr(can, name) for name in ("model", "system_prompt", "mcp", "read_only")}
    made.capabilities = Capabilities(terminal=True, **kept)
    return made
