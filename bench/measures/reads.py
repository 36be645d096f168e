"""Reading by the API when there are very many tasks."""

import time
from contextlib import closing

from bench.bare import bare_server
from bench.daemon import BenchDaemon, Client
from bench.filling import fill
from bench.report import Row, Run, spread

_TARGET_MS = 10


def measure(run: Run) -> list[Row]:
    count = 20_000 if run.quick else 100_000
    daemon = BenchDaemon(run.directory / "home", {"noop": ["true"]}, 4)
    fill(daemon.home, count)
    try:
        daemon.start()
        with (
            bare_server(run.directory) as server,
            closing(Client(daemon.home.socket)) as client,
            closing(Client(server.socket, prefix="")) as bare,
        ):
            return _rows(run, count, client, bare)
    finally:
        daemon.destroy()


def _rows(run: Run, count: int, client: Client, bare: Client) -> list[Row]:
    some_id = client.get("/tasks?limit=1000")["tasks"][-1]["id"]
    paths = ["/tasks?limit=50", "/tasks?status=failed", f"/tasks/{some_id}"]
    rows = []
    for path in paths:
        # In turn, so that whatever else the machine does falls on both.
        ours, limit = [], []
        for number in range(run.samples(200) + 10):
            seconds = _timed(client, path)
            constant = _timed(bare, "/constant")
            if number >= 10:
                ours.append(seconds)
                limit.append(constant)
        found, least = spread(ours), spread(limit)
        name = f"{count:,} tasks: {path.replace(some_id, '{id}')}, p95"
        beside = f"p50 {found['p50_ms']:.1f}; a constant: p95 {least['p95_ms']:.1f}"
        facts = {"ours": found, "bare": least}
        rows.append(Row(name, found["p95_ms"], "ms", _TARGET_MS, beside=beside, facts=facts))
    return rows


def _timed(client: Client, path: str) -> float:
    begun = time.monotonic()
    client.bytes("GET", path)
    return time.monotonic() - begun
