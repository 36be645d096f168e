"""Who may touch a worktree when: one operation at a time, and none amid a merge into it.

The locks last as long as any git started under them, even when this process is killed.
"""

import asyncio
import errno
import fcntl
import logging
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

from kapelle.domain.errors import Conflict, KapelleError
from kapelle.workspaces.checkout import Move, Mover, git_in, read_journal
from kapelle.workspaces.git import Git, inherited
from kapelle.workspaces.refs import owner_of, plain_name
from kapelle.workspaces.repository import Checkout, WorkTree, read_work_tree
from kapelle.workspaces.shadow import Shadows
from kapelle.workspaces.worktree import Marker, Markers

_log = logging.getLogger("kapelle.workspaces")

_STRIPES = 256
_PATIENCE_S = 120.0


async def _acquire(descriptor: int, give_up_at: float) -> bool:
    """Lock an open file; False if another process still holds it at the given time."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                return False
        await asyncio.sleep(0.01)


class WorkspaceGuard:
    """What all that is done with worktrees works on, and the order in which it may be done.

    The lock of an owner is always taken before the one for merging, and never two of owners.
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
        """Alone is a process that keeps all others from using the home, as the daemon does.

        To it, a lock held by another process can only mean a git that its killed predecessor
        started, and only for some time after the start; later an agent holds it.
        """
        self._is_alone = is_alone
        self._ignored = set[Path]()
        self._predecessors_end_at = time.monotonic() + _PATIENCE_S
        home = home.absolute()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Resolved, because git writes resolved paths and they are compared.
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
    async def _hold(self, kind: str, name: str) -> AsyncIterator[None]:
        """A lock by name, exclusive between tasks of this process and between processes."""
        # Striped: lock files must never be deleted, so their number has to be bounded.
        stripe = f"{kind}-{zlib.crc32(os.fsencode(name)) % _STRIPES:03}"
        async with self._local.setdefault(stripe, asyncio.Lock()):
            descriptor = await self._open_locked(self._locks / stripe, name)
            if descriptor is None:
                yield
                return
            token = inherited.set((*inherited.get(), descriptor))
            try:
                yield
            finally:
                inherited.reset(token)
                os.close(descriptor)

    async def _open_locked(self, path: Path, name: str) -> int | None:
        """Open the lock file and lock it; Conflict if another process does not give it back.

        Return None where the only process of a home cannot open the file: an agent put something
        else in its place, and the locks in memory suffice.
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
                    raise Conflict(f"Another process is still at work on {name}.")
                if path not in self._ignored:
                    _log.warning("another process holds %s, which is ignored from now on", path)
                self._ignored.add(path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _alone(self, owner: str) -> AbstractAsyncContextManager[None]:
        return self._hold("task", plain_name(owner))

    def _merging(self, common_dir: Path) -> AbstractAsyncContextManager[None]:
        # Inherited by every git of a merge: once it is held, none of them is left.
        return self._hold("merge", str(common_dir))

    @asynccontextmanager
    async def _known(self, owner: str) -> AsyncIterator[Marker]:
        """Alone with what is to be archived; a merge into it that cannot be finished is no bar."""
        async with self._alone(owner):
            marker = self._markers.require(owner)
            await self._try_to_settle(marker)
            yield marker

    @asynccontextmanager
    async def _standing(self, owner: str) -> AsyncIterator[Marker]:
        """Alone with a worktree that is on the disk and not amid a merge."""
        async with self._alone(owner):
            marker = self._markers.require(owner)
            if marker.removed:
                raise Conflict(f"The worktree of {owner} was removed.", hint="Create it again.")
            await self._settle(marker)
            yield marker

    async def _try_to_settle(self, marker: Marker | None) -> None:
        """Settle where a refusal can wait: commits will be refused, and a restore puts it right."""
        if marker is not None:
            with suppress(Conflict):
                await self._settle(marker)

    async def _settle(self, marker: Marker) -> None:
        """Finish a merge into this worktree that a crash cut short: half of it is not work."""
        mover = self._mover(marker)
        move = mover.pending()
        if move is not None and str(marker.toplevel) in move.toplevels:
            async with self._merging(marker.common_dir):
                await mover.recover()

    @asynccontextmanager
    async def _onto(self, branch: str) -> AsyncIterator[Marker | None]:
        """Alone with the worktree that a branch of ours is checked out in, if there is one."""
        owner = owner_of(branch)
        if owner is None:
            yield None
            return
        async with self._alone(owner):
            marker = self._markers.read(owner)
            if marker is None or not marker.present:
                yield None
                return
            marker.ensure_gitdir()
            marker.restore_dot_git()
            if not await marker.stands_on_branch():
                # It would not move along, and undo the merge later.
                text = f"{marker.toplevel} does not stand on its branch {marker.branch}."
                hint = f"{git_in(marker.toplevel)} switch {marker.branch}, then merge again"
                raise Conflict(text, hint=hint)
            yield marker

    def _mover(self, tree: WorkTree) -> Mover:
        return Mover(self._shadows, tree, self._journals)

    async def finish_merges(self) -> list[str]:
        """Complete or undo merges that a crash cut short; returns the owners they were of. One that
        cannot be raises after all were tried."""
        finished = []
        errors = []
        for path in sorted(self._journals.glob("*.json")):
            try:
                move = await self._finish(path)
            except KapelleError as error:
                errors.append(error)
            else:
                finished += [] if move is None else [move.task_id]
        if errors:
            hints = " ".join(error.hint for error in errors if error.hint)
            raise Conflict(" ".join(error.message for error in errors), hint=hints or None)
        return finished

    async def _finish(self, path: Path) -> Move | None:
        found = read_journal(path)
        if found is None:
            return None
        common_dir, _ = found
        async with self._merging(common_dir):
            if not (common_dir / "objects").is_dir():
                text = f"A merge into {common_dir} was cut short, and that is not there now."
                raise Conflict(text)
            place = Checkout(common_dir, common_dir, common_dir)
            mover = self._mover(await read_work_tree(self._git, place))
            move = mover.pending()
            await mover.recover()
        return move
