"""One program run to its end in a thread, bounded in time and output.

Not asyncio's own subprocesses: in Python 3.11, cancelling one while it starts never returns.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_CHUNK = 262_144
_STDERR_TAIL = 8192
_LAST_WORDS_S = 5.0


@dataclass(frozen=True)
class Command:
    """What to run, and within which bounds."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path
    stdin: bytes | None
    timeout_s: float
    max_output: int
    descriptors: tuple[int, ...]


@dataclass(frozen=True)
class Finished:
    code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    timed_out: bool


class Running:
    """A command under way; kill may be called from another thread, even before it has started."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._stdout: list[bytes] = []
        self._size = 0
        self._stderr = b""

    def kill(self) -> None:
        """Kill the whole process group."""
        self._killed = True
        # Not once it is reaped: the number could belong to another group by then.
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def run(self) -> Finished:
        """Start, talk, reap; raises OSError when the program cannot be started."""
        command = self._command
        with subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL if command.stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=command.cwd,
            env=command.environment,
            start_new_session=True,
            pass_fds=command.descriptors,
        ) as process:
            self._process = process
            if self._killed:
                self.kill()
            try:
                timed_out = self._talk(process)
            except BaseException:
                self.kill()
                raise
            code = process.wait()
        stdout = b"".join(self._stdout)[: command.max_output]
        return Finished(code, stdout, self._stderr, self._size > command.max_output, timed_out)

    def _talk(self, process: subprocess.Popen[bytes]) -> bool:
        """Feed and read until both outputs end; True when the time was up."""
        pending = memoryview(self._command.stdin or b"")
        give_up_at = time.monotonic() + self._command.timeout_s
        timed_out = False
        with selectors.DefaultSelector() as selector:
            _watch(selector, process.stdout, selectors.EVENT_READ, "stdout")
            _watch(selector, process.stderr, selectors.EVENT_READ, "stderr")
            _watch(selector, process.stdin, selectors.EVENT_WRITE, "stdin")
            while selector.get_map():
                left_s = give_up_at - time.monotonic()
                if left_s <= 0 and not timed_out:
                    timed_out = True
                    self.kill()
                ready = selector.select(_LAST_WORDS_S if self._killed else left_s)
                if self._killed and not ready:
                    break  # something outside the group holds the pipes
                for key, _ in ready:
                    if key.data == "stdin" and process.stdin is not None:
                        pending = _feed(selector, process.stdin, pending)
                    else:
                        self._read(selector, key.fd, key.data)
        return timed_out

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
            if self._size > self._command.max_output:
                self.kill()


def _watch(
    selector: selectors.BaseSelector, stream: IO[bytes] | None, event: int, name: str
) -> None:
    if stream is not None:
        os.set_blocking(stream.fileno(), False)
        selector.register(stream.fileno(), event, name)


def _feed(selector: selectors.BaseSelector, stream: IO[bytes], pending: memoryview) -> memoryview:
    try:
        pending = pending[os.write(stream.fileno(), pending[:_CHUNK]) :]
    except BrokenPipeError:
        pending = pending[:0]  # the program gave up early; its exit code tells why
    if not pending:
        selector.unregister(stream.fileno())
        stream.close()
    return pending
