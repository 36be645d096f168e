"""Git worktrees for tasks and runs: create, commit, compare, merge and remove them."""

from kapelle.workspaces.checkout import format_git_command
from kapelle.workspaces.clone import exclude_paths, list_borrowed_objects
from kapelle.workspaces.commit import Commit
from kapelle.workspaces.copy import remove_tree
from kapelle.workspaces.diff import Diff
from kapelle.workspaces.git import format_relocation_command, is_result_needed
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
    "exclude_paths",
    "format_git_command",
    "format_relocation_command",
    "is_git_directory",
    "is_result_needed",
    "list_borrowed_objects",
    "read_habits_of",
    "remove_tree",
    "repository_of",
    "working_directory",
]
