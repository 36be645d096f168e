"""One program from its start to the moment when nothing of it is left, in the calling thread."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kapelle.domain.task import Exit
from kapelle.library.family import Family
from kapelle.library.stop import Stop
from kapelle.runner.shim.files import ERR, MARKER, OUT

_IN = "stdin"
_LINGER_S = 0.3
_LEFTOVER_GRACE_S = 2.0
_REAPED_S = 5.0


@dataclass(frozen=True, slots=True)
class Program:
    """What to run; its output goes to out.log and err.log in a directory that is its own."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    directory: Path
    stdin: bytes | None = None
    timeout_s: float | None = None
    grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended, and by whom if not by itself."""

    exit: Exit
    ended_by: Literal["timeout", "stop"] | None = None
    problem: str | None = None
    duration_s: float = 0.0


def execute(
    program: Program,
    stop: Stop,
    look: Callable[[], None] | None = None,
    every_s: float = 2.0,
) -> Ended:
    """Run a program to its end, to its time-out, or until it is to stop; look is called meanwhile.

    Whatever it started ends with it.
    """
    began = time.monotonic()
    try:
        process = _start(program)
    except (OSError, ValueError) as error:
        return Ended(Exit(kind="not_started"), problem=f"{program.argv[0]}: {error}")
    family = Family(process.pid, program.directory)
    woken = threading.Event()
    reaper = threading.Thread(target=_reap, args=(process, woken), daemon=True)
    reaper.start()
    left: list[int] = []
    ended_by = None
    by_itself = False
    try:
        with stop.calls(woken.set):
            ended_by = _see(process, woken, program.timeout_s, look, every_s)
            by_itself = ended_by is None
    finally:
        # Also after Ctrl-C, which comes here as an exception.
        left = _clear(family, program.grace_s, by_itself=by_itself)
    reaper.join(_REAPED_S)
    return Ended(
        _exit_of(process),
        ended_by,
        f"{len(left)} of its processes could not be killed" if left else None,
        time.monotonic() - began,
    )


def _start(program: Program) -> subprocess.Popen[bytes]:
    directory = program.directory
    stdin = directory / _IN
    if program.stdin is not None:
        stdin.write_bytes(program.stdin)
    # Files instead of pipes: any amount of output is survived, and nobody has to read it now.
    with (
        open(os.devnull if program.stdin is None else stdin, "rb") as source,
        open(directory / OUT, "wb") as out,
        open(directory / ERR, "wb") as err,
    ):
        return subprocess.Popen(
            list(program.argv),
            stdin=source,
            stdout=out,
            stderr=err,
            cwd=program.cwd,
            env={**program.env, MARKER: str(directory)},
            start_new_session=True,
        )


def _reap(process: subprocess.Popen[bytes], woken: threading.Event) -> None:
    process.wait()
    woken.set()


def _see(
    process: subprocess.Popen[bytes],
    woken: threading.Event,
    timeout_s: float | None,
    look: Callable[[], None] | None,
    every_s: float,
) -> Literal["timeout", "stop"] | None:
    """Wait for its end, or for a reason to end it."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        pause = left if look is None else every_s if left is None else min(left, every_s)
        awake = woken.wait(pause)
        if look is not None:
            look()
        if process.returncode is not None:
            return None
        if awake:
            return "stop"
        if deadline is not None and time.monotonic() >= deadline:
            return "timeout"


def _clear(family: Family, grace_s: float, *, by_itself: bool) -> list[int]:
    """End whatever is left; returns who could not be killed."""
    if by_itself:
        # What it started may be about to end as well.
        if family.ends_within(_LINGER_S):
            return []
        return family.end(min(grace_s, _LEFTOVER_GRACE_S))
    return family.end(grace_s)


def _exit_of(process: subprocess.Popen[bytes]) -> Exit:
    code = process.returncode
    if code is None:
        return Exit(kind="lost")
    return Exit(kind="signaled", signal=-code) if code < 0 else Exit(kind="exited", code=code)
