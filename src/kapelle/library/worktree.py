"""Create worktrees for Python programs, without a daemon and without async."""

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
    """Runs coroutines one by one for callers in any thread, inside an event loop or not."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kapelle-worktree")
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result; when interrupted, cancel the coroutine and wait for its end."""
        if self._is_closed:
            work.close()
            raise Conflict(
                "The with block of the worktree has ended.", hint="Use it inside the with block."
            )
        future = self._thread.submit(self._runner.run, work)
        try:
            return future.result()
        finally:
            if not future.done():  # Ctrl-C was pressed meanwhile
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
    """A worktree on its own branch; usable inside the with block only."""

    def __init__(
        self, loop: _Loop, workspaces: Workspaces, owner: str, workspace: Workspace
    ) -> None:
        self._loop = loop
        self._workspaces = workspaces
        self._owner = owner
        self._restore_count = 0
        self._is_removed = False
        self.path = Path(workspace.path)
        self.branch = workspace.branch or ""
        self.base_commit = workspace.base_commit or ""

    def changed_files(self) -> list[str]:
        """Return the files that differ from the base, committed or not."""
        return self._loop.run(self._workspaces.diff(self._owner)).files

    def uncommitted_files(self) -> list[str]:
        """Return the files that differ from the branch."""
        return self._loop.run(self._workspaces.list_uncommitted(self._owner))

    def diff(self) -> str:
        """Return the patch from the base to the present files, committed or not."""
        patch = self._loop.run(self._workspaces.diff(self._owner)).patch
        return patch.decode("utf-8", "replace")

    def commit(self, message: str) -> str | None:
        """Commit everything; return the branch's commit, None if that is still the base."""
        return self._loop.run(self._workspaces.commit(self._owner, message))

    def commits(self) -> list[Commit]:
        """Return the commits since the base, newest first."""
        return self._loop.run(self._workspaces.log(self._owner, None))

    @property
    def has_new_commits(self) -> bool:
        """Tell whether the branch has commits of its own."""
        return bool(self._loop.run(self._workspaces.log(self._owner, 1)))

    def merge(self, into: str | None = None) -> str:
        """Merge the branch into another, by default its base; return the resulting commit."""
        if files := self.uncommitted_files():
            hint = "Call commit() first; merge() takes what is committed."
            raise Conflict(f"{self.path} holds uncommitted changes, as in {files[0]}.", hint=hint)
        message = f"Merge {self.branch}"
        return self._loop.run(self._workspaces.merge(self._owner, into, message)).commit

    def take_in(self, branch: str) -> list[str]:
        """Merge another branch into this one; return the files with conflict markers."""
        message = f"Take in {branch}"
        return self._loop.run(self._workspaces.take_in(self._owner, branch, message))

    def conflicted(self, paths: list[str]) -> list[str]:
        """Return those of the files that still have conflict markers."""
        return self._loop.run(self._workspaces.find_conflicted(self._owner, paths))

    def restore(self, commit: str) -> None:
        """Reset to a commit; archive what would be lost under refs/kapelle/archive/."""
        self._restore_count += 1
        name = f"restore-{self._restore_count}"
        self._loop.run(self._workspaces.restore(self._owner, commit, name))

    def remove(self) -> None:
        """Remove the worktree now; a branch with commits stays, the rest is archived."""
        self._loop.run(self._workspaces.discard(self._owner, empty_branch=True))
        self._is_removed = True

    def _leave(self, cleanup: Cleanup, *, has_failed: bool) -> None:
        if self._is_removed:
            return
        if cleanup == "never":
            _log.info("The worktree %s is kept on %s.", self.path, self.branch)
        elif cleanup == "auto" and has_failed:
            _log.warning("The worktree %s is kept because of the error.", self.path)
        elif cleanup == "auto" and self.uncommitted_files():
            _log.warning("The worktree %s is kept because it has uncommitted changes.", self.path)
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
    """Create a worktree of the repository for the length of a with block.

    `base` is where it starts, by default HEAD. `cleanup`: "auto" removes it at the end if
    everything is committed and no exception was raised, "always" removes it in any case and
    archives its content under refs/kapelle/archive/, "never" keeps it. Its branch stays if it has
    commits.
    """
    if cleanup not in get_args(Cleanup):
        raise InvalidInput(
            f"{cleanup!r} is not a value of cleanup.", hint="Use auto, always or never."
        )
    workspaces = Workspaces(library_home(home), *AUTHOR)
    loop = _Loop()
    try:
        _finish_merges(loop, workspaces)
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


def _finish_merges(loop: _Loop, workspaces: Workspaces) -> None:
    """Complete the merges that a killed program left unfinished; there is no daemon to do it."""
    try:
        loop.run(workspaces.finish_merges())
    except KapelleError as error:
        _log.warning("An interrupted merge could not be completed: %s", error.message)


def library_home(home: Path | str | None) -> Path:
    """Return the directory for worktrees of programs without a daemon."""
    if home is None:
        return Home.default().root / "library"
    return Path(home).expanduser()


async def create_or_dismiss(
    workspaces: Workspaces, owner: str, directory: Path, base: str | None
) -> Workspace:
    """Create a worktree; if that fails, remove what was created, which nobody would find."""
    try:
        return await workspaces.create(owner, directory, base)
    except BaseException:
        with suppress(KapelleError, OSError):
            await workspaces.discard(owner, empty_branch=True)
        raise
