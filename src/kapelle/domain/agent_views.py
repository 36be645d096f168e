"""Views of agents: login, limits and status."""

from datetime import datetime
from typing import Literal

from kapelle.domain.task import Record

LoginSource = Literal["task", "settings", "environment", "stored", "login", "none"]


class LoginView(Record):
    """Source of an agent's credential; its value is never shown."""

    source: LoginSource
    variable: str | None
    variables: list[str]
    needed: bool
    verified_at: datetime | None


class PausedModel(Record):
    """A rate-limited model of an account whose other models are free.

    "default" is the model of an agent for which no model is configured.
    """

    model: str
    until: datetime
    reason: str


class AccountWindow(Record):
    """A rate limit of an account, as its provider last reported it.

    used is the used share of it; None if the provider did not report it or if it has since reset.
    """

    name: str
    used: float | None
    resets_at: datetime | None
    told_at: datetime


class AgentView(Record):
    """An agent: its program, login, capabilities and rate limits."""

    name: str
    type: str
    installed: str | None
    default: bool
    status: str
    problem: str | None
    hint: str | None
    model: str | None
    capabilities: dict[str, bool]
    login: LoginView
    tested: str | None
    paused_until: datetime | None
    paused_reason: str | None
    paused_models: list[PausedModel]
    windows: list[AccountWindow]
