"""Kapelle conducts coding agents: background tasks that survive crashes and tell the truth."""

__version__ = "0.1.0"
