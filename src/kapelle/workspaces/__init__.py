"""Git worktrees for tasks and runs: made, committed, compared, merged, removed, never lost."""

from kapelle.workspaces.checkout import git_in
from kapelle.workspaces.commit import Commit
from kapelle.workspaces.diff import Diff
from kapelle.workspaces.git import relocation_command, wanted
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
    "read_habits_of",
    "relocation_command",
    "repository_of",
    "wanted",
    "working_directory",
]
