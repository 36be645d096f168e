"""Use case of the examination of a directory: what keeps work there from starting or succeeding.

`kapelle doctor` looks at more: at its own shell, and at what keeps the daemon from starting.
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from kapelle.domain.agent_views import AgentView
from kapelle.domain.errors import KapelleError
from kapelle.domain.views import DoctorView, Finding
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.submit import require_directory
from kapelle.service.agents import AgentService, SearchPath
from kapelle.service.daemon import DaemonService
from kapelle.settings import Settings
from kapelle.workspaces.repository import find_checkout

_MB = 1_000_000
_BROKEN_STATUS = frozenset({"not usable", "not installed", "not set up"})

AbsoluteDirectory = Annotated[str | None, Field(max_length=4000, pattern=r"^/[^\x00]*$")]


class DoctorService:
    def __init__(self, parts: Parts, agents: AgentService, daemon: DaemonService) -> None:
        self._parts = parts
        self._agents = agents
        self._daemon = daemon

    async def examine(
        self, directory: AbsoluteDirectory = None, path: SearchPath = None
    ) -> DoctorView:
        """Look for what keeps Kapelle from working in a directory: repository, configuration,
        trust, agents, disk, queue. It changes nothing."""
        if directory:
            place = require_directory(directory)
        else:
            place = None
        if place:
            findings = [_repository(Path(place))]
        else:
            findings = []
        try:
            settings = self._parts.settings(place)
        except KapelleError as error:
            broken = Finding(name="config", state="broken", text=error.message, hint=error.hint)
            return DoctorView(ok=False, findings=[*findings, broken])
        findings.append(Finding(name="config", state="ok", text="The configuration is valid."))
        if place:
            findings.append(await asyncio.to_thread(self._trust, place))
            findings.append(_checks(settings))
        findings += _of_agents(await self._agents.known(place, path), settings)
        findings.append(await asyncio.to_thread(self._disk, settings))
        if problem := await asyncio.to_thread(self._parts.vault.explain_unreadable):
            hint = "Store them again (kapelle agents config set NAME api_key), remove the file."
            findings.append(Finding(name="keys", state="warning", text=problem, hint=hint))
        if held := (await self._daemon.describe()).held:
            findings.append(Finding(name="queue", state="warning", text=f"No task starts: {held}"))
        is_ok = all(one.state != "broken" for one in findings)
        return DoctorView(ok=is_ok, findings=findings)

    def _trust(self, directory: str) -> Finding:
        _, status = self._parts.standing(directory)
        if status in {"not_needed", "trusted"}:
            return Finding(name="trust", state="ok", text=f"Trust: {status.replace('_', ' ')}.")
        if status == "changed":
            what = "changed since it was trusted"
        else:
            what = "is not trusted"
        return Finding(
            name="trust",
            state="broken",
            text=f"The configuration of this repository {what}, so no task starts.",
            hint="A person reviews it with `kapelle trust`.",
        )

    def _disk(self, settings: Settings) -> Finding:
        free = shutil.disk_usage(self._parts.home.root).free // _MB
        floor = settings.limits.min_free_disk_mb
        if free >= floor:
            return Finding(name="disk", state="ok", text=f"{free:,} MB are free.")
        text = f"{free:,} MB are free, and no task starts below {floor:,} MB."
        return Finding(name="disk", state="broken", text=text, hint="Free some space.")


def _repository(directory: Path) -> Finding:
    checkout = find_checkout(directory)
    if checkout is not None:
        return Finding(name="repository", state="ok", text=f"git repository {checkout.toplevel}")
    return Finding(
        name="repository",
        state="warning",
        text=f"{directory} is in no git repository: agents change its files in place.",
        hint="Type `git init` there, and every task gets a worktree of its own.",
    )


def _checks(settings: Settings) -> Finding:
    if settings.checks:
        text = f"{len(settings.checks)} configured for every task."
        return Finding(name="checks", state="ok", text=text)
    return Finding(
        name="checks",
        state="warning",
        text="No checks are configured: only the checks of a task itself verify it.",
        hint="Give `checks` with each task, or set them with `kapelle init`.",
    )


def _of_agents(agents: list[AgentView], settings: Settings) -> Iterator[Finding]:
    """The agents that are installed or set up, and the default agent."""
    for agent in agents:
        if agent.installed is None and agent.name not in settings.agents:
            continue
        is_usable = agent.status not in _BROKEN_STATUS
        yield Finding(
            name=f"agent {agent.name}",
            state="ok" if is_usable else "warning",
            text=agent.problem or agent.status,
            hint=agent.hint,
        )
    name = settings.default_agent
    default = next((agent for agent in agents if agent.name == name), None)
    if name is None:
        hint = "Name an agent with each task, or type `kapelle init`."
        yield Finding(name="default agent", state="warning", text="None is set.", hint=hint)
    elif default is None or default.status in _BROKEN_STATUS:
        why = default.problem if default else None
        text = f"{name}: {why or 'there is no such agent'}"
        if default:
            fix = default.hint
        else:
            fix = "`kapelle agents` lists those that there are."
        yield Finding(name="default agent", state="broken", text=text, hint=fix)
    else:
        yield Finding(name="default agent", state="ok", text=name)
