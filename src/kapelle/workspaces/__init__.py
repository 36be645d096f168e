"""Git worktrees for tasks and runs: create, commit, compare, merge and remove them."""

from kapelle.workspaces.checkout import git_in
from kapelle.workspaces.commit import Commit
from kapelle.workspaces.diff import Diff
from kapelle.workspaces.git import is_result_needed, relocation_command
from kapelle.workspaces.leftovers import FileSystemMoment
from kapelle.workspaces.merge import Merge, MergeCandidate
from kapelle.workspaces.repository import checkouts_around, is_git_directory, repository_of
from kapelle.workspaces.signature import read_habits_of
from kapelle.workspaces.undo import PastMerge
from kapelle.workspaces.workspaces import Repository, Workspaces, working_directory

__all__ = [
    "Commit",
    "Diff",
    "FileSystemMoment",
    "Merge",
    "MergeCandidate",
    "PastMerge",
    "Repository",
    "Workspaces",
    "checkouts_around",
    "git_in",
    "is_git_directory",
    "is_result_needed",
    "read_habits_of",
    "relocation_command",
    "repository_of",
    "working_directory",
]
