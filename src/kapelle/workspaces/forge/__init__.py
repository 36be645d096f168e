"""Forges, where work becomes pull requests: one seam, whatever is behind it."""

from kapelle.workspaces.forge.base import Forge, PullRequest, Verdict, Wanted
from kapelle.workspaces.forge.remote import Remote, find_remote

__all__ = ["Forge", "PullRequest", "Remote", "Verdict", "Wanted", "find_remote"]
