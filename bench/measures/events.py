"""From a change to the subscriber who is told of it."""

import select
import socket
import time
from contextlib import closing

from bench.daemon import BenchDaemon, bearer, raw_connection, raw_post, running
from bench.report import Row, Run, spread

_TARGET_MS = 20
_SUBSCRIBE = "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\r\n"
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
