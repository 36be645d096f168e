"""Start the daemon in the background when none answers."""

import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

from kapelle.client.address import Address
from kapelle.client.http import listens
from kapelle.domain.errors import InvalidInput, Unavailable
from kapelle.home import Home

START_TIMEOUT_S = 20.0
PAUSE_S = 0.05
LOG_LINES = 8
LOG_BYTES = 20_000
_LOG_ENTRY = re.compile(r"\d{4}-\d\d-\d\d ")


def ensure_daemon(home: Home, pause: Callable[[float], object] = time.sleep) -> None:
    """Start a daemon and return when it accepts connections; wait between polls with pause."""
    for seconds in start_steps(home):
        pause(seconds)


def start_steps(home: Home) -> Iterator[float]:
    """Start a daemon if none accepts connections; of concurrent callers, one starts it.

    Yield the seconds to wait before the next step, and return when the daemon is ready. Raise
    Unavailable if it does not start.
    """
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        problem = str(error.strerror)
        if isinstance(error, FileExistsError):
            problem = "Not a directory"
        advice = "Set KAPELLE_HOME to a directory of your own."
        raise InvalidInput(f"{home.root}: {problem}.", hint=advice) from None
    try:
        yield from _start_once(home)
    except OSError as error:
        # The client cannot write its own files, for example in a read-only home.
        raise Unavailable(
            f"The daemon cannot be started: {error.filename or home.root}: {error.strerror}.",
            hint="Make the directory writable, or set KAPELLE_HOME to another one.",
        ) from None


def _start_once(home: Home) -> Iterator[float]:
    deadline = time.monotonic() + START_TIMEOUT_S
    with open(home.root / "start.lock", "ab") as lock:
        # Starting is expensive, so the other callers wait for the first one.
        while not _try_lock(lock, fcntl.LOCK_EX):
            if listens(Address(home)):
                return
            if time.monotonic() > deadline:
                raise _start_failure(home, "did not answer in time", [])
            yield PAUSE_S
        if not listens(Address(home)):
            yield from _start(home, deadline)


def _try_lock(lock: IO[bytes], mode: int) -> bool:
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(home: Home, deadline: float) -> Iterator[float]:
    log_start = home.log.stat().st_size if home.log.exists() else 0
    process = _launch(home)
    # Reaps the daemon when it ends, so that a long-lived client keeps no zombie.
    threading.Thread(target=process.wait, daemon=True).start()
    while time.monotonic() < deadline:
        if listens(Address(home)):
            return
        if process.poll() is not None and lock_holder(home) is None:
            break
        yield PAUSE_S
    code = process.poll()
    problem = "did not answer in time"
    if code is not None:
        problem = f"ended with exit code {code}"
    raise _start_failure(home, problem, log_lines(home, log_start)[-LOG_LINES:])


def lock_holder(home: Home) -> int | None:
    """Return the id of the process that holds the home's lock: the daemon; None if none does."""
    try:
        with home.lock.open("rb") as lock:
            if _try_lock(lock, fcntl.LOCK_SH):
                return None
            return int(lock.read())
    except (OSError, ValueError):
        return None


def _launch(home: Home) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    # The platform's own home keeps its configuration elsewhere; the daemon finds both by itself.
    if home.config_directory is None:
        environment["KAPELLE_HOME"] = str(home.root)
    descriptor = os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "kapelle.daemon"],
            stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor,
            cwd="/", env=environment, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(descriptor)


def _start_failure(home: Home, problem: str, lines: list[str]) -> Unavailable:
    hint = f"The whole log is {home.log}; `kapelle doctor` looks for the cause."
    reason = why_it_gave_up(lines)
    if reason is not None:
        return Unavailable(f"The daemon could not start: {reason}", hint=hint)
    message = f"The daemon was started but {problem}"
    if not lines:
        return Unavailable(f"{message}.", hint=hint)
    return Unavailable("\n  ".join([f"{message}. The end of its log:", *lines]), hint=hint)


def why_it_gave_up(lines: list[str]) -> str | None:
    """Return the daemon's final error in one line, if the log ends with one."""
    for start in range(len(lines) - 1, -1, -1):
        if _LOG_ENTRY.match(lines[start]):
            return None
        if lines[start].startswith("kapelle: "):
            return " ".join(line.strip() for line in lines[start:]).removeprefix("kapelle: ")
    return None


def log_lines(home: Home, start: int = 0) -> list[str]:
    """Return the last lines of the daemon's log after a position."""
    try:
        with open(home.log, "rb") as stream:
            stream.seek(max(start, os.fstat(stream.fileno()).st_size - LOG_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]
