"""What contexts do with git, wherever they run: merge what was verified, and tell what changed."""

from kapelle.domain.errors import KapelleError, MergeConflict, Unavailable
from kapelle.patterns.results import Merged, TaskResult
from kapelle.workspaces import Workspaces

_SUMMARY = 4_000
_PATCH = 30_000


async def merge_verified(
    workspaces: Workspaces, owner: str, into: str, message: str, commit: str
) -> Merged:
    """Merge a branch if it holds exactly this commit; whatever keeps it from that is told."""
    try:
        merged = await workspaces.merge(owner, into, message, expected=commit)
    except MergeConflict as error:
        return Merged(commit=None, problem=error.message, conflict=True)
    except Unavailable:
        raise
    except KapelleError as error:
        return Merged(commit=None, problem=error.message)
    return Merged(commit=merged.commit)


async def changes_of(workspaces: Workspaces, owner: str, *, patch: bool) -> str:
    """Log and summary of what was changed on an owner's branch, and the beginning of the patch."""
    commits = await workspaces.log(owner)
    diff = await workspaces.diff(owner)
    lines = [f"{commit.id[:10]} {commit.subject}" for commit in commits]
    summary = "\n".join([*lines, "", diff.stat])[-_SUMMARY:].strip()
    text = diff.patch[:_PATCH].decode("utf-8", "replace") if patch else ""
    return f"{summary}\n\n{text}".strip()


async def difference(workspaces: Workspaces, one: TaskResult, other: TaskResult) -> str:
    """A summary of how two tasks' work differs; empty if one of them left none."""
    if not (one.commit and other.commit):
        return ""
    return (await workspaces.compare(one.id, one.commit, other.commit)).stat[-_SUMMARY:]
