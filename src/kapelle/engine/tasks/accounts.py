"""Which agents may take a task, which of them takes it next, and under whose limits it works."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from kapelle.agents import registry
from kapelle.agents.base import AgentAdapter
from kapelle.domain.errors import KapelleError
from kapelle.domain.failures import POLICIES, FailureClass, FailureResponse
from kapelle.engine.parts import Parts
from kapelle.settings import Settings
from kapelle.store import attempts
from kapelle.store.database import Connection

PausedAccounts = dict[str, tuple[datetime, str]]
Source = Literal["task", "settings", "environment", "stored", "login"]


@dataclass(frozen=True)
class AgentCandidate:
    """An agent that may take a task; account names who is limited when it is limited."""

    agent: str
    account: str
    model: str | None = None  # as it is asked for; None is the agent's own choice

    @property
    def limits(self) -> tuple[str, str]:
        return self.account, of_model(self.account, self.model)

    def pause(self, paused: PausedAccounts) -> tuple[datetime, str] | None:
        """Until when and why it may not work: the last of the limits of account and model."""
        return max((paused[limit] for limit in self.limits if limit in paused), default=None)


def of_model(account: str, model: str | None) -> str:
    """The account that stands for the limits of one model under another one."""
    return f"{account}#{model or 'default'}"[:120]


@dataclass(frozen=True)
class Credential:
    """Where an agent's credential comes from; the value of a login is its program's affair."""

    source: Source | None
    variable: str | None = None  # or the file of a login
    value: str | None = None

    @property
    def stored(self) -> str | None:
        """The key that a person stored, where an agent would find no other."""
        if self.source == "stored":
            return self.value
        return None


def candidates(parts: Parts, task: Any, settings: Settings | None) -> list[AgentCandidate]:
    """The own agent of a task, given as its row, then its fallback agents in order; by settings
    that cannot be read, its own alone."""
    if settings is None:
        return [AgentCandidate(task["agent"], task["agent"])]
    names = dict.fromkeys([task["agent"], *task["fallback_agents"]])
    if task["env"]:
        own = parts.secrets.env(task["id"])
    else:
        own = {}
    return [
        AgentCandidate(name, _account(parts, name, settings, own), _model(task, name, settings))
        for name in names
    ]


def _model(task: Any, name: str, settings: Settings) -> str | None:
    if name == task["agent"]:
        named = task["model"]
    else:
        named = None
    if name in settings.agents:
        configured = settings.agents[name].model
    else:
        configured = None
    return named or configured


def choose(
    connection: Connection, task_id: str, among: Sequence[AgentCandidate], paused: PausedAccounts
) -> AgentCandidate | None:
    """The first that is not paused and has not just shown that it cannot; None if all pause."""
    able = [candidate for candidate in among if candidate.pause(paused) is None]
    if len(able) < 2:
        return able[0] if able else None
    failed = given_up(connection, task_id)
    return next((candidate for candidate in able if candidate.agent not in failed), able[0])


def given_up(connection: Connection, task_id: str) -> set[str]:
    """The agents whose last attempt at this task ended so that another one should take over."""
    last = {row["agent"]: row["failure"] for row in attempts.of_task(connection, task_id)}
    ends = {agent: POLICIES[FailureClass(failure)] for agent, failure in last.items() if failure}
    # Whoever was limited may work again as soon as the pause of the account is over.
    waits = FailureResponse.WAIT_FOR_RESET
    return {agent for agent, end in ends.items() if end.switches and end.response is not waits}


def credential(
    parts: Parts, agent: AgentAdapter, settings: Settings, task_env: Mapping[str, str]
) -> Credential:
    """The first that is found: variables of task, settings and daemon, a stored key, a login."""
    places: list[tuple[Source, Mapping[str, str]]] = [
        ("task", task_env),
        ("settings", agent.settings.env),
        ("settings", settings.environment.set),
        ("environment", parts.environ),
    ]
    for source, variables in places:
        for name in agent.access.variables:
            if variables.get(name):
                return Credential(source, name, variables[name])
    stored = parts.vault.get(agent.name)
    if stored:
        return Credential("stored", None, stored)
    for path in agent.access.login_files:
        if os.path.exists(os.path.expanduser(path)):
            return Credential("login", path)
    return Credential(None)


def account_of(
    parts: Parts, agent: AgentAdapter, settings: Settings, env: Mapping[str, str]
) -> str:
    """The same for all agents that share a provider's limits, and nothing secret in it."""
    if not agent.access.variables:
        return agent.name
    if agent.name in settings.agents:
        kind = settings.agents[agent.name].type
    else:
        kind = None
    found = credential(parts, agent, settings, env)
    # Of two logins the files differ.
    proof = f"{found.value or found.source} {found.variable}\n{agent.settings.base_url or ''}"
    digest = hashlib.blake2b(proof.encode("utf-8", "replace"), key=parts.secret.encode()[:64])
    return f"{kind or agent.name}:{digest.hexdigest()[:12]}"


def _account(parts: Parts, name: str, settings: Settings, env: Mapping[str, str]) -> str:
    try:
        return account_of(parts, registry.get(name, settings), settings, env)
    except KapelleError:
        return name  # that it cannot be run is found out when it is
