"""A daemon in a home of its own, and a client that costs next to nothing."""

import http.client
import json
import socket
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
from tests.e2e.support.instance import Instance, UnixConnection

from bench.report import Run

_PREFIX = "/api/v1"


class BenchDaemon(Instance):
    """Configured by a file, as a person's daemon is: each variable would cost at every reading."""

    def __init__(self, home: Path, agents: dict[str, list[str]], max_attempts: int) -> None:
        super().__init__(home)
        # The machine may be loaded by others, which must not hold our tasks back.
        del self.env["KAPELLE_LIMITS__MAX_LOAD_PER_CORE"], self.env["KAPELLE_TASKS__GRACE_S"]
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = ["[limits]", f"max_attempts = {max_attempts}", "max_load_per_core = 0"]
        for name, command in agents.items():
            lines += [f"[agents.{name}]", f"command = {json.dumps(command)}"]
        self.home.config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def start(self, **extra: str) -> None:
        """A daemon as a person has it: in an interpreter of its own."""
        self.spawn_cold(**extra)
        self.await_ready()

    @property
    def main(self) -> psutil.Process:
        assert self.process is not None
        return psutil.Process(self.process.pid)

    @property
    def spawner(self) -> psutil.Process:
        return next(
            child
            for child in self.main.children()
            if any(word.endswith("spawner.py") for word in child.cmdline())
        )

    def shims(self) -> list[psutil.Process]:
        return self.spawner.children()

    def spec(self, agent: str) -> dict[str, Any]:
        return {
            "prompt": "p",
            "directory": str(self.home.root.parent),
            "agent": agent,
            "workspace": "in_place",
        }

    def count(self, status: str) -> int:
        """How many tasks have a status, by looking into the database and not by asking."""
        address = f"file:{self.home.database}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=10)) as connection:
            query = "SELECT count(*) FROM tasks WHERE status = ?"
            return int(connection.execute(query, [status]).fetchone()[0])

    def until(self, status: str, count: int, limit_s: float = 120) -> None:
        """Wait for so many tasks in a status."""
        deadline = time.monotonic() + limit_s
        while self.count(status) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"fewer than {count} tasks are {status}")
            time.sleep(0.005)


@contextmanager
def running(
    run: Run, agents: dict[str, list[str]] | None = None, max_attempts: int = 4
) -> Iterator[BenchDaemon]:
    """A daemon that has run one task already, so that nothing is loaded for the first time."""
    home = Path(tempfile.mkdtemp(dir=run.directory)) / "home"
    daemon = BenchDaemon(home, {"noop": ["true"], **(agents or {})}, max_attempts)
    try:
        daemon.start()
        with closing(Client(daemon.home.socket)) as client:
            task = client.post("/tasks", daemon.spec("noop"))
            client.get(f"/tasks/{task['id']}/wait?timeout_s=30")
        yield daemon
    finally:
        daemon.destroy()


class Client:
    """One connection that is kept alive."""

    def __init__(self, path: Path, prefix: str = _PREFIX) -> None:
        self._connection: http.client.HTTPConnection = UnixConnection(path, 120)
        self._prefix = prefix
        self._headers = {"Authorization": bearer(path)} if prefix else {}

    def close(self) -> None:
        self._connection.close()

    def bytes(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        headers |= self._headers
        self._connection.request(method, self._prefix + path, data, headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {content[:500]!r}")
        return content

    def get(self, path: str) -> Any:
        return json.loads(self.bytes("GET", path))

    def post(self, path: str, body: Any) -> Any:
        return json.loads(self.bytes("POST", path, body))


def bearer(path: Path) -> str:
    """What a request to the daemon with this socket must carry."""
    return f"Bearer {(path.parent / 'token').read_text(encoding='ascii')}"


def raw_post(path: str, body: Any, token: str) -> bytes:
    """A whole request, made beforehand so that sending it costs no time."""
    data = json.dumps(body).encode()
    head = (
        f"POST {_PREFIX}{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def raw_connection(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(120)
    connection.connect(str(path))
    return connection
