"""Typed configuration: environment > the repository's config > the user's config > defaults."""

from kapelle.settings.config import LoadedSettings, load, reset_value, set_value
from kapelle.settings.models import AgentSettings, Settings

__all__ = ["AgentSettings", "LoadedSettings", "Settings", "load", "reset_value", "set_value"]
