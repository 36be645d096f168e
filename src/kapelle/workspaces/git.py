"""The only caller of git: argv only, hardened, bounded in time and output."""

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

# How long a command may take: those that read or write whole trees of files have more time.
_TIMEOUT_S = 60.0
_CONTENT_TIMEOUT_S = 900.0
_OF_CONTENT = {
    "checkout-index", "diff-files", "diff-index", "diff-tree", "log", "ls-files", "maintenance",
    "merge-tree", "prune-packed", "read-tree", "update-index", "write-tree",
}  # fmt: skip
MAX_OUTPUT = 256 * 1024 * 1024
_REMEMBERED = 4096
K = TypeVar("K")
V = TypeVar("V")
_MAX_AT_ONCE = 16
_LOCK_PATIENCE_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)
# The second: git reads the entry of a worktree that another git is just making.
_BUSY = re.compile(
    r"unable to create '([^\n]*\.lock)': File exists|failed to read [^\n]*/commondir", re.IGNORECASE
)
# git holds a lock for moments; an older one was left by a git that was killed.
_LOCK_AGE_S = 60.0
# What passes by itself: a full disk, which git does not always call by its name, and the like.
_PASSING = {
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN,
}  # fmt: skip
_EXHAUSTED = re.compile(
    r": (?:No space left on device|Disk quota exceeded|Too many open files(?: in system)?"
    r"|Resource temporarily unavailable)\.?$"
    r"|write error\. Out of diskspace$|couldn't write '[^\n]*'$|^error: unable to write file ",
    re.MULTILINE,
)
_COME_BACK = "It is tried again; make room, or end what uses up the machine."
_MOVED = re.compile(r"but expected|reference already exists|unable to resolve reference")

# Command-line configuration is read last, so nothing in a repository can undo these.
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

# How long a git may take before it is looked at, and then again and again.
_LOOK_S = 2.0

# Whether the result of a git is still wanted, for work that can be stopped.
wanted: ContextVar[Callable[[], Awaitable[bool]] | None] = ContextVar("wanted", default=None)
# The held locks as open files: a git that inherits them keeps them until it ends.
inherited: ContextVar[tuple[int, ...]] = ContextVar("inherited", default=())


class RefMoved(GitError):
    """A reference no longer held the expected value."""


class LockBusy(Unavailable):
    """Another git process holds a lock."""


@dataclass(frozen=True)
class GitLocation:
    """Where one call of git happens: the repository variables, the directory, extra settings."""

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
        """Run one command; an exit code outside ok raises, a held lock is waited for. Several
        records of input are told apart as by -z.

        What the machine is out of is Unavailable: it passes, and the same may work later.
        """
        if stdin is not None and not isinstance(stdin, bytes):
            stdin = b"".join(record + b"\0" for record in stdin)
        limit_s = timeout_s or (_CONTENT_TIMEOUT_S if args[0] in _OF_CONTENT else _TIMEOUT_S)
        options = (part for item in (*self.hardening, *self.settings) for part in ("-c", item))
        command = Command(
            argv=[*self.git.argv, *options, *args],
            environment={**self.environment, **self.variables},
            cwd=self.cwd,
            timeout_s=limit_s,
            max_output=max_output,
            stdin=stdin,
            descriptors=inherited.get(),
        )
        if entry := find_special(command.environment):
            raise _unreadable(entry)
        for pause_s in (*_LOCK_PATIENCE_S, None):
            finished = await self.git.execute(command, self._examine)
            if finished.timed_out:
                # Not Unavailable: one that always takes too long would be repeated for ever.
                raise GitError(f"git {args[0]} did not finish within {limit_s:g} s.")
            stderr = finished.stderr.decode("utf-8", "replace")
            exhausted = finished.code != 0 and _EXHAUSTED.search(stderr) is not None
            if finished.truncated or (finished.code in ok and not exhausted):
                return GitOutput(finished.code, finished.stdout, finished.truncated, stderr)
            if pause_s is None or exhausted or not _BUSY.search(stderr):
                self._require_objects()
                raise _error(args, finished.code, stderr)
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    def _require_objects(self) -> None:
        """Raise WorkspaceError if the repository is gone whose objects git was to read."""
        # git would name the bare repository of ours that borrows them.
        objects = self.variables.get("GIT_OBJECT_DIRECTORY")
        if objects is not None and not os.path.isdir(objects):
            raise _missing(Path(objects).parent)

    async def _examine(self, looks: int) -> None:
        """Raise WorkspaceError if a git that takes long waits for what will never come, or if
        nobody wants its result any more."""
        is_wanted = wanted.get()
        if is_wanted is not None and not await is_wanted():
            raise WorkspaceError("git was ended, because the work that needs it is stopped.")
        # The search reads many names, so it is made less and less often.
        if looks & (looks - 1) == 0:
            entry = await asyncio.to_thread(find_any_special, self.variables)
            if entry is not None:
                raise _unreadable(entry)

    def with_variables(self, **variables: str) -> Self:
        return replace(self, variables={**self.variables, **variables})

    def with_settings(self, *settings: str) -> Self:
        return replace(self, settings=(*self.settings, *settings))


@dataclass(frozen=True)
class GitOutput:
    code: int
    stdout: bytes
    truncated: bool
    stderr: str = ""

    @property
    def line(self) -> str:
        return self.stdout.decode("utf-8", "replace").strip()

    @property
    def fields(self) -> list[bytes]:
        return [part for part in self.stdout.split(b"\0") if part]


class Memory(dict[K, V]):
    """What was put into it last, up to a number."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, fact: V) -> None:
        super().__setitem__(key, fact)
        if len(self) > self._most:
            del self[next(iter(self))]


class Git:
    """Runs git with an environment of its own, in which nothing outside Kapelle has a say."""

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
        # By repository: the tree of a commit that exists there, and of an index by its digest.
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
        """Run a command in a thread; while it takes long, examine is called with the number of
        the call, and ends it by raising."""
        running = RunningCommand(command)
        done = asyncio.get_running_loop().run_in_executor(self._threads, running.run)
        looks = 0
        try:
            while not (await asyncio.wait([done], timeout=_LOOK_S))[0]:
                looks += 1
                if examine is not None:
                    await examine(looks)
        except BaseException:
            await _stop(running, done, command.grace_s)
            raise
        try:
            return done.result()
        except OSError as error:
            raise _not_started(command.cwd, error) from error


async def _stop(
    running: RunningCommand, done: asyncio.Future[CommandResult], grace_s: float
) -> None:
    """Nothing of git may outlive the call, but it gets the time to remove its locks."""
    running.stop(signal.SIGTERM)
    try:
        await asyncio.wait([done], timeout=grace_s)
    finally:
        if not done.done():
            running.stop(signal.SIGKILL)
    await asyncio.wait([done])
    done.exception()


def _unreadable(entry: str) -> UnreadableFile:
    name = os.fsencode(entry).decode("utf-8", "backslashreplace")
    return UnreadableFile(
        f"git cannot read {name}: it is a pipe or a device.",
        hint="Remove it, or put the file back that was there.",
    )


def relocation_command(place: Path | str) -> str:
    """Return the command to type in the new place of a repository that was at a place."""
    return f"kapelle relocate {shlex.quote(str(place))}"


def _not_started(cwd: Path, error: OSError) -> KapelleError:
    message = f"git could not be started: {error}."
    if error.errno in _PASSING:
        return Unavailable(message, hint=_COME_BACK)
    if not cwd.is_dir():
        return _missing(cwd)
    return WorkspaceError(message, hint="Install git 2.38 or newer.")


def _missing(directory: Path) -> WorkspaceError:
    """Return the error of a repository that is gone."""
    if directory.name == ".git":
        top = directory.parent
    else:
        top = directory
    return WorkspaceError(
        f"The directory {directory} is not there.",
        hint=f"If the repository was moved, type at its new place: {relocation_command(top)}",
    )


def _error(args: Sequence[str], code: int, stderr: str) -> KapelleError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))]
    last = (telling or lines or [f"exit code {code}"])[-1]
    message = f"git {args[0]} failed: {last[:1000]}"
    if _EXHAUSTED.search(stderr):
        return Unavailable(message, hint=_COME_BACK)
    if busy := _BUSY.search(stderr):
        return _busy(message, busy[1])
    if _MOVED.search(stderr):
        return RefMoved(message)
    return GitError(message)


def _busy(message: str, lock: str | None) -> KapelleError:
    """A lock that is held passes; one that was left, or half a worktree, needs a person."""
    if lock is None:
        return GitError(message, hint="Another git process is at work, or a worktree is damaged.")
    if _is_held(lock):
        return LockBusy(message, hint="Another git process is at work, or a lock file was left.")
    return GitError(message, hint=f"If no git is at work there, remove {lock}.")


def _is_held(lock: str) -> bool:
    try:
        return time.time() - os.stat(lock).st_mtime < _LOCK_AGE_S
    except FileNotFoundError:
        return True  # it has just been given back
    except OSError:
        return False
