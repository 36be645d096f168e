"""What the runner's tests share: launches, patience, and a look at what is left running."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from kapelle.runner.process_dir import Launch

PYTHON = sys.executable
SECRET = b"known to the tests"


def launch(process_dir: Path, argv: list[str], **changes: Any) -> Launch:
    """A launch with the usual settings."""
    settings: dict[str, Any] = {
        "cwd": process_dir.parent,
        "env": {"PATH": os.environ["PATH"]},
        "stdin": None,
        "timeout_s": None,
        "grace_s": 1.0,
        "redact": (),
        "label": "test",
        # The same in every process of a test, as if it were stored.
        "secret": SECRET,
    }
    return Launch(process_dir=process_dir, argv=argv, **{**settings, **changes})


def shell(process_dir: Path, script: str, **changes: Any) -> Launch:
    return launch(process_dir, ["sh", "-c", script], **changes)


def python(process_dir: Path, script: str, **changes: Any) -> Launch:
    return launch(process_dir, [PYTHON, "-I", "-S", "-c", script], **changes)


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait for something that another process does."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_of(directory: Path) -> list[psutil.Process]:
    """Every living process that has this directory in its arguments or its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = [*process.cmdline(), process.environ().get("KAPELLE_RUN_DIR", "")]
        except psutil.Error:
            continue
        if any(str(directory) in word for word in words):
            found.append(process)
    return found


# Two processes that leave the session, ignore SIGTERM and hold stdout open.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for number in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open(sys.argv[1], "a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(1000)
        os._exit(0)
"""


def stubborn(process_dir: Path, pids: Path, then: str, **changes: Any) -> Launch:
    """An agent with stubborn grandchildren, which then does what is said."""
    return launch(process_dir, [PYTHON, "-I", "-S", "-c", STUBBORN + then, str(pids)], **changes)


def noted_pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text("ascii").split()] if path.exists() else []
