"""Agents as they are shown: what is installed, how it logs in, and what is known of that."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel

from kapelle.agents.program import Comparison
from kapelle.agents.registry import AgentInfo
from kapelle.domain.failures import FailureClass
from kapelle.domain.views import AgentView, LoginView
from kapelle.engine.tasks.accounts import Credential


class LiveView(BaseModel):
    """What came of one real call."""

    ok: bool
    answer: str | None
    failure: FailureClass | None
    reason: str | None
    duration_s: float


class CheckView(BaseModel):
    """What was found when an agent was tried; live is None when no call was made."""

    agent: AgentView
    usable: bool
    version: str | None
    comparison: Comparison | None
    problem: str | None
    hint: str | None
    live: LiveView | None


class KeyRemovedView(BaseModel):
    removed: bool


def agent_view(info: AgentInfo, found: Credential, account: Any, now: datetime) -> AgentView:
    """An agent with its credential and the row of its account, None if there is none yet."""
    access = info.agent.access if info.agent else None
    login = LoginView(
        source=found.source or "none",
        variable=found.variable,
        variables=list(access.variables) if access else [],
        needed=access.needed if access else False,
        verified_at=account["verified_at"] if account else None,
    )
    paused = bool(account and account["paused_until"] and account["paused_until"] > now)
    return AgentView(
        name=info.name,
        type=info.type,
        installed=info.installed,
        default=info.is_default,
        status=_status(info, login, now),
        problem=info.problem,
        hint=info.hint,
        model=info.agent.settings.model if info.agent else None,
        capabilities=asdict(info.capabilities),
        login=login,
        tested=info.agent.tested if info.agent else None,
        paused_until=account["paused_until"] if paused else None,
        paused_reason=account["reason"] if paused else None,
    )


def _status(info: AgentInfo, login: LoginView, now: datetime) -> str:
    if info.agent is None:
        return "not usable"
    if info.installed is None:
        return "not installed"
    if info.problem:
        return "not set up"
    if login.verified_at:
        return f"verified {_ago(now - login.verified_at)}"
    if login.source != "none":
        return "installed, login not verified"
    return "installed, no login found" if login.needed else "installed"


def _ago(passed: timedelta) -> str:
    seconds = max(passed.total_seconds(), 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"
