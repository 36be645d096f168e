"""The two-way link between a worktree and its git directory, which an agent may have broken."""

import os
import shutil
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.workspaces.discovery import linked_gitdir, read_pointer
from kapelle.workspaces.identity import is_real_directory
from kapelle.workspaces.marker import Marker

_STATES = (
    *("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_AUTOSTASH", "SQUASH_MSG"),
    *("CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "sequencer"),
)
_AUTOSTASHES = ("MERGE_AUTOSTASH", "rebase-merge/autostash", "rebase-apply/autostash")
OPERATIONS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")


def make_ready(marker: Marker) -> None:
    """Make a worktree fit for git, whatever its agent left; raises when it is not ours any more."""
    marker.require_present()
    ensure_gitdir(marker)
    restore_dot_git(marker)
    clear_stale_locks(marker)


def ensure_gitdir(marker: Marker) -> None:
    """Put back what an agent removed from the worktree's own git directory."""
    if not marker.has_repository:
        raise WorkspaceError(
            f"The repository {marker.common_dir} is gone; {marker.path} is left as it is.",
            hint=f"Put the repository back, or save what you need of {marker.path} and delete it.",
        )
    gitdir = Path(marker.gitdir)
    if gitdir.resolve() != Path(marker.common_dir).resolve() / "worktrees" / gitdir.name:
        raise WorkspaceError(
            f"{gitdir} was replaced by a link that leads elsewhere.",
            hint=f"Remove {gitdir}, then try again.",
        )
    gitdir.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(gitdir / "HEAD"):
        (gitdir / "HEAD").write_text(f"ref: {marker.ref}\n", "utf-8")
    _put(gitdir / "commondir", "../..\n")
    _put(gitdir / "gitdir", f"{Path(marker.path) / '.git'}\n")


def dot_git_is_intact(marker: Marker) -> bool:
    dot_git = Path(marker.path) / ".git"
    # A link or a directory may lead to the right place today and elsewhere tomorrow.
    is_file = dot_git.is_file() and not dot_git.is_symlink()
    return is_file and linked_gitdir(dot_git) == Path(marker.gitdir).resolve()


def restore_dot_git(marker: Marker) -> None:
    """Put the .git file back; a directory in its place is the agent's own and is not touched."""
    if dot_git_is_intact(marker):
        return
    dot_git = Path(marker.path) / ".git"
    if dot_git.is_dir() and not dot_git.is_symlink():
        raise WorkspaceError(
            f"{dot_git} was replaced by another repository.",
            hint=f"Move {dot_git} away, then try again.",
        )
    _put(dot_git, f"gitdir: {marker.gitdir}\n")


def clear_stale_locks(marker: Marker) -> None:
    """Remove locks of a killed git; only those that nobody but this task's agent could hold."""
    for name in ("index.lock", "HEAD.lock"):
        (Path(marker.gitdir) / name).unlink(missing_ok=True)
    Path(marker.common_dir, f"{marker.ref}.lock").unlink(missing_ok=True)


def is_amid_operation(marker: Marker) -> bool:
    """Whether the agent left a merge, pick or rebase unfinished."""
    return any(os.path.lexists(Path(marker.gitdir) / name) for name in _STATES)


def set_aside(marker: Marker) -> list[str]:
    """What only such an operation remembers: commits of changes that git put aside for it."""
    lines = [read_pointer(Path(marker.gitdir) / name) for name in _AUTOSTASHES]
    return [line for line in lines if line and line.isalnum()]


def clear_operations(marker: Marker) -> None:
    """Forget such an operation; what it set aside has to be archived before."""
    gitdir = Path(marker.gitdir)
    for name in _STATES:
        if is_real_directory(gitdir / name):
            shutil.rmtree(gitdir / name)
        else:
            (gitdir / name).unlink(missing_ok=True)


def _put(path: Path, text: str) -> None:
    if not path.is_symlink() and read_pointer(path) == text.rstrip("\n"):
        return
    fresh = path.with_name(f"{path.name}.kapelle")
    fresh.unlink(missing_ok=True)
    with fresh.open("xb") as stream:  # never through a link that is planted under this name
        stream.write(os.fsencode(text))
    fresh.replace(path)
