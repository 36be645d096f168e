"""Worktrees for Python programs, without a daemon and without async."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from kapelle.domain.errors import Conflict, InvalidInput, KapelleError
from kapelle.domain.ids import new_id
from kapelle.domain.task import Workspace
from kapelle.home import Home
from kapelle.workspaces.commit import Commit
from kapelle.workspaces.workspaces import Workspaces

T = TypeVar("T")
Cleanup = Literal["auto", "always", "never"]
_log = logging.getLogger("kapelle.worktree")
AUTHOR = ("Kapelle", "kapelle@localhost")


class _Loop:
    """Runs coroutines one by one for whoever calls, from any thread, inside a loop or not."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kapelle-worktree")
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result; interrupted, it cancels the work and waits for its end."""
        if self._is_closed:
            work.close()
            raise Conflict("The worktree was left already.", hint="Use it inside the with block.")
        future = self._thread.submit(self._runner.run, work)
        try:
            return future.result()
        finally:
            if not future.done():  # somebody pressed Ctrl-C while it went on
                self._runner.get_loop().call_soon_threadsafe(_cancel_all)
                wait([future])

    def close(self) -> None:
        self._is_closed = True
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


def _cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


class Worktree:
    """A worktree on a branch of its own; usable inside the with block only."""

    def __init__(
        self, loop: _Loop, workspaces: Workspaces, owner: str, workspace: Workspace
    ) -> None:
        self._loop = loop
        self._workspaces = workspaces
        self._owner = owner
        self._restored = 0
        self._is_removed = False
        self.path = Path(workspace.path)
        self.branch = workspace.branch or ""
        self.base_commit = workspace.base_commit or ""

    def changed_files(self) -> list[str]:
        """What differs from the base, committed or not."""
        return self._loop.run(self._workspaces.diff(self._owner)).files

    def uncommitted_files(self) -> list[str]:
        """What differs from the branch."""
        return self._loop.run(self._workspaces.list_uncommitted(self._owner))

    def diff(self) -> str:
        """The patch from the base to the files as they are, committed or not."""
        patch = self._loop.run(self._workspaces.diff(self._owner)).patch
        return patch.decode("utf-8", "replace")

    def commit(self, message: str) -> str | None:
        """Commit everything; returns the branch's commit, None when that is still the base."""
        return self._loop.run(self._workspaces.commit(self._owner, message))

    def commits(self) -> list[Commit]:
        """What the branch gained since its base, newest first."""
        return self._loop.run(self._workspaces.log(self._owner, None))

    @property
    def has_new_commits(self) -> bool:
        return bool(self._loop.run(self._workspaces.log(self._owner, 1)))

    def merge(self, into: str | None = None) -> str:
        """Merge the branch into another, by default its base; returns the commit that it holds."""
        if files := self.uncommitted_files():
            hint = "Call commit() first; merge() takes what is committed."
            raise Conflict(f"{self.path} holds uncommitted changes, as in {files[0]}.", hint=hint)
        message = f"Merge {self.branch}"
        return self._loop.run(self._workspaces.merge(self._owner, into, message)).commit

    def take_in(self, branch: str) -> list[str]:
        """Merge another branch into this one; returns the files in which markers now stand."""
        message = f"Take in {branch}"
        return self._loop.run(self._workspaces.take_in(self._owner, branch, message))

    def conflicted(self, paths: list[str]) -> list[str]:
        """Those of the files that still hold conflict markers."""
        return self._loop.run(self._workspaces.find_conflicted(self._owner, paths))

    def restore(self, commit: str) -> None:
        """Put everything to a commit; what would be lost is kept under refs/kapelle/archive/."""
        self._restored += 1
        name = f"restore-{self._restored}"
        self._loop.run(self._workspaces.restore(self._owner, commit, name))

    def remove(self) -> None:
        """Remove the worktree now; its branch stays if it has commits, the rest is archived."""
        self._loop.run(self._workspaces.discard(self._owner, empty_branch=True))
        self._is_removed = True

    def _leave(self, cleanup: Cleanup, *, has_failed: bool) -> None:
        if self._is_removed:
            return
        if cleanup == "never":
            _log.info("The worktree %s is kept on %s.", self.path, self.branch)
        elif cleanup == "auto" and has_failed:
            _log.warning("The worktree %s is kept as it was when it failed.", self.path)
        elif cleanup == "auto" and self.uncommitted_files():
            _log.warning("The worktree %s is kept: not all of it is committed.", self.path)
        else:
            self.remove()


@contextmanager
def worktree(
    repository: Path | str = ".",
    *,
    base: str | None = None,
    cleanup: Cleanup = "auto",
    home: Path | str | None = None,
) -> Iterator[Worktree]:
    """A worktree of the repository, from its HEAD or another base, for the length of a block.

    In the end it is removed when all of it is committed ("auto"), in any case with its content
    archived under refs/kapelle/archive/ ("always"), or not at all ("never"). Its branch stays if it
    has commits. After an exception, "auto" keeps the worktree.
    """
    if cleanup not in get_args(Cleanup):
        raise InvalidInput(f"{cleanup!r} is no way to clean up.", hint="auto, always or never")
    workspaces = Workspaces(library_home(home), *AUTHOR)
    loop = _Loop()
    try:
        # There is no daemon to do it: a program killed amid merge() is made good by the next one.
        try:
            loop.run(workspaces.finish_merges())
        except KapelleError as error:
            _log.warning("A merge that was interrupted is not finished: %s", error.message)
        owner = f"work_{new_id('run').partition('_')[2]}"
        directory = Path(repository).expanduser()
        workspace = loop.run(create_or_dismiss(workspaces, owner, directory, base))
        tree = Worktree(loop, workspaces, owner, workspace)
        try:
            yield tree
        except BaseException:
            try:
                tree._leave(cleanup, has_failed=True)
            except (KapelleError, OSError) as error:
                _log.warning("The worktree %s is kept: %s", tree.path, error)
            raise
        tree._leave(cleanup, has_failed=False)
    finally:
        loop.close()
        workspaces.close()


def library_home(home: Path | str | None) -> Path:
    """Where programs without a daemon keep their worktrees, unless they say otherwise."""
    if home is None:
        return Home.default().root / "library"
    return Path(home).expanduser()


async def create_or_dismiss(
    workspaces: Workspaces, owner: str, directory: Path, base: str | None
) -> Workspace:
    """A new worktree; of one that cannot be made nothing stays, for nobody would know of it."""
    try:
        return await workspaces.create(owner, directory, base)
    except BaseException:
        with suppress(KapelleError, OSError):
            await workspaces.discard(owner, empty_branch=True)
        raise
