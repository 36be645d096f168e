"""From a change to the subscriber who is told of it."""

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from bench.daemon import BenchDaemon, Client, bearer, raw_connection, raw_post, running
from bench.report import Row, Run, percentile, spread

_TARGET_MS = 20
_SUBSCRIBE = "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\r\n"
_MOST_LATE_MS = 200
_SUBSCRIBERS, _TASKS = 100, 20
# Tasks are as fast with subscribers as without them, but for what a machine's noise is.
_NOISE = 1.2
_MARK = b"event: task.created"


def measure(run: Run) -> list[Row]:
    told, answered = [], []
    with running(run) as daemon, closing(raw_connection(daemon.home.socket)) as stream:
        stream.sendall(_SUBSCRIBE.format(bearer(daemon.home.socket)).encode())
        stream.recv(65536)
        time.sleep(0.2)
        for number in range(run.samples(60)):
            event_s, answer_s = _sample(daemon, stream)
            told.append(event_s)
            answered.append(answer_s)
            daemon.until("completed", number + 2)
            time.sleep(0.05)
            stream.recv(1 << 20)
    found, answer = spread(told), spread(answered)
    beside = f"p50 {found['p50_ms']:.1f}; answer to the request itself: p95 {answer['p95_ms']:.1f}"
    facts = {"event": found, "answer": answer}
    name = "request → event at the subscriber, p95"
    return [Row(name, found["p95_ms"], "ms", _TARGET_MS, beside=beside, facts=facts)]


def _sample(daemon: BenchDaemon, stream: socket.socket) -> tuple[float, float]:
    """Seconds until the event came, and until the answer did, from sending the request on."""
    request = raw_post("/tasks", daemon.spec("noop"), bearer(daemon.home.socket))
    with closing(raw_connection(daemon.home.socket)) as connection:
        begun = time.monotonic()
        connection.sendall(request)
        event_s: float | None = None
        answer_s: float | None = None
        seen = b""
        while event_s is None or answer_s is None:
            waited = [stream] if answer_s is not None else [stream, connection]
            ready, _, _ = select.select(waited, [], [], 10)
            now = time.monotonic() - begun
            if not ready:
                raise TimeoutError("the event did not come")
            if stream in ready:
                seen += stream.recv(65536)
                event_s = now if event_s is None and _MARK in seen else event_s
            if connection in ready:
                connection.recv(65536)
                answer_s = now
    return event_s, answer_s


def crowd(run: Run) -> list[Row]:
    """20 tasks while 100 follow the history, and while nobody does, in turn."""
    alone, followed = [], []
    late_ms: list[float] = []
    with running(run, max_attempts=_TASKS) as daemon:
        for _ in range(run.samples(20)):
            alone.append(_tasks(daemon))
            with _followed(daemon) as told:
                followed.append(_tasks(daemon))
            late_ms += told["late_ms"]
            if told["everything"] != _SUBSCRIBERS:
                raise RuntimeError(f"only {told['everything']} were told everything")
    without, with_them = percentile(alone, 50), percentile(followed, 50)
    facts = {"alone": spread(alone), "followed": spread(followed)}
    of = f"{_TASKS} tasks with {_SUBSCRIBERS:,} subscribers"
    beside = f"{with_them:.2f} s, {without:.2f} s with none"
    ratio = Row(f"{of}: times as long", with_them / without, "", _NOISE, False, beside, facts)
    late = percentile(late_ms, 95)
    return [ratio, Row(f"{of}: event at the last one, p95", late, "ms", _MOST_LATE_MS)]


def _tasks(daemon: BenchDaemon) -> float:
    """Seconds that some tasks take from the first request to the last end."""
    before = daemon.count("completed")
    begun = time.monotonic()
    with closing(Client(daemon.home.socket)) as client:
        for _ in range(_TASKS):
            client.post("/tasks", daemon.spec("noop"))
    daemon.until("completed", before + _TASKS)
    return time.monotonic() - begun


@contextmanager
def _followed(daemon: BenchDaemon) -> Iterator[dict[str, Any]]:
    """While many follow the history; filled at the end with what they were told."""
    path = str(daemon.home.socket)
    module = [sys.executable, "-m", "bench.subscribers", path, bearer(daemon.home.socket)]
    module.append(str(_SUBSCRIBERS))
    told: dict[str, Any] = {}
    with subprocess.Popen(module, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
        assert crowd.stdin
        assert crowd.stdout
        crowd.stdout.readline()
        time.sleep(1)
        yield told
        time.sleep(1)
        crowd.stdin.close()
        told |= json.loads(crowd.stdout.readline())
    time.sleep(0.5)
