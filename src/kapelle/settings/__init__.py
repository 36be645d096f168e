"""Typed configuration: environment > the repository's config > the user's config > defaults."""

from kapelle.settings.edit import reset_value, set_value
from kapelle.settings.load import Loaded, load, looks_secret, masked, validate
from kapelle.settings.models import (
    REPOSITORY_KEYS,
    AgentSettings,
    Backup,
    Environment,
    Failures,
    Git,
    Health,
    Limits,
    Price,
    ReadJson,
    Server,
    Settings,
    Tasks,
    WorkspaceSettings,
    default_max_attempts,
)

__all__ = [
    "REPOSITORY_KEYS",
    "AgentSettings",
    "Backup",
    "Environment",
    "Failures",
    "Git",
    "Health",
    "Limits",
    "Loaded",
    "Price",
    "ReadJson",
    "Server",
    "Settings",
    "Tasks",
    "WorkspaceSettings",
    "default_max_attempts",
    "load",
    "looks_secret",
    "masked",
    "reset_value",
    "set_value",
    "validate",
]
