"""The agents that may take a task, the choice between them, and the limits they work under."""

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
    """An agent that may take a task. The account stands for its limits."""

    agent: str
    account: str
    model: str | None = None  # None is the agent's own choice

    @property
    def limits(self) -> tuple[str, str]:
        return self.account, model_account_of(self.account, self.model)

    def find_pause(self, pauses: PausedAccounts) -> tuple[datetime, str] | None:
        """Return until when and why it may not work: the last pause of account and model."""
        return max((pauses[limit] for limit in self.limits if limit in pauses), default=None)


def model_account_of(account: str, model: str | None) -> str:
    """Return the account for the limits of one model under another account."""
    return f"{account}#{model or 'default'}"[:120]


@dataclass(frozen=True)
class Credential:
    """The source of an agent's credential. The value of a login is known to its program only."""

    source: Source | None
    variable: str | None = None  # or the file of a login
    value: str | None = None

    @property
    def stored_key(self) -> str | None:
        """The key that a person stored, if the agent would find no other credential."""
        if self.source == "stored":
            return self.value
        return None


def list_candidates(parts: Parts, task: Any, settings: Settings | None) -> list[AgentCandidate]:
    """Return the task's own agent, then its fallback agents in order.

    If the settings cannot be read (None), only the own agent is returned.
    """
    if settings is None:
        return [AgentCandidate(task["agent"], task["agent"])]
    names = dict.fromkeys([task["agent"], *task["fallback_agents"]])
    own: dict[str, str] = {}
    if task["env"]:
        own = parts.secrets.env(task["id"])
    return [
        AgentCandidate(name, _account(parts, name, settings, own), _model(task, name, settings))
        for name in names
    ]


def _model(task: Any, name: str, settings: Settings) -> str | None:
    # The task names a model for its own agent only.
    if name == task["agent"] and task["model"]:
        return str(task["model"])
    if name in settings.agents:
        return settings.agents[name].model
    return None


def choose_agent(
    connection: Connection, task_id: str, among: Sequence[AgentCandidate], pauses: PausedAccounts
) -> AgentCandidate | None:
    """Return the first candidate that is neither paused nor has just failed; None if all pause.

    If all available candidates have failed, the first of them is returned.
    """
    able = [candidate for candidate in among if candidate.find_pause(pauses) is None]
    # With one candidate there is no choice, so the history is not read.
    if len(able) < 2:
        return next(iter(able), None)
    failed_agents = list_failed_agents(connection, task_id)
    return next((candidate for candidate in able if candidate.agent not in failed_agents), able[0])


def list_failed_agents(connection: Connection, task_id: str) -> set[str]:
    """Return the agents whose last attempt at this task failed so that another should take over."""
    last = {row["agent"]: row["failure"] for row in attempts.list_rows(connection, task_id)}
    ends = {agent: POLICIES[FailureClass(failure)] for agent, failure in last.items() if failure}
    # A rate-limited agent may work again as soon as the pause of its account has ended.
    waits = FailureResponse.WAIT_FOR_RESET
    return {agent for agent, end in ends.items() if end.switches and end.response is not waits}


def find_credential(
    parts: Parts, agent: AgentAdapter, settings: Settings, task_env: Mapping[str, str]
) -> Credential:
    """Return the first credential of: variables of task, settings and daemon, stored key, login."""
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
    key = parts.vault.get(agent.name)
    if key:
        return Credential("stored", None, key)
    for path in agent.access.login_files:
        if os.path.exists(os.path.expanduser(path)):
            return Credential("login", path)
    return Credential(None)


def account_of(
    parts: Parts, agent: AgentAdapter, settings: Settings, env: Mapping[str, str]
) -> str:
    """Return a name that agents with a common provider limit share; it holds nothing secret."""
    if not agent.access.variables:
        return agent.name
    if agent.name in settings.agents:
        kind = settings.agents[agent.name].type
    else:
        kind = None
    credential = find_credential(parts, agent, settings, env)
    # Two logins differ by their files.
    source = credential.value or credential.source
    proof = f"{source} {credential.variable}\n{agent.settings.base_url or ''}"
    digest = hashlib.blake2b(proof.encode("utf-8", "replace"), key=parts.secret.encode()[:64])
    return f"{kind or agent.name}:{digest.hexdigest()[:12]}"


def _account(parts: Parts, name: str, settings: Settings, env: Mapping[str, str]) -> str:
    try:
        return account_of(parts, registry.get(name, settings), settings, env)
    except KapelleError:
        return name  # the attempt will report why it cannot run
