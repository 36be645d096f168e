"""A short command run to its end in the calling thread, bounded in time and output.

Not asyncio's own subprocesses: in Python 3.11, cancelling one while it starts never returns.
"""

import math
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_CHUNK = 262_144
_STDERR_TAIL = 8192
_MOST_PRINTED = 65_536
# A command that takes longer is ended also when this process dies.
_UNGUARDED_S = 1.0


@dataclass(frozen=True)
class Command:
    """What to run, and within which bounds; the descriptors are inherited.

    Of one that only prints, nothing but its standard output is waited for.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path
    timeout_s: float
    max_output: int
    stdin: bytes | None = None
    descriptors: tuple[int, ...] = ()
    grace_s: float = 3.0
    only_prints: bool = False


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, with the beginning of its output and the end of its errors."""

    code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    timed_out: bool


def printed(argv: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float) -> str | None:
    """What a program writes to standard output; None when it has not done with it in time.

    Blocks, so the daemon calls it in a thread. OSError if it cannot be started.
    """
    command = Command(argv, env, cwd, timeout_s, _MOST_PRINTED, grace_s=0.05, only_prints=True)
    finished = RunningCommand(command).run()
    if finished.timed_out:
        return None
    return finished.stdout.decode("utf-8", "replace")


class RunningCommand:
    """A command under way in a session of its own, of which nothing is left at the end.

    stop may be called from another thread, even before it has started.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped_by: signal.Signals | None = None
        self._give_up_at = 0.0
        self._stdout: list[bytes] = []
        self._size = 0
        self._stderr = b""
        self._guard: subprocess.Popen[bytes] | None = None

    def stop(self, how: signal.Signals) -> None:
        """Signal the whole process group."""
        self._stopped_by = how
        self._signal(how)

    def run(self) -> CommandResult:
        """Start, talk, reap; raises OSError when the program cannot be started."""
        command = self._command
        with subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL if command.stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if command.only_prints else subprocess.PIPE,
            cwd=command.cwd,
            env=command.environment,
            start_new_session=True,
            pass_fds=command.descriptors,
        ) as process:
            self._process = process
            if self._stopped_by is not None:
                self._signal(self._stopped_by)
            self._give_up_at = time.monotonic() + command.timeout_s
            self._talk(process)
            while not command.only_prints and not _ends_by(process, self._give_up_at):
                self._escalate()
            self._signal(signal.SIGKILL)
            # Before it is reaped, for then its number could be another one's.
            self._dismiss_guard()
            code = process.wait()
        stdout = b"".join(self._stdout)[: command.max_output]
        truncated = self._size > command.max_output
        timed_out = self._stopped_by is not None and not truncated
        return CommandResult(code, stdout, self._stderr, truncated, timed_out)

    def _signal(self, how: signal.Signals) -> None:
        # Not once it is reaped: the number could belong to another group by then.
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # the second: macOS, of the dead
                os.killpg(self._process.pid, how)

    def _talk(self, process: subprocess.Popen[bytes]) -> None:
        """Feed and read until both outputs end, or something outside the group keeps them open."""
        pending = memoryview(self._command.stdin or b"")
        with selectors.DefaultSelector() as selector:
            for name in ("stdout", "stderr", "stdin"):
                if (stream := getattr(process, name)) is not None:
                    if name == "stdin":
                        event = selectors.EVENT_WRITE
                    else:
                        event = selectors.EVENT_READ
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream.fileno(), event, name)
            guarded_at = time.monotonic() + _UNGUARDED_S
            while selector.get_map():
                now = time.monotonic()
                if now >= guarded_at:
                    guarded_at = math.inf
                    self._set_guard(process.pid)
                left_s = self._give_up_at - now
                if left_s <= 0:
                    if self._stopped_by is signal.SIGKILL:
                        return
                    self._escalate()
                for key, _ in selector.select(max(min(left_s, guarded_at - now), 0)):
                    if key.data == "stdin" and process.stdin is not None:
                        pending = _feed(selector, process.stdin, pending)
                    else:
                        self._read(selector, key.fd, key.data)

    def _set_guard(self, group: int) -> None:
        """Have a command that takes long end with this process, however this process ends.

        The guard waits for the end of a pipe that only this process holds open. PDEATHSIG would
        follow the thread and needs code between fork and exec.
        """
        with suppress(OSError):
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", f"cat; kill -s KILL -- -{group}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _dismiss_guard(self) -> None:
        if self._guard is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        with self._guard:
            self._guard = None

    def _escalate(self) -> None:
        """Ask first: git removes its locks and half-made things when it is terminated."""
        self._give_up_at = time.monotonic() + self._command.grace_s
        self.stop(signal.SIGTERM if self._stopped_by is None else signal.SIGKILL)

    def _read(self, selector: selectors.BaseSelector, descriptor: int, name: str) -> None:
        chunk = os.read(descriptor, _CHUNK)
        if not chunk:
            selector.unregister(descriptor)
        elif name == "stderr":
            self._stderr = (self._stderr + chunk)[-_STDERR_TAIL:]
        else:
            if self._size <= self._command.max_output:
                self._stdout.append(chunk)
            self._size += len(chunk)
            if self._size > self._command.max_output and self._stopped_by is None:
                self._escalate()


def _ends_by(process: subprocess.Popen[bytes], limit: float) -> bool:
    seconds = max(limit - time.monotonic(), 0.01)
    if sys.platform == "linux":
        # Popen.wait with a time limit polls, which costs up to 50 ms for each call.
        descriptor = os.pidfd_open(process.pid)
        try:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            return bool(waiting.poll(seconds * 1000))
        finally:
            os.close(descriptor)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _feed(selector: selectors.BaseSelector, stream: IO[bytes], pending: memoryview) -> memoryview:
    try:
        pending = pending[os.write(stream.fileno(), pending[:_CHUNK]) :]
    except BrokenPipeError:
        pending = pending[:0]  # the program gave up early; its exit code tells why
    if not pending:
        selector.unregister(stream.fileno())
        stream.close()
    return pending
