"""Forges, where work becomes pull requests: one seam, whatever is behind it."""

from kapelle.workspaces.forge.base import Forge, Login, PullRequest, Site, Verdict, Wanted
from kapelle.workspaces.forge.remote import (
    Remote,
    contains,
    find_remote,
    find_upstream,
    read_branch,
)

__all__ = [
    "Forge", "Login", "PullRequest", "Remote", "Site", "Verdict", "Wanted",
    "contains", "find_remote", "find_upstream", "read_branch",
]  # fmt: skip
