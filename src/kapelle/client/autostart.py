"""Starting the daemon in the background when none answers."""

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
    """Start a daemon and return when it accepts connections; pause is called between two looks."""
    for seconds in start_steps(home):
        pause(seconds)


def start_steps(home: Home) -> Iterator[float]:
    """Start a daemon, if none accepts connections; of many callers at once, one starts it.

    Yields how many seconds to wait before the next step, and ends when the daemon is there.
    """
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        if isinstance(error, FileExistsError):
            problem = "Not a directory"
        else:
            problem = str(error.strerror)
        advice = "Set KAPELLE_HOME to a directory of your own."
        raise InvalidInput(f"{home.root}: {problem}.", hint=advice) from None
    try:
        yield from _start_once(home)
    except OSError as error:
        # The client's own files cannot be written, for example in a home that is read-only.
        raise Unavailable(
            f"The daemon cannot be started: {error.filename or home.root}: {error.strerror}.",
            hint="Make the directory writable, or set KAPELLE_HOME to another one.",
        ) from None


def _start_once(home: Home) -> Iterator[float]:
    deadline = time.monotonic() + START_TIMEOUT_S
    with open(home.root / "start.lock", "ab") as lock:
        # Starting is expensive, so the others wait for the first one instead of starting in vain.
        while not _taken(lock, fcntl.LOCK_EX):
            if listens(Address(home)):
                return
            if time.monotonic() > deadline:
                raise _failed(home, "did not answer in time", [])
            yield PAUSE_S
        if not listens(Address(home)):
            yield from _start(home, deadline)


def _taken(lock: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(home: Home, deadline: float) -> Iterator[float]:
    if home.log.exists():
        log_began_at = home.log.stat().st_size
    else:
        log_began_at = 0
    process = _launch(home)
    # Whoever lives longer than the daemon is not to keep a zombie of it.
    threading.Thread(target=process.wait, daemon=True).start()
    while time.monotonic() < deadline:
        if listens(Address(home)):
            return
        if process.poll() is not None and lock_holder(home) is None:
            break
        yield PAUSE_S
    code = process.poll()
    if code is None:
        problem = "did not answer in time"
    else:
        problem = f"ended with exit code {code}"
    raise _failed(home, problem, log_lines(home, log_began_at)[-LOG_LINES:])


def lock_holder(home: Home) -> int | None:
    """The process that holds the home's lock, as only a daemon does."""
    try:
        with home.lock.open("rb") as lock:
            if _taken(lock, fcntl.LOCK_SH):
                return None
            return int(lock.read())
    except (OSError, ValueError):
        return None


def _launch(home: Home) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    # Only the platform's own home keeps its configuration elsewhere.
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


def _failed(home: Home, what: str, lines: list[str]) -> Unavailable:
    hint = f"The whole log is {home.log}; `kapelle doctor` looks for the cause."
    reason = why_it_gave_up(lines)
    if reason is not None:
        return Unavailable(f"The daemon could not start: {reason}", hint=hint)
    told = "".join(f"\n  {line}" for line in lines)
    if lines:
        log = f", and its log says:{told}"
    else:
        log = "."
    return Unavailable(f"The daemon was started but {what}{log}", hint=hint)


def why_it_gave_up(lines: list[str]) -> str | None:
    """The daemon's last words on one line, if the log ends with them; they may take several."""
    for start in range(len(lines) - 1, -1, -1):
        if _LOG_ENTRY.match(lines[start]):
            return None
        if lines[start].startswith("kapelle: "):
            return " ".join(line.strip() for line in lines[start:]).removeprefix("kapelle: ")
    return None


def log_lines(home: Home, began_at: int = 0) -> list[str]:
    """The last lines of the daemon's log behind a position."""
    try:
        with open(home.log, "rb") as stream:
            stream.seek(max(began_at, os.fstat(stream.fileno()).st_size - LOG_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]
