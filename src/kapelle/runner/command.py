"""Run a short command to its end in the calling thread, with limits on time and output.

asyncio's own subprocesses are not used: in Python 3.11, cancelling one while it starts never
returns.
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
# A command that runs longer than this gets a guard process, which kills it when Kapelle dies.
_UNGUARDED_S = 1.0


@dataclass(frozen=True)
class Command:
    """The command line, its environment and its limits.

    The process inherits the descriptors. With `only_prints`, only the end of its standard output is
    awaited, and its standard error is discarded.
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
    """The exit code of a command, the beginning of its output and the end of its errors."""

    code: int
    stdout: bytes
    stderr: bytes
    is_truncated: bool
    timed_out: bool


def read_output(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float
) -> str | None:
    """Run a program and return what it writes to standard output; None after a timeout.

    Blocks, so the daemon calls it in a thread. Raises OSError if the program cannot be started.
    """
    command = Command(argv, env, cwd, timeout_s, _MOST_PRINTED, grace_s=0.05, only_prints=True)
    result = RunningCommand(command).run()
    if result.timed_out:
        return None
    return result.stdout.decode("utf-8", "replace")


class RunningCommand:
    """A running command in a session of its own; none of its processes is left after `run`.

    `stop` may be called from another thread, even before the command has started.
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
        """Send a signal to the whole process group."""
        self._stopped_by = how
        self._signal(how)

    def run(self) -> CommandResult:
        """Start the command, exchange its data and reap it.

        Raises OSError when the program cannot be started.
        """
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
            self._exchange_data(process)
            while not command.only_prints and not _wait_for_end(process, self._give_up_at):
                self._escalate()
            self._signal(signal.SIGKILL)
            # Before the process is reaped: after that, its number may belong to another process.
            self._dismiss_guard()
            code = process.wait()
        stdout = b"".join(self._stdout)[: command.max_output]
        is_truncated = self._size > command.max_output
        timed_out = self._stopped_by is not None and not is_truncated
        return CommandResult(code, stdout, self._stderr, is_truncated, timed_out)

    def _signal(self, how: signal.Signals) -> None:
        # Not after the process was reaped: by then the number may belong to another group.
        if self._process is not None and self._process.returncode is None:
            with suppress(
                ProcessLookupError, PermissionError
            ):  # macOS: PermissionError for a dead process
                os.killpg(self._process.pid, how)

    def _exchange_data(self, process: subprocess.Popen[bytes]) -> None:
        """Feed and read the command until both of its outputs end.

        A process outside the group may keep an output open; then it is abandoned after the timeout.
        """
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
        """Start a process that kills the command when this process ends, however it ends.

        The guard waits for the end of a pipe that only this process holds open. PDEATHSIG is no
        alternative: it follows the thread, and needs code between fork and exec.
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
        """Send SIGTERM first and SIGKILL at the next call.

        On SIGTERM, git removes its lock files and temporary files.
        """
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


def _wait_for_end(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait until the process ends, at most until the given time; return whether it ended."""
    seconds = max(limit - time.monotonic(), 0.01)
    if sys.platform == "linux":
        # Popen.wait with a timeout polls, which costs up to 50 ms for each call.
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
    """Write the next piece of the input; return the rest, and close the stream at its end."""
    try:
        pending = pending[os.write(stream.fileno(), pending[:_CHUNK]) :]
    except BrokenPipeError:
        pending = pending[:0]  # the program closed its input; its exit code is the reason
    if not pending:
        selector.unregister(stream.fileno())
        stream.close()
    return pending
