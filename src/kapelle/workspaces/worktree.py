"""A worktree on the disk: the marker that says that it is complete, and its link to the repository.

An agent may break the link or replace the whole directory, so each is checked before it is used.
"""

import json
import os
import shutil
import stat
from dataclasses import dataclass, field, fields
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.task import Workspace
from kapelle.workspaces.git import Git, Place
from kapelle.workspaces.refs import BRANCHES, plain_name
from kapelle.workspaces.repository import Checkout, linked_gitdir, read_pointer
from kapelle.workspaces.shadow import Lender, Shadows
from kapelle.workspaces.staging import WorkTree

_STATES = (
    *("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_AUTOSTASH", "SQUASH_MSG"),
    *("CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "sequencer"),
)
_AUTOSTASHES = ("MERGE_AUTOSTASH", "rebase-merge/autostash", "rebase-apply/autostash")
OPERATIONS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")


def inode_of(path: Path) -> int:
    return os.lstat(path).st_ino


def is_same_directory(path: Path, inode: int) -> bool:
    """Whether a real directory of this inode is at the path."""
    try:
        return _matches(os.lstat(path), path, inode)
    except OSError:
        return False


def is_real_directory(path: Path) -> bool:
    """Whether a directory, and not a link to one, is at the path."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _matches(status: os.stat_result, path: Path, inode: int) -> bool:
    # The device of the parent, not a remembered one: its number may change with each boot.
    device = os.stat(path.parent).st_dev
    return stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) == (device, inode)


def delete_directory(path: Path, inode: int) -> None:
    """Delete the directory by its descriptor, so that nothing put in its place is ever entered."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if not _matches(os.fstat(descriptor), path, inode):
                raise WorkspaceError(f"{path} was replaced while it was being removed.")
            for name in os.listdir(descriptor):
                _delete_entry(name, descriptor)
        finally:
            os.close(descriptor)
        path.rmdir()
    except OSError as error:
        raise WorkspaceError(
            f"{path} could not be removed: {error.strerror} ({error.filename}).",
            hint="Its content is archived; see what is in the way, then try again.",
        ) from error


def _delete_entry(name: str, parent: int) -> None:
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)


@dataclass(frozen=True)
class Marker:
    """What the marker file says about a worktree, with the tools to work on it."""

    task_id: str
    path: str
    toplevel: str
    common_dir: str
    gitdir: str
    object_format: str
    branch: str
    base: str
    base_commit: str
    excluded: tuple[str, ...]
    settings: tuple[str, ...]
    ignore: str
    removed: bool = False
    inode: int | None = None
    shadows: Shadows = field(kw_only=True, compare=False, repr=False)

    @property
    def git(self) -> Git:
        return self.shadows.git

    @property
    def refs(self) -> Place:
        """For the references of its repository."""
        return self.git.at(Path(self.common_dir))

    @property
    def own(self) -> Place:
        """For its own HEAD."""
        return self.git.at(Path(self.common_dir), Path(self.gitdir))

    @property
    def checkout(self) -> Checkout:
        return Checkout(Path(self.path), Path(self.gitdir), Path(self.common_dir))

    async def reading(self) -> Place:
        """For looking at commits and trees of its repository, and writing new ones there."""
        return await self.shadows.reading(self.lender)

    @property
    def ref(self) -> str:
        return BRANCHES + self.branch

    @property
    def lender(self) -> Lender:
        return Lender(Path(self.common_dir), self.object_format)

    @property
    def present(self) -> bool:
        """Whether the worktree is on the disk and still the directory that Kapelle made."""
        if self.removed:
            return False
        if self.inode is None:
            # Written by an older Kapelle: the link into the repository has to do.
            pointer = linked_gitdir(Path(self.path) / ".git")
            return is_real_directory(Path(self.path)) and pointer == Path(self.gitdir).resolve()
        return is_same_directory(Path(self.path), self.inode)

    def require_present(self) -> None:
        """Raise unless the files at the path are those of the worktree."""
        if self.present:
            return
        first = f"Move {self.path} away. " if os.path.lexists(self.path) else ""
        raise WorkspaceError(
            f"The workspace {self.path} is not the directory that Kapelle made: "
            "it was removed or replaced.",
            hint=f"{first}What was committed is on {self.branch}; "
            "the task's next run makes the workspace anew.",
        )

    @property
    def has_repository(self) -> bool:
        return self.lender.objects.is_dir()

    @property
    def work_tree(self) -> WorkTree:
        return WorkTree(
            directory=Path(self.path),
            index=Path(self.gitdir) / "index",
            lender=self.lender,
            settings=self.settings,
            ignore=self.ignore,
            excluded=self.excluded,
        )

    def as_workspace(self, commit: str | None = None) -> Workspace:
        return Workspace(
            kind=WorkspaceKind.WORKTREE,
            path=self.path,
            branch=self.branch,
            base=self.base,
            base_commit=self.base_commit,
            commit=commit,
        )


_STORED = tuple(item.name for item in fields(Marker) if item.name != "shadows")


class Markers:
    """Markers and intents, side by side with the worktrees they belong to."""

    def __init__(self, directory: Path, shadows: Shadows) -> None:
        self.directory = directory
        self.shadows = shadows

    def worktree(self, task_id: str) -> Path:
        return self.directory / plain_name(task_id)

    def _marker(self, task_id: str) -> Path:
        return self.directory / f"{plain_name(task_id)}.json"

    def _intent(self, task_id: str) -> Path:
        return self.directory / f"{plain_name(task_id)}.making"

    def read(self, task_id: str) -> Marker | None:
        try:
            text = self._marker(task_id).read_text("utf-8")
        except FileNotFoundError:
            return None
        try:
            values = json.loads(text)
            values = {key: value for key, value in values.items() if key in _STORED}
            for name in ("excluded", "settings"):
                values[name] = tuple(values[name])
            # Derived, because the files at this path are cleaned and deleted.
            values["path"] = str(self.worktree(task_id))
            return Marker(**values, shadows=self.shadows)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WorkspaceError(f"{self._marker(task_id)} is damaged: {error}.") from error

    def require(self, task_id: str) -> Marker:
        marker = self.read(task_id)
        if marker is None:
            raise WorkspaceError(f"{task_id} has no worktree.", hint="Create it first.")
        return marker

    def write(self, marker: Marker) -> None:
        write_durably(
            self._marker(marker.task_id),
            json.dumps({name: getattr(marker, name) for name in _STORED}, indent=1),
        )

    def forget(self, task_id: str) -> None:
        self._marker(task_id).unlink(missing_ok=True)
        self._intent(task_id).unlink(missing_ok=True)

    def intend(self, task_id: str, common_dir: Path) -> None:
        write_durably(self._intent(task_id), str(common_dir))

    def intended(self, task_id: str) -> Path | None:
        """The repository in which a worktree was begun and perhaps not finished."""
        try:
            return Path(os.fsdecode(self._intent(task_id).read_bytes()))
        except FileNotFoundError:
            return None

    def fulfilled(self, task_id: str) -> None:
        self._intent(task_id).unlink(missing_ok=True)

    def traces(self) -> set[str]:
        """Every task of which anything is here, were it only the marker of what was removed."""
        return self._stems("", ".json", ".making")

    def standing(self) -> set[str]:
        """Every task whose worktree is on the disk, ready or half-made."""
        return self._stems("", ".making")

    def _stems(self, *suffixes: str) -> set[str]:
        # By names alone: there may be thousands of markers, and some of them damaged.
        try:
            names = [Path(name) for name in os.listdir(self.directory)]
        except FileNotFoundError:
            return set()
        return {
            name.stem for name in names if name.suffix in suffixes and not name.name.startswith(".")
        }


def write_durably(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one, whole."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as stream:
        stream.write(os.fsencode(text))
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    _put_pointer(gitdir / "commondir", "../..\n")
    _put_pointer(gitdir / "gitdir", f"{Path(marker.path) / '.git'}\n")


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
    _put_pointer(dot_git, f"gitdir: {marker.gitdir}\n")


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


def _put_pointer(path: Path, text: str) -> None:
    if not path.is_symlink() and read_pointer(path) == text.rstrip("\n"):
        return
    fresh = path.with_name(f"{path.name}.kapelle")
    fresh.unlink(missing_ok=True)
    with fresh.open("xb") as stream:  # never through a link that is planted under this name
        stream.write(os.fsencode(text))
    fresh.replace(path)
