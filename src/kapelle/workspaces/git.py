"""The only caller of git: argv only, hardened, bounded in time and output."""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from kapelle.domain.errors import GitError, WorkspaceError
from kapelle.workspaces.locks import inherited_descriptors

DEFAULT_TIMEOUT_S = 60.0
CONTENT_TIMEOUT_S = 900.0
MAX_OUTPUT = 256 * 1024 * 1024
_STDERR_TAIL = 8192
_LOCK_PATIENCE_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)
# The second: git reads the entry of a worktree that another git is just making.
_BUSY = re.compile(
    r"unable to create '[^\n]*\.lock': File exists|failed to read [^\n]*/commondir",
    re.IGNORECASE,
)
_MOVED = re.compile(r"but expected|reference already exists|unable to resolve reference")

# Command-line configuration is read last, so nothing in a repository can undo these.
_HARDENING = (
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


class RefMoved(GitError):
    """A reference no longer held the expected value."""


class LockBusy(GitError):
    """Another git process holds a lock."""


@dataclass(frozen=True)
class Place:
    """Where one call of git happens: the repository variables, the directory, extra settings."""

    cwd: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] = ()

    def with_variables(self, **variables: str) -> "Place":
        return replace(self, variables={**self.variables, **variables})


@dataclass(frozen=True)
class Output:
    code: int
    stdout: bytes
    truncated: bool

    @property
    def line(self) -> str:
        return self.stdout.decode("utf-8", "replace").strip()

    @property
    def fields(self) -> list[bytes]:
        return [part for part in self.stdout.split(b"\0") if part]


class Git:
    """Runs git with an environment of its own, in which nothing outside Kapelle has a say."""

    def __init__(
        self, executable: str, empty_home: Path, author_name: str, author_email: str
    ) -> None:
        self._executable = shutil.which(executable) or executable
        self._empty_home = empty_home
        self._author = (author_name, author_email)

    async def run(
        self,
        place: Place,
        *args: str,
        stdin: bytes | None = None,
        ok: Sequence[int] = (0,),
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_output: int = MAX_OUTPUT,
    ) -> Output:
        """Run one command; an exit code outside ok raises, a held lock is waited for."""
        for pause_s in (*_LOCK_PATIENCE_S, None):
            output, stderr = await self._once(place, args, stdin, timeout_s, max_output)
            if output.code in ok or output.truncated:
                return output
            error = _error(args[0], output.code, stderr)
            if pause_s is None or not isinstance(error, LockBusy):
                raise error
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    def _environment(self, place: Place) -> dict[str, str]:
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
            **place.variables,
        }

    def _argv(self, place: Place, args: Sequence[str]) -> list[str]:
        argv = [self._executable, "--no-pager", "--literal-pathspecs"]
        for setting in (*_HARDENING, *place.settings):
            argv += ["-c", setting]
        return [*argv, *args]

    async def _once(
        self,
        place: Place,
        args: Sequence[str],
        stdin: bytes | None,
        timeout_s: float,
        max_output: int,
    ) -> tuple[Output, str]:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv(place, args),
                stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=place.cwd,
                env=self._environment(place),
                start_new_session=True,
                pass_fds=inherited_descriptors(),
            )
        except OSError as error:
            raise WorkspaceError(
                f"git could not be started: {error}.", hint="Install git 2.38 or newer."
            ) from error
        try:
            async with asyncio.timeout(timeout_s):
                return await _talk(process, stdin, max_output)
        except TimeoutError:
            raise GitError(f"git {args[0]} did not finish within {timeout_s:g} s.") from None
        finally:
            # Also when this task is cancelled: nothing of git may outlive the call.
            if process.returncode is None:
                _kill_group(process.pid)
                await process.wait()


async def _talk(
    process: asyncio.subprocess.Process, stdin: bytes | None, max_output: int
) -> tuple[Output, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    (stdout, truncated), stderr, _ = await asyncio.gather(
        _read(process.stdout, max_output, process.pid),
        _read_tail(process.stderr),
        _feed(process.stdin, stdin),
    )
    code = await process.wait()
    return Output(code, stdout, truncated), stderr.decode("utf-8", "replace")


async def _read(stream: asyncio.StreamReader, limit: int, pid: int) -> tuple[bytes, bool]:
    chunks, size = [], 0
    while chunk := await stream.read(262_144):
        if size <= limit:
            chunks.append(chunk)
            if size + len(chunk) > limit:
                _kill_group(pid)
        # Read on to the end: a pipe that is not drained would keep the process from being reaped.
        size += len(chunk)
    return b"".join(chunks)[:limit], size > limit


async def _read_tail(stream: asyncio.StreamReader) -> bytes:
    tail = b""
    while chunk := await stream.read(65_536):
        tail = (tail + chunk)[-_STDERR_TAIL:]
    return tail


async def _feed(stream: asyncio.StreamWriter | None, stdin: bytes | None) -> None:
    if stream is None or stdin is None:
        return
    try:
        stream.write(stdin)
        await stream.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # git gave up early; its exit code tells why
    finally:
        stream.close()


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _error(command: str, code: int, stderr: str) -> GitError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))]
    last = (telling or lines or [f"exit code {code}"])[-1]
    message = f"git {command} failed: {last[:1000]}"
    if _BUSY.search(stderr):
        return LockBusy(message, hint="Another git process is at work, or a lock file was left.")
    if _MOVED.search(stderr):
        return RefMoved(message)
    return GitError(message)
