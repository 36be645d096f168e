"""Lock worktrees: one operation at a time, and none during a merge into the worktree.

The locks last as long as any git process started under them, even when this process is killed.
"""

import asyncio
import errno
import fcntl
import logging
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from kapelle.domain.errors import Conflict, KapelleError
from kapelle.workspaces.checkout import Move, Mover, format_git_command, read_journal
from kapelle.workspaces.clone import RepositoryState
from kapelle.workspaces.commit import bring_over, has_moved
from kapelle.workspaces.git import Git, inherited_locks
from kapelle.workspaces.linked import adopt_linked
from kapelle.workspaces.refs import ANCHORS, find_owner, require_plain_name
from kapelle.workspaces.repository import Checkout, WorkTree, read_work_tree
from kapelle.workspaces.shadow import Shadows
from kapelle.workspaces.worktree import Marker, Markers

_log = logging.getLogger("kapelle.workspaces")

_STRIPES = 256
_PATIENCE_S = 120.0


async def _acquire(descriptor: int, give_up_at: float) -> bool:
    """Lock an open file; return False if another process still holds it at the given time."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                return False
        await asyncio.sleep(0.01)


class WorkspaceGuard:
    """The shared state of all operations on worktrees, and their locks.

    Lock order: the lock of an owner before the lock for merging, and never two owners at once.
    """

    def __init__(
        self,
        home: Path,
        author_name: str,
        author_email: str,
        *,
        executable: str = "git",
        filters: Callable[[], Sequence[str]] = tuple,
        is_alone: bool = False,
    ) -> None:
        """Set up the directories; `is_alone` means that no other process uses the home.

        The daemon is alone. For it, a lock held by another process can only be held by a git that
        its killed predecessor started, and only for some time after the start; later, an agent
        holds it.
        """
        self._is_alone = is_alone
        self._ignored = set[Path]()
        self._predecessors_end_at = time.monotonic() + _PATIENCE_S
        home = home.absolute()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Resolved, because git writes resolved paths, which are compared with these.
        home = home.resolve()
        empty_home = home / "git" / "empty"
        empty_home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._git = Git(executable, empty_home, author_name, author_email, filters)
        self._shadows = Shadows(self._git, home)
        self._markers = Markers(home / "worktrees", self._shadows)
        self._journals = home / "merges"
        self._locks = home / "locks"
        self._local: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def _hold_lock(self, kind: str, name: str) -> AsyncIterator[None]:
        """Hold a named lock that excludes other tasks of this process and other processes."""
        # Lock files must never be deleted, so names share a fixed number of them.
        stripe = f"{kind}-{zlib.crc32(os.fsencode(name)) % _STRIPES:03}"
        async with self._local.setdefault(stripe, asyncio.Lock()):
            descriptor = await self._open_locked(self._locks / stripe, name)
            if descriptor is None:
                yield
                return
            token = inherited_locks.set((*inherited_locks.get(), descriptor))
            try:
                yield
            finally:
                inherited_locks.reset(token)
                os.close(descriptor)

    async def _open_locked(self, path: Path, name: str) -> int | None:
        """Open and lock the lock file; raises Conflict if another process does not release it.

        Returns None if the only process of a home cannot open the file, because an agent replaced
        it: then the locks in memory suffice.
        """
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            is_passing = error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}
            if not self._is_alone or is_passing:
                raise
            if path not in self._ignored:
                _log.warning("%s cannot be locked: %s; it is ignored from now on", path, error)
            self._ignored.add(path)
            return None
        give_up_at = time.monotonic() + _PATIENCE_S
        if self._is_alone:
            give_up_at = self._predecessors_end_at
        try:
            if not await _acquire(descriptor, give_up_at):
                if not self._is_alone:
                    raise Conflict(f"Another process is still working on {name}.")
                if path not in self._ignored:
                    _log.warning(
                        "another process holds the lock %s; it is ignored from now on", path
                    )
                self._ignored.add(path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _lock_owner(self, owner: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of an owner."""
        return self._hold_lock("task", require_plain_name(owner))

    def _lock_merging(self, common_dir: Path) -> AbstractAsyncContextManager[None]:
        """Hold the lock for merging in a repository."""
        # Every git of a merge inherits the lock, so whoever gets it knows that none is left.
        return self._hold_lock("merge", str(common_dir))

    @asynccontextmanager
    async def _lock_marker(self, owner: str) -> AsyncIterator[Marker]:
        """Hold an owner's lock to archive its worktree, even if a merge cannot be finished."""
        async with self._lock_owner(owner):
            marker = await self._require(owner)
            await self._try_to_settle(marker)
            yield marker

    @asynccontextmanager
    async def _lock_worktree(self, owner: str) -> AsyncIterator[Marker]:
        """Hold an owner's lock while its worktree exists and no merge into it is unfinished."""
        async with self._lock_owner(owner):
            marker = await self._require(owner)
            if marker.removed:
                raise Conflict(f"The worktree of {owner} was removed.", hint="Create it again.")
            await self._settle(marker)
            await bring_over(marker)
            yield marker

    async def _require(self, owner: str) -> Marker:
        """Return the marker of an owner, whose lock is held; raises WorkspaceError without one."""
        self._markers.require(owner)
        marker = await self._adopt(self._markers.read(owner))
        assert marker is not None
        return marker

    async def _adopt(self, marker: Marker | None) -> Marker | None:
        """Give the linked worktree of an earlier version a repository of its own."""
        if marker is None or marker.is_workspace or marker.removed:
            return marker
        new = await adopt_linked(marker)
        await new.refs.anchor(ANCHORS + new.task_id, new.base_commit)
        self._markers.write(new)
        return new

    async def _refresh_branch(self, branch: str | None) -> None:
        """Bring over what was committed in the workspace of a branch, if it has one."""
        owner = find_owner(branch or "")
        if owner is not None:
            await self._refresh(owner)

    async def _refresh(self, owner: str) -> None:
        """Bring over what the agent or a person committed in a workspace."""
        marker = self._markers.read(owner)
        if marker is None or not marker.is_present or not has_moved(marker):
            return
        async with self._lock_owner(owner):
            marker = self._markers.read(owner)
            if marker is not None and marker.is_present:
                await bring_over(marker)

    async def _try_to_settle(self, marker: Marker | None) -> bool:
        """Finish an interrupted merge; return False if that is not possible.

        Later commits are refused, and a restore repairs the worktree.
        """
        if marker is None:
            return True
        try:
            await self._settle(marker)
        except Conflict:
            return False
        return True

    async def _settle(self, marker: Marker) -> None:
        """Finish a merge into this worktree that a crash interrupted.

        Without this, half of the merge would pass for work of the agent.
        """
        mover = self._make_mover(marker)
        move = mover.read_pending()
        if move is not None and str(marker.toplevel) in move.toplevels:
            async with self._lock_merging(marker.common_dir):
                await mover.recover()

    @asynccontextmanager
    async def _lock_branch_worktree(self, branch: str) -> AsyncIterator[Marker | None]:
        """Hold the lock of the worktree in which a branch of Kapelle is checked out.

        Yields None if there is no such worktree.
        """
        owner = find_owner(branch)
        if owner is None:
            yield None
            return
        async with self._lock_owner(owner):
            marker = self._markers.read(owner)
            if marker is None or not marker.is_present:
                yield None
                return
            marker = await self._require(owner)
            if await marker.repair() is RepositoryState.FOREIGN:
                raise marker.make_foreign_error()
            await bring_over(marker)
            if not await marker.stands_on_branch():
                # The worktree would not move along with the branch, and its next commit would undo
                # the merge.
                text = f"{marker.toplevel} is not on its branch {marker.branch}."
                git = format_git_command(marker.toplevel)
                hint = f"{git} switch {marker.branch}, then merge again"
                raise Conflict(text, hint=hint)
            yield marker

    def _make_mover(self, tree: WorkTree) -> Mover:
        return Mover(self._shadows, tree, self._journals)

    async def finish_merges(self) -> list[str]:
        """Complete or undo merges that a crash interrupted; return their owners.

        Tries all of them; then raises Conflict if some cannot be completed.
        """
        owners = []
        errors = []
        for path in sorted(self._journals.glob("*.json")):
            try:
                move = await self._finish_merge(path)
            except KapelleError as error:
                errors.append(error)
            else:
                owners += [] if move is None else [move.task_id]
        if errors:
            hints = " ".join(error.hint for error in errors if error.hint)
            raise Conflict(" ".join(error.message for error in errors), hint=hints or None)
        return owners

    async def _finish_merge(self, path: Path) -> Move | None:
        entry = read_journal(path)
        if entry is None:
            return None
        common_dir, _ = entry
        async with self._lock_merging(common_dir):
            if not (common_dir / "objects").is_dir():
                # The journal stays, in case the repository comes back.
                text = f"A merge into {common_dir} was interrupted, and the repository is gone."
                raise Conflict(text)
            place = Checkout(common_dir, common_dir, common_dir)
            mover = self._make_mover(await read_work_tree(self._git, place))
            move = mover.read_pending()
            await mover.recover()
        return move
