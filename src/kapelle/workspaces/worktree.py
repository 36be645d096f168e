"""A workspace on the disk: its marker, and the repository inside.

The marker says that the workspace is complete. An agent may break the repository or replace the
whole directory, so each is checked before it is used.
"""

import asyncio
import json
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

from kapelle.domain.errors import GitError, WorkspaceError
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.task import Workspace
from kapelle.home import NoRegularFile, read_own
from kapelle.runner.shim import files
from kapelle.workspaces.clone import (
    RepositoryState,
    RepositoryTemplate,
    clear_locks,
    examine_repository,
    has_configuration,
    read_template,
    repair_repository,
    restore_settings,
    write_branch,
    write_configuration,
    write_repository,
)
from kapelle.workspaces.git import Git, Memory, format_relocation_command
from kapelle.workspaces.index import Staging, install_index, make_files_location
from kapelle.workspaces.intake import publish, receive
from kapelle.workspaces.refs import BRANCHES, Refs, WorkspaceRefs, require_plain_name
from kapelle.workspaces.repository import WorkTree, read_configuration, read_pointer
from kapelle.workspaces.shadow import Objects, Shadows, fresh_path

STATES = (
    *("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_AUTOSTASH", "SQUASH_MSG"),
    *("CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "sequencer"),
)
_AUTOSTASHES = ("MERGE_AUTOSTASH", "rebase-merge/autostash", "rebase-apply/autostash")
OPERATIONS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")


def is_real_directory(path: Path) -> bool:
    """Tell whether the path is a directory and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_same_directory(status: os.stat_result, path: Path, inode: int) -> bool:
    # Compare with the device of the parent: device numbers may change with each boot.
    device = os.stat(path.parent).st_dev
    return stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) == (device, inode)


def delete_directory(path: Path, inode: int) -> None:
    """Delete the directory by its descriptor, never a directory put in its place."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if not _is_same_directory(os.fstat(descriptor), path, inode):
                raise WorkspaceError(f"{path} was replaced while it was being removed.")
            for name in os.listdir(descriptor):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                delete = shutil.rmtree if stat.S_ISDIR(status.st_mode) else os.unlink
                delete(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        path.rmdir()
    except OSError as error:
        text = f"{path} could not be removed: {error.strerror} ({error.filename})."
        hint = "Its content is archived. Remove the obstacle, then try again."
        raise WorkspaceError(text, hint=hint) from error


@dataclass(frozen=True, kw_only=True)
class Marker(WorkTree):
    """A workspace of Kapelle: the content of its marker file, with the tools to work on it.

    The source is the user's work tree that it was made from; the common directory is that of the
    user's repository, where the branch appears once there is a commit.
    """

    task_id: str
    source: Path
    branch: str
    base: str
    base_commit: str
    removed: bool = False
    # The commit of the branch, if the branch was deleted because its base contains the commit.
    left: str | None = None
    # True if the removed worktree had no branch, because nothing was committed.
    is_empty: bool = False
    inode: int = 0
    shadows: Shadows = field(compare=False, repr=False)

    @property
    def git(self) -> Git:
        return self.shadows.git

    @property
    def ref(self) -> str:
        return BRANCHES + self.branch

    @property
    def refs(self) -> Refs:
        """Return the references of the repository."""
        return Refs.of(self.git, self.common_dir)

    @property
    def own(self) -> Refs:
        """Return the references with the worktree's own HEAD."""
        return Refs.at(self.git, self)

    @property
    def objects(self) -> Objects:
        return self.shadows.objects(self)

    async def receive(self) -> Objects:
        """Return objects in which everything of the workspace's repository can be read.

        New ones are written there, too. Nothing but `publish` brings them to the user.
        """
        if not self.is_intact:
            return self.objects
        intake = await receive(self.shadows, self)
        if intake is None:
            return self.objects
        return self.shadows.objects_in(intake, self)

    @contextmanager
    def staging(self, objects: Objects) -> Iterator[Staging]:
        """Give the tool that stages the files of the worktree, with objects from `receive`."""
        with self.shadows.scratch() as scratch:
            yield Staging(objects, self.without_foreign(scratch), scratch)

    def without_foreign(self, scratch: Path) -> "Marker":
        """Return the marker; without an index if the repository is not Kapelle's."""
        if self.is_workspace and not self.is_intact:
            return replace(self, gitdir=scratch / "none")
        return self

    async def tip(self) -> str | None:
        """Return the commit that the branch holds; None without a branch."""
        return await self.refs.read(self.ref)

    async def heads(self) -> "Heads":
        """Return the tip of the branch and the commit that new work builds on.

        That commit is in the user's repository afterwards.
        """
        tip, head = await asyncio.gather(self.tip(), self.own.head_commit())
        if head is not None and self.is_workspace and not await self._has_commit(head, tip):
            head = None
        return Heads(tip, head or tip or self.base_commit)

    async def _has_commit(self, head: str, tip: str | None) -> bool:
        """Bring the commit of HEAD into the user's repository; return whether it is there."""
        if not self.is_intact:
            return False
        return head in {tip, self.base_commit} or await self.publish(head, tip)

    async def publish(self, commit: str, tip: str | None) -> bool:
        """Bring a commit of the workspace's repository into the user's; False if incomplete."""
        bases = [self.base_commit]
        if tip is not None:
            bases.append(tip)
        return await publish(self.shadows, self, commit, *bases)

    async def make_commit(
        self,
        objects: Objects,
        stage: Callable[[bool], Awaitable[str]],
        parents: list[str],
        message: str,
    ) -> str:
        """Commit the tree that `stage` returns in the user's repository, unless its parent has it.

        `stage` is told whether to use the index, which may name objects that are gone.
        """
        for use_index in (True, False):
            tree = await stage(use_index)
            commit = await objects.commit_unless_held(tree, parents, message)
            is_there = objects == self.objects or commit in parents
            if is_there or await self.publish(commit, None):
                return commit
        raise GitError(f"{commit} of {self.toplevel} could not be read completely.")

    def own_branch(self) -> str | None:
        """Return the commit of the branch in the workspace's own repository."""
        own = self.own
        if isinstance(own, WorkspaceRefs):
            return own.read_own(self.ref)
        return None

    async def move_branch(self, new: str, old: str | None, reason: str) -> None:
        """Move the branch in the user's repository; raises RefMoved."""
        try:
            await self.refs.move(self.ref, new, old, reason)
        except GitError:
            if await self.refs.has_branch_in_the_way():
                raise self.make_name_error() from None
            raise

    def make_name_error(self) -> WorkspaceError:
        """Return the error for a branch that leaves no room for those of Kapelle."""
        text = f"{self.source} has a branch named kapelle, so git allows none like {self.branch}."
        hint = "Rename it: git branch -m kapelle kapelle-old"
        return WorkspaceError(text, hint=hint)

    async def stands_on_branch(self) -> bool:
        return await self.own.head_branch() == self.branch

    def as_workspace(self, commit: str | None = None) -> Workspace:
        return Workspace(
            kind=WorkspaceKind.WORKTREE,
            path=str(self.toplevel),
            branch=self.branch,
            base=self.base,
            base_commit=self.base_commit,
            commit=commit,
        )

    @property
    def is_present(self) -> bool:
        """Tell whether the worktree is still the directory that Kapelle made."""
        try:
            if self.removed:
                status = None
            else:
                status = os.lstat(self.toplevel)
            return status is not None and _is_same_directory(status, self.toplevel, self.inode)
        except OSError:
            return False

    def require_present(self) -> None:
        """Raise WorkspaceError unless the directory at the path is the worktree."""
        if self.is_present:
            return
        if os.path.lexists(self.toplevel):
            hint = f"Move {self.toplevel} away. "
        else:
            hint = ""
        hint += f"What was committed is on {self.branch}; "
        hint += "the task's next run makes the workspace anew."
        text = f"The workspace {self.toplevel} is not the directory that Kapelle made"
        raise WorkspaceError(f"{text}: it was removed or replaced.", hint=hint)

    @property
    def is_intact(self) -> bool:
        """Tell whether the repository inside the workspace is the one that Kapelle made."""
        return self.is_workspace and self._examine() is RepositoryState.OURS

    def _examine(self) -> RepositoryState:
        return examine_repository(self, self.task_id)

    async def make_ready(self) -> None:
        """Repair the workspace for git, whatever its agent left; raises if it was replaced."""
        self.require_present()
        if await self.repair() is RepositoryState.FOREIGN:
            raise self.make_foreign_error()
        self.clear_stale_locks()

    def make_foreign_error(self) -> WorkspaceError:
        """Return the error for a repository that an agent made in the place of Kapelle's."""
        text = f"{self.gitdir} was replaced by another repository."
        return WorkspaceError(text, hint=f"Move {self.gitdir} away, then try again.")

    async def repair(self) -> RepositoryState:
        """Restore what an agent removed from the workspace's repository; return what was there.

        A repository of the agent in its place is not touched.
        """
        self.require_origin()
        state = self._examine()
        if state is RepositoryState.MISSING:
            await self._make_repository()
        elif state is RepositoryState.OURS:
            await asyncio.to_thread(repair_repository, self, self.ref)
            if not has_configuration(self):
                template = await read_template(self.git, self.common_dir)
                await asyncio.to_thread(write_configuration, self, template)
        return state

    async def restore_settings(self) -> None:
        """Undo what an agent changed in configuration, attributes and hooks."""
        if self.is_intact:
            settings = await read_configuration(self.git, self.common_dir)
            template = RepositoryTemplate(self.common_dir, b"", settings)
            await asyncio.to_thread(restore_settings, self, template)

    async def _make_repository(self) -> None:
        """Make the repository of the workspace anew, as a whole."""
        commit = await self.tip() or self.left or self.base_commit
        template = await read_template(self.git, self.common_dir)
        fresh = fresh_path(self.toplevel)
        await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)
        write = partial(write_repository, fresh, template, owner=self.task_id, branch=self.ref)
        await asyncio.to_thread(write, commit=commit, workspace=self.toplevel)
        place = make_files_location(self.objects, self, fresh / "index")
        await place.run("read-tree", commit)
        self.require_present()
        if os.path.lexists(self.gitdir):
            self.gitdir.unlink()
        fresh.rename(self.gitdir)

    def require_origin(self) -> None:
        """Raise WorkspaceError if the user's repository is gone."""
        if self.object_dir.is_dir():
            return
        text = f"The repository {self.common_dir} is gone; {self.toplevel} is left as it is."
        if self.common_dir.name == ".git":
            top = self.common_dir.parent
        else:
            top = self.common_dir
        hint = (
            f"If it was moved, type at its new place: {format_relocation_command(top)}\n"
            f"Otherwise save what you need of {self.toplevel} and delete it."
        )
        raise WorkspaceError(text, hint=hint)

    def clear_stale_locks(self) -> None:
        """Remove the locks of a killed git."""
        if self.is_intact:
            clear_locks(self, self.ref)
        (self.common_dir / f"{self.ref}.lock").unlink(missing_ok=True)

    async def set_branch(self, commit: str, index: Path | None = None) -> None:
        """Set the branch of the workspace's repository; with an index, check it out there."""
        if not self.is_intact:
            return
        if index is not None:
            install_index(index, self.index)
        write_branch(self.gitdir, self.task_id, self.ref, commit)
        if index is not None and not await self.stands_on_branch():
            await self.own.point_head(self.ref)

    def is_amid_operation(self) -> bool:
        """Tell whether the agent left a merge, pick or rebase unfinished."""
        return any(os.path.lexists(self.gitdir / name) for name in STATES)

    def list_autostashes(self) -> list[str]:
        """Return commits of changes that git stashed for such an operation."""
        commits: list[str] = []
        for name in _AUTOSTASHES:
            line = read_pointer(self.gitdir / name)
            if line and line.isalnum():
                commits.append(line)
        return commits

    def clear_operations(self) -> None:
        """Delete the state of such an operation; archive what it stashed before."""
        for name in STATES:
            if is_real_directory(self.gitdir / name):
                shutil.rmtree(self.gitdir / name)
            else:
                (self.gitdir / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Heads:
    """The tip of the task's branch, and the commit that new work builds on."""

    tip: str | None
    parent: str


# The fields in a marker file.
_STORED = [item.name for item in fields(Marker) if item.name != "shadows"]
_MOST_RECALLED = 100


class Markers:
    """The marker and intent files beside the worktrees."""

    def __init__(self, directory: Path, shadows: Shadows) -> None:
        self.directory = directory
        self.shadows = shadows
        # Removed worktrees without a marker file, the most recently used ones.
        self._recalled = Memory[str, Marker](_MOST_RECALLED)

    def worktree(self, task_id: str) -> Path:
        return self.directory / require_plain_name(task_id)

    def _marker(self, task_id: str) -> Path:
        return self.directory / f"{require_plain_name(task_id)}.json"

    def _intent(self, task_id: str) -> Path:
        return self.directory / f"{require_plain_name(task_id)}.making"

    def read(self, task_id: str) -> Marker | None:
        """Return the marker of a task, None if it has none.

        Raises WorkspaceError if the marker file is damaged.
        """
        try:
            text = read_own(self._marker(task_id))
        except FileNotFoundError:
            return self._recalled.get(task_id)
        except NoRegularFile as error:
            raise WorkspaceError(f"{self._marker(task_id)} is damaged: {error}.") from error
        try:
            record = json.loads(text)
            values = {name: record[name] for name in _STORED if name in record}
            for name in ("excluded", "settings"):
                values[name] = tuple(values[name])
            for name in ("source", "common_dir", "gitdir"):
                values[name] = Path(values[name])
            # Derived, not stored, because the files at this path are deleted.
            values["toplevel"] = self.worktree(task_id)
            return Marker(**values, shadows=self.shadows)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WorkspaceError(f"{self._marker(task_id)} is damaged: {error}.") from error

    def require(self, task_id: str) -> Marker:
        """Return the marker of a task; raises WorkspaceError if it has none."""
        marker = self.read(task_id)
        if marker is None:
            raise WorkspaceError(f"{task_id} has no worktree.", hint="Create it first.")
        return marker

    def write(self, marker: Marker) -> None:
        """Write a marker durably."""
        self._recalled.pop(marker.task_id, None)
        values = {name: getattr(marker, name) for name in _STORED}
        write_durably(self._marker(marker.task_id), json.dumps(values, indent=1, default=str))

    def recall(self, marker: Marker) -> None:
        """Remember a removed worktree without a marker file, for some time."""
        self._recalled[marker.task_id] = marker

    def forget_recalled(self) -> None:
        """Forget all removed worktrees without a marker file."""
        self._recalled.clear()

    def forget(self, task_id: str) -> None:
        """Delete everything about a task."""
        self._recalled.pop(task_id, None)
        self._marker(task_id).unlink(missing_ok=True)
        self._intent(task_id).unlink(missing_ok=True)

    def write_intent(self, task_id: str, common_dir: Path) -> None:
        """Record durably that a worktree is about to be created in a repository."""
        write_durably(self._intent(task_id), str(common_dir))

    def read_intent(self, task_id: str) -> Path | None:
        """Return the repository in which a worktree was begun and perhaps not finished."""
        try:
            return Path(os.fsdecode(read_own(self._intent(task_id))))
        except (FileNotFoundError, NoRegularFile):
            return None

    def remove_intent(self, task_id: str) -> None:
        """Delete the intent, because the worktree is complete or gone."""
        self._intent(task_id).unlink(missing_ok=True)
        # A process that was killed while it wrote a file here left a temporary one.
        for left in self.directory.glob(f"{require_plain_name(task_id)}.*.tmp"):
            left.unlink(missing_ok=True)

    def traces(self) -> set[str]:
        """Return every task with any file here, even only the marker of a removed worktree."""
        # By file names only: there may be thousands of markers, and some may be damaged.
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return set()
        owners: set[str] = set()
        for name in names:
            stem, suffix = os.path.splitext(name)
            if not name.startswith(".") and suffix in {"", ".json", ".making"}:
                owners.add(stem)
        return owners


def write_durably(path: Path, text: str) -> None:
    """Write a file so that a crash leaves either the old or the new one, complete."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.replace(str(path), os.fsencode(text), durable=True)
