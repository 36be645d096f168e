"""Forges, where work becomes pull requests: one interface for GitHub, GitLab and Gitea."""

from kapelle.workspaces.forge.base import (
    CiVerdict,
    Forge,
    Login,
    PullRequest,
    PullRequestDraft,
    Site,
)
from kapelle.workspaces.forge.remote import (
    Remote,
    contains,
    find_remote,
    find_upstream,
    read_branch,
)

__all__ = [
    "CiVerdict",
    "Forge",
    "Login",
    "PullRequest",
    "PullRequestDraft",
    "Remote",
    "Site",
    "contains",
    "find_remote",
    "find_upstream",
    "read_branch",
]  # fmt: skip
