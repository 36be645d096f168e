"""Git worktrees for tasks: made, committed, compared, merged, removed; nothing is ever lost."""

from kapelle.workspaces.diff import Diff
from kapelle.workspaces.discovery import is_git_directory
from kapelle.workspaces.merge import Merge
from kapelle.workspaces.repository import Repository
from kapelle.workspaces.workspaces import Workspaces, working_directory

__all__ = [
    "Diff",
    "Merge",
    "Repository",
    "Workspaces",
    "is_git_directory",
    "working_directory",
]
