"""A bare web server to compare with, started and ended with a block."""

import http.client
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.daemon import Client
from bench.processes import started


@dataclass(frozen=True)
class BareServer:
    socket: Path
    pid: int
    ready_s: float


@contextmanager
def bare_server(directory: Path) -> Iterator[BareServer]:
    path = directory / "bare.sock"
    begun = time.monotonic()
    process = started([sys.executable, "-m", "bench.bare_server", str(path)])
    try:
        until_answered(path, "/constant")
        yield BareServer(path, process.pid, time.monotonic() - begun)
    finally:
        process.terminate()
        process.wait()
        path.unlink(missing_ok=True)


def until_answered(path: Path, route: str, limit_s: float = 60) -> None:
    """Ask until a server answers."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            with closing(Client(path, prefix="")) as client:
                client.get(route)
            return
        except (OSError, http.client.HTTPException):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
