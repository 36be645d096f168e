"""Run git; no other module calls it. Calls are hardened, with limits on time and output."""

import asyncio
import errno
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

from kapelle.domain.errors import (
    GitError,
    KapelleError,
    Unavailable,
    UnreadableFile,
    WorkspaceError,
)
from kapelle.runner.command import Command, CommandResult, RunningCommand
from kapelle.workspaces.entries import find_any_special, find_special

# Timeouts: commands that read or write whole trees of files get more time.
_TIMEOUT_S = 60.0
_CONTENT_TIMEOUT_S = 900.0
_OF_CONTENT = {
    "checkout-index", "diff-files", "diff-index", "diff-tree", "index-pack", "log", "ls-files",
    "maintenance", "merge-tree", "pack-objects", "prune-packed", "read-tree", "unpack-objects",
    "update-index", "write-tree",
}  # fmt: skip
MAX_OUTPUT = 256 * 1024 * 1024
_REMEMBERED = 4096
K = TypeVar("K")
V = TypeVar("V")
_MAX_AT_ONCE = 16
_LOCK_PATIENCE_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)
# The second alternative: git reads the entry of a worktree that another git is creating.
_BUSY = re.compile(
    r"unable to create '([^\n]*\.lock)': File exists|failed to read [^\n]*/commondir", re.IGNORECASE
)
# git holds a lock only briefly; an older one is left over from a killed git.
_LOCK_AGE_S = 60.0
# Errors that may pass: a full disk, which git does not always report by its name, and exhausted
# limits.
_PASSING = {
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN,
}  # fmt: skip
_EXHAUSTED = re.compile(
    r": (?:No space left on device|Disk quota exceeded|Too many open files(?: in system)?"
    r"|Resource temporarily unavailable)\.?$"
    r"|write error\. Out of diskspace$|couldn't write '[^\n]*'$|^error: unable to write file ",
    re.MULTILINE,
)
_COME_BACK = "Kapelle retries it; free some disk space, or end processes that use up the machine."
_MOVED = re.compile(r"but expected|reference already exists|unable to resolve reference")

# git reads command-line configuration last, so nothing in a repository can override these.
HARDENING = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.pager=cat",
    "core.editor=false",
    "core.askPass=",
    "core.sshCommand=false",
    "core.gitProxy=",
    "core.alternateRefsCommand=",
    "core.quotePath=false",
    "core.looseCompression=1",
    "credential.helper=",
    "protocol.allow=never",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "gpg.program=false",
    "log.showSignature=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "diff.ignoreSubmodules=all",
    "advice.detachedHead=false",
)

# The interval at which a long-running git is examined.
_LOOK_S = 2.0

# Asks whether the result of a git command is still needed, for work that can be stopped.
is_result_needed: ContextVar[Callable[[], Awaitable[bool]] | None] = ContextVar(
    "wanted", default=None
)
# Locks as open files: a git that inherits them keeps them locked until it ends.
inherited_locks: ContextVar[tuple[int, ...]] = ContextVar("inherited_locks", default=())


class RefMoved(GitError):
    """A reference does not hold the expected value any more."""


class LockBusy(Unavailable):
    """Another git process holds a lock."""


@dataclass(frozen=True)
class GitLocation:
    """The context of a call of git: variables that select the repository, directory, settings."""

    git: "Git"
    cwd: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        return self.git.environment

    @property
    def hardening(self) -> tuple[str, ...]:
        return HARDENING

    async def run(
        self,
        *args: str,
        stdin: bytes | Sequence[bytes] | None = None,
        ok: Sequence[int] = (0,),
        timeout_s: float | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> "GitOutput":
        """Run one command; raise unless its exit code is in `ok`. Waits for a held lock.

        Several records of input are separated by NUL, as with -z. Raises Unavailable when the
        machine has run out of something: the same call may succeed later.
        """
        command = self._make_command(args, stdin, timeout_s, max_output)
        if entry := find_special(command.environment):
            raise _make_unreadable_error(entry)
        for pause_s in (*_LOCK_PATIENCE_S, None):
            result = await self.git.execute(command, self._examine)
            if result.timed_out:
                # Not Unavailable: a command that always takes too long would be retried forever.
                raise GitError(f"git {args[0]} did not finish within {command.timeout_s:g} s.")
            stderr = result.stderr.decode("utf-8", "replace")
            is_exhausted = result.code != 0 and _EXHAUSTED.search(stderr) is not None
            if result.is_truncated or (result.code in ok and not is_exhausted):
                return GitOutput(result.code, result.stdout, result.is_truncated, stderr)
            if pause_s is None or is_exhausted or not _BUSY.search(stderr):
                self._require_objects()
                raise _make_error(args, result.code, stderr)
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    def _make_command(
        self,
        args: Sequence[str],
        stdin: bytes | Sequence[bytes] | None,
        timeout_s: float | None,
        max_output: int,
    ) -> Command:
        """Return the command line of one call, with its environment and its limits."""
        # In this order, for of settings with the same name git takes the last.
        options: list[str] = []
        for setting in (*self.hardening, *self.settings):
            options += ["-c", setting]
        if timeout_s is None:
            timeout_s = _CONTENT_TIMEOUT_S if args[0] in _OF_CONTENT else _TIMEOUT_S
        if stdin is not None and not isinstance(stdin, bytes):
            stdin = b"".join(record + b"\0" for record in stdin)
        return Command(
            argv=[*self.git.argv, *options, *args],
            environment={**self.environment, **self.variables},
            cwd=self.cwd,
            timeout_s=timeout_s,
            max_output=max_output,
            stdin=stdin,
            descriptors=inherited_locks.get(),
        )

    def _require_objects(self) -> None:
        """Raise WorkspaceError if the repository with the objects is gone."""
        # git would name Kapelle's bare repository, which borrows the objects.
        objects = self.variables.get("GIT_OBJECT_DIRECTORY")
        if objects is not None and not os.path.isdir(objects):
            raise _make_missing_error(Path(objects).parent)

    async def _examine(self, looks: int) -> None:
        """Raise WorkspaceError if a long-running git can never end, or is not needed any more.

        It can never end while it waits on a pipe or reads a device in the place of a file.
        """
        is_needed = is_result_needed.get()
        if is_needed is not None and not await is_needed():
            raise WorkspaceError("git was ended because its task was stopped.")
        # Search at looks 1, 2, 4, 8 …: it reads many names.
        if looks & (looks - 1) == 0:
            entry = await asyncio.to_thread(find_any_special, self.variables)
            if entry is not None:
                raise _make_unreadable_error(entry)

    def with_variables(self, **variables: str) -> Self:
        return replace(self, variables={**self.variables, **variables})

    def with_settings(self, *settings: str) -> Self:
        return replace(self, settings=(*self.settings, *settings))


@dataclass(frozen=True)
class GitOutput:
    """The exit code and the output of one git command."""

    code: int
    stdout: bytes
    is_truncated: bool
    stderr: str = ""

    @property
    def line(self) -> str:
        """Return the output as text, for a command that prints one line."""
        return self.stdout.decode("utf-8", "replace").strip()

    @property
    def fields(self) -> list[bytes]:
        """Return the NUL-separated records of the output."""
        return [part for part in self.stdout.split(b"\0") if part]


class Memory(dict[K, V]):
    """A cache with a maximum size; the oldest entry is removed first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, fact: V) -> None:
        super().__setitem__(key, fact)
        # Dictionaries keep their order, so the first key is the oldest.
        if len(self) > self._most:
            del self[next(iter(self))]


class Git:
    """Runs git in an environment of its own, without the user's variables and configuration."""

    def __init__(
        self,
        executable: str,
        empty_home: Path,
        author_name: str,
        author_email: str,
        filters: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.argv = [shutil.which(executable) or executable, "--no-pager", "--literal-pathspecs"]
        self._empty_home = empty_home
        self._author = (author_name, author_email)
        self._filters = filters
        # Caches by repository: the tree of a commit that exists there, and of an index by its
        # digest.
        self.trees = Memory[tuple[Path, str], str](_REMEMBERED)
        self.index_trees = Memory[tuple[Path, str], str](_REMEMBERED)
        self._threads = ThreadPoolExecutor(_MAX_AT_ONCE, thread_name_prefix="git")

    def close(self) -> None:
        self._threads.shutdown()

    @property
    def filters(self) -> frozenset[str]:
        """Return the filters of .gitattributes that the user allows to run now."""
        return frozenset(self._filters())

    @property
    def environment(self) -> dict[str, str]:
        name, email = self._author
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._empty_home),
            "LANG": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_PAGER": "cat",
            "GIT_EDITOR": "false",
            "GIT_SEQUENCE_EDITOR": "false",
            "GIT_ASKPASS": "false",
            "SSH_ASKPASS": "false",
            "GIT_SSH_COMMAND": "false",
            "GIT_AUTHOR_NAME": name,
            "GIT_AUTHOR_EMAIL": email,
            "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": email,
        }

    async def execute(
        self, command: Command, examine: Callable[[int], Awaitable[None]] | None = None
    ) -> CommandResult:
        """Run a command in a thread.

        While the command runs for long, `examine` is called with the number of the call; it ends
        the command by raising.
        """
        running = RunningCommand(command)
        future = asyncio.get_running_loop().run_in_executor(self._threads, running.run)
        looks = 0
        try:
            while not (await asyncio.wait([future], timeout=_LOOK_S))[0]:
                looks += 1
                if examine is not None:
                    await examine(looks)
        except BaseException:
            await _stop(running, future, command.grace_s)
            raise
        try:
            return future.result()
        except OSError as error:
            raise _make_start_error(command.cwd, error) from error


async def _stop(
    running: RunningCommand, future: asyncio.Future[CommandResult], grace_s: float
) -> None:
    """End git; it gets the grace period to remove its locks, and never outlives the call."""
    running.stop(signal.SIGTERM)
    try:
        await asyncio.wait([future], timeout=grace_s)
    finally:
        if not future.done():
            running.stop(signal.SIGKILL)
    await asyncio.wait([future])
    future.exception()


def _make_unreadable_error(entry: str) -> UnreadableFile:
    name = os.fsencode(entry).decode("utf-8", "backslashreplace")
    return UnreadableFile(
        f"git cannot read {name}: it is a pipe or a device.",
        hint="Remove it, or put the file back that was there.",
    )


def format_relocation_command(place: Path | str) -> str:
    """Return the command to type at the new place of a moved repository."""
    return f"kapelle relocate {shlex.quote(str(place))}"


def _make_start_error(cwd: Path, error: OSError) -> KapelleError:
    message = f"git could not be started: {error}."
    if error.errno in _PASSING:
        return Unavailable(message, hint=_COME_BACK)
    if not cwd.is_dir():
        return _make_missing_error(cwd)
    return WorkspaceError(message, hint="Install git 2.38 or newer.")


def _make_missing_error(directory: Path) -> WorkspaceError:
    """Return the error for a repository that is gone."""
    if directory.name == ".git":
        top = directory.parent
    else:
        top = directory
    return WorkspaceError(
        f"The directory {directory} does not exist.",
        hint="If the repository was moved, type at its new place: "
        f"{format_relocation_command(top)}",
    )


def _make_error(args: Sequence[str], code: int, stderr: str) -> KapelleError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # git prints hints after the line that names the error.
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))]
    last = (telling or lines or [f"exit code {code}"])[-1]
    message = f"git {args[0]} failed: {last[:1000]}"
    if _EXHAUSTED.search(stderr):
        return Unavailable(message, hint=_COME_BACK)
    if busy := _BUSY.search(stderr):
        return _make_lock_error(message, busy[1])
    if _MOVED.search(stderr):
        return RefMoved(message)
    return GitError(message)


def _make_lock_error(message: str, lock: str | None) -> KapelleError:
    """Return the error for a held lock; a left-over lock needs a person."""
    if lock is None:
        return GitError(message, hint="Another git process is running, or a worktree is damaged.")
    if _is_held(lock):
        return LockBusy(
            message, hint="Another git process is running, or a lock file was left over."
        )
    return GitError(message, hint=f"If no git process is running there, remove {lock}.")


def _is_held(lock: str) -> bool:
    try:
        return time.time() - os.stat(lock).st_mtime < _LOCK_AGE_S
    except FileNotFoundError:
        return True  # it has just been released
    except OSError:
        return False
