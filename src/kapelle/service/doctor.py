"""The use case behind `kapelle doctor`: examine a directory for problems.

The command adds checks of its own: of the shell, and of what keeps the daemon from starting.
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
        """Examine a directory for problems; nothing is changed.

        The findings are about its repository, configuration and trust, about agents, the disk and
        the queue.
        """
        place = require_directory(directory) if directory else None
        findings: list[Finding] = []
        if place:
            findings.append(_examine_repository(Path(place)))
        try:
            settings = self._parts.settings(place)
        except KapelleError as error:
            problem = Finding(name="config", state="broken", text=error.message, hint=error.hint)
            return DoctorView(ok=False, findings=[*findings, problem])
        findings.append(Finding(name="config", state="ok", text="The configuration is valid."))
        if place:
            findings.append(await asyncio.to_thread(self._examine_trust, place))
            findings.append(_examine_checks(settings))
        agents = await self._agents.list_agents(place, path)
        findings += _examine_agents(agents, settings)
        findings.append(_examine_default_agent(agents, settings))
        findings.append(_examine_sandbox(self._parts, settings))
        findings.append(await asyncio.to_thread(self._examine_disk, settings))
        findings += await asyncio.to_thread(self._examine_keys)
        findings += await self._examine_queue()
        is_ok = all(finding.state != "broken" for finding in findings)
        return DoctorView(ok=is_ok, findings=findings)

    def _examine_trust(self, directory: str) -> Finding:
        _, status = self._parts.standing(directory)
        if status in {"not_needed", "trusted"}:
            return Finding(name="trust", state="ok", text=f"Trust: {status.replace('_', ' ')}.")
        if status == "changed":
            problem = "changed since it was trusted"
        else:
            problem = "is not trusted"
        return Finding(
            name="trust",
            state="broken",
            text=f"The configuration of this repository {problem}, so no task starts.",
            hint="Type `kapelle trust` to review it.",
        )

    def _examine_disk(self, settings: Settings) -> Finding:
        free = shutil.disk_usage(self._parts.home.root).free // _MB
        floor = settings.limits.min_free_disk_mb
        if free >= floor:
            return Finding(name="disk", state="ok", text=f"{free:,} MB are free.")
        text = f"{free:,} MB are free, but tasks start only with at least {floor:,} MB."
        return Finding(name="disk", state="broken", text=text, hint="Free some disk space.")

    def _examine_keys(self) -> list[Finding]:
        problem = self._parts.vault.explain_unreadable()
        if problem is None:
            return []
        hint = "Remove the file, then store the keys again: kapelle agents config set NAME api_key"
        return [Finding(name="keys", state="warning", text=problem, hint=hint)]

    async def _examine_queue(self) -> list[Finding]:
        reason = (await self._daemon.describe()).held
        if reason is None:
            return []
        return [Finding(name="queue", state="warning", text=f"No task starts: {reason}")]


def _examine_sandbox(parts: Parts, settings: Settings) -> Finding:
    """Tell by which means the processes of work are confined."""
    try:
        rung = parts.confiner.choose_rung(settings.confine)
    except KapelleError as error:
        return Finding(name="sandbox", state="broken", text=error.message, hint=error.hint)
    if rung is None:
        text = "Agents are not confined: they can reach everything that you can."
        hint = "kapelle config set confine.level auto"
        return Finding(name="sandbox", state="ok", text=text, hint=hint)
    return Finding(name="sandbox", state="ok", text=f"Agents and checks are confined by {rung}.")


def _examine_repository(directory: Path) -> Finding:
    checkout = find_checkout(directory)
    if checkout is not None:
        return Finding(name="repository", state="ok", text=f"git repository {checkout.toplevel}")
    return Finding(
        name="repository",
        state="warning",
        text=f"{directory} is not in a git repository, so agents change its files in place.",
        hint="Type `git init` there; then every task gets its own worktree.",
    )


def _examine_checks(settings: Settings) -> Finding:
    if settings.checks:
        text = f"{len(settings.checks)} configured for every task."
        return Finding(name="checks", state="ok", text=text)
    return Finding(
        name="checks",
        state="warning",
        text="No checks are configured, so only the checks of a task itself verify its work.",
        hint="Give `checks` with each task, or type `kapelle init` to configure them.",
    )


def _examine_agents(agents: list[AgentView], settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each agent that is installed or configured."""
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


def _examine_default_agent(agents: list[AgentView], settings: Settings) -> Finding:
    name = settings.default_agent
    if name is None:
        hint = "Name an agent with each task, or type `kapelle init`."
        text = "No default agent is configured."
        return Finding(name="default agent", state="warning", text=text, hint=hint)
    for agent in agents:
        if agent.name != name:
            continue
        if agent.status not in _BROKEN_STATUS:
            return Finding(name="default agent", state="ok", text=name)
        text = f"{name}: {agent.problem or agent.status}"
        return Finding(name="default agent", state="broken", text=text, hint=agent.hint)
    text = f"{name}: there is no such agent"
    hint = "Type `kapelle agents` to list the agents."
    return Finding(name="default agent", state="broken", text=text, hint=hint)
