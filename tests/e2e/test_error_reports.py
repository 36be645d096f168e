"""The setting log.sentry_dsn: internal errors of the daemon are sent, without secrets."""

import gzip
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.instance import ApiError, Instance, pauses

SECRET = "correct-horse-battery"


class Sink(ThreadingHTTPServer):
    """A Sentry server on this machine that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.events: list[dict[str, Any]] = []
        self.raw = ""

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self.server_port}/7"


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Sink)
        self.server.raw += body.decode()
        for line in body.decode().splitlines():
            item = json.loads(line)
            if "exception" in item:
                self.server.events.append(item)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Instance]:
    instance = Instance(tmp_path / "home", WEATHER_API_KEY=SECRET)
    try:
        yield instance
    finally:
        instance.destroy()


def _break_row(daemon: Instance, repository: Path) -> str:
    """Make a task whose row nobody can read, with a secret in it."""
    task_id = daemon.play('[[do]]\nresult = "done"', repository)
    assert daemon.wait(task_id)["status"] == "completed"
    with closing(sqlite3.connect(daemon.home.database)) as connection:
        connection.execute("UPDATE tasks SET status = ? WHERE id = ?", (SECRET, task_id))
        connection.commit()
    return task_id


def test_an_internal_error_is_sent_without_secrets(
    daemon: Instance, repository: Path, sink: Sink
) -> None:
    daemon.cli("config", "set", "log.sentry_dsn", sink.dsn, check=True)
    daemon.start()
    task_id = _break_row(daemon, repository)
    for _ in range(2):
        with pytest.raises(ApiError) as refused:
            daemon.task(task_id)
        assert refused.value.status == 500
    for _ in pauses(20):
        if sink.events:
            break
    daemon.cli("stop", check=True)
    errors = [event for event in sink.events if event["logger"] == "kapelle.api"]
    assert len(errors) == 1
    assert errors[0]["release"].startswith("kapelle@")
    frames = errors[0]["exception"]["values"][-1]["stacktrace"]["frames"]
    assert any(frame["module"].startswith("kapelle.") for frame in frames)
    assert SECRET in daemon.home.log.read_text()
    for private in (SECRET, str(Path(__file__).parents[2]), '"vars"', '"context_line"'):
        assert private not in sink.raw


def test_the_variable_counts_and_a_false_address_stops_nothing(
    daemon: Instance, sink: Sink
) -> None:
    daemon.env["SENTRY_DSN"] = sink.dsn
    daemon.start()
    assert "are reported to 127.0.0.1" in daemon.home.log.read_text()
    daemon.stop()
    daemon.env["SENTRY_DSN"] = "nonsense"
    daemon.start()
    assert "the DSN of Sentry is invalid" in daemon.home.log.read_text()
    assert sink.raw == ""


def test_a_repository_cannot_name_the_address(
    kapelle: Instance, repository: Path, sink: Sink
) -> None:
    config = repository / ".kapelle" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'[log]\nsentry_dsn = "{sink.dsn}"\n')
    refused = kapelle.cli("run", "x", "--agent", "rehearsal", cwd=repository)
    assert refused.returncode == 2
    assert "log cannot be set here" in refused.stderr
