"""One short question to a program, such as its version: what it prints, within bounds."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 65_536


def printed(argv: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float) -> str | None:
    """What a program writes to standard output; None when it has not done with it in time.

    It has no standard input, and its session, which is its own, is killed at the end. Blocks, so
    the daemon calls it in a thread. OSError if it cannot be started.
    """
    process = subprocess.Popen(
        argv,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout as stream:
            return _read(stream.fileno(), time.monotonic() + timeout_s)
    finally:
        # Before it is waited for, so that its number is still its own; macOS refuses the dead.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(descriptor: int, deadline: float) -> str | None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    said = b""
    while len(said) < _MOST_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not waiting.poll(left_s * 1000):
            return None
        block = os.read(descriptor, _MOST_BYTES)
        if not block:
            break
        said += block
    return said.decode("utf-8", "replace")
