"""From a note to whoever waits for it, from a lock's release to the next holder; a tool's call."""

import json
import time
from contextlib import closing
from dataclasses import replace

from tests.e2e.support.instance import UnixConnection
from tests.e2e.support.repositories import make_repository

from bench.daemon import BenchDaemon, bearer, raw_connection, raw_post, running
from bench.report import Row, Run, spread
from kapelle.domain.ids import make_attempt_token

# Each is an event, from a change to the one whom it concerns.
_TARGET_MS = 20
_WATCH = (
    "GET /api/v1/notes/watch?keys=n&after={} HTTP/1.1\r\nHost: localhost\r\n"
    "Authorization: {}\r\n\r\n"
)


def notes(run: Run) -> list[Row]:
    told = []
    with running(run) as daemon:
        token = bearer(daemon.home.socket)
        changed = raw_post("/notes", {"key": "n", "value": "changed"}, token)
        for _ in range(run.samples(60)):
            version = daemon.post("/notes", {"key": "n", "value": "begun"})["version"]
            told.append(_answered(daemon, _WATCH.format(version, token).encode(), changed))
    return [_row("note → watcher, p95", told)]


def locks(run: Run) -> list[Row]:
    """A person hands a file to an attempt, which gives it back."""
    told = []
    with running(run, {"sleeper": ["sleep", "600"]}) as daemon:
        place = str(make_repository(run.directory / "repository"))
        task = daemon.submit("p", place, agent="sleeper", workspace="in_place")
        attempt = daemon.wait_for_status(task, "running")["attempts"][0]["id"]
        own = make_attempt_token(daemon.home.token.read_text(encoding="ascii"), attempt)
        wanted = raw_post("/locks", {"paths": ["a"]}, f"Bearer {own}")
        held = {"paths": ["a"], "directory": place}
        freed = raw_post("/locks/release", held, bearer(daemon.home.socket))
        for _ in range(run.samples(60)):
            daemon.post("/locks", held)
            told.append(_answered(daemon, wanted, freed))
            daemon.post("/locks/release", held)
        daemon.post(f"/tasks/{task}/cancel")
    return [_row("lock: release → next holder, p95", told)]


def mcp(run: Run) -> list[Row]:
    """A tool of MCP, and beside it the route that it stands for, on connections that are kept."""
    asked = {"name": "task_list", "arguments": {"limit": 10}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
    tool: list[float] = []
    route: list[float] = []
    with running(run) as daemon, closing(UnixConnection(daemon.home.socket, 120)) as connection:
        head = {"Authorization": bearer(daemon.home.socket), "Content-Type": "application/json"}
        head |= {"Accept": "application/json, text/event-stream"}
        for number in range(run.samples(100) + 10):
            for target, body, told in (
                ("/mcp", json.dumps(call), tool), ("/api/v1/tasks?limit=10", None, route)
            ):  # fmt: skip
                begun = time.monotonic()
                connection.request("POST" if body else "GET", target, body, head)
                answer = connection.getresponse()
                if b"task_" not in answer.read():
                    raise RuntimeError(f"{target} was answered with {answer.status}")
                if number >= 10:
                    told.append(time.monotonic() - begun)
    row = _row("MCP tool call, p95", tool)
    return [replace(row, beside=f"{row.beside}; its route: p95 {spread(route)['p95_ms']:.1f}")]


def _row(name: str, told: list[float]) -> Row:
    found = spread(told)
    beside = f"p50 {found['p50_ms']:.1f}"
    return Row(name, found["p95_ms"], "ms", _TARGET_MS, False, beside, found)


def _answered(daemon: BenchDaemon, waits: bytes, change: bytes) -> float:
    """Seconds from sending a change until the one who waits for it has its answer."""
    path = daemon.home.socket
    with closing(raw_connection(path)) as waiting, closing(raw_connection(path)) as changing:
        waiting.sendall(waits)
        time.sleep(0.05)
        begun = time.monotonic()
        changing.sendall(change)
        answer = waiting.recv(65536)
        passed = time.monotonic() - begun
        changing.recv(65536)
    if b" 200 " not in answer:
        raise RuntimeError(f"the one who waits was refused: {answer!r}")
    return passed
