"""Strangers at the door, who have no token: owners notice nothing of them."""

import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.e2e.support.door import Door
from tests.e2e.support.instance import ApiError, Instance

_CONNECTIONS, _BODIES = 1020, 200


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Door]:
    """A daemon that may open 1,024 files and no more."""
    instance = Instance(tmp_path / "home")
    instance.home.root.mkdir()
    with instance.home.log.open("ab") as log:
        instance.process = subprocess.Popen(
            [sys.executable, "-m", "kapelle.daemon"],
            env=instance.env,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024)),
        )
    try:
        instance.await_ready()
        yield Door(instance)
    finally:
        instance.destroy()


def test_half_open_connections_and_held_bodies_are_not_noticed(narrow: Door) -> None:
    instance = narrow.instance
    assert instance.process is not None
    process = psutil.Process(instance.process.pid)
    before = process.memory_info().rss
    head = f"POST /api/v1/login HTTP/1.1\r\nHost: {narrow.host}\r\n"
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n100000\r\n".encode() + b"x" * 100_000
    with ExitStack() as stack:
        for number in range(_CONNECTIONS):
            data = b"GET /healthz HTTP/1.1\r\n" if number >= _BODIES else chunked
            connection = socket.create_connection(("127.0.0.1", narrow.port), timeout=10)
            stack.enter_context(connection)
            try:
                connection.sendall(data)
            except OSError:  # it has been refused, and others were given its place
                assert number < _BODIES
        begun = time.monotonic()
        assert instance.wait(instance.submit("hello"))["status"] == "completed"
        for _ in range(10):
            assert narrow.ask("GET", "/api/v1/tasks", [narrow.bearer]).status == 200
            assert instance.get("/healthz")["status"] == "ok"
        assert time.monotonic() - begun < 10
        assert process.num_fds() < 1024 * 2 // 3
        assert process.memory_info().rss - before < 40_000_000
    assert instance.home.log.stat().st_size < 20_000


def test_the_file_limit_is_raised(narrow: Door) -> None:
    assert narrow.instance.process is not None
    found = resource.prlimit(narrow.instance.process.pid, resource.RLIMIT_NOFILE)
    assert found == (1024, 1024)


def test_the_unix_socket_wants_the_token(kapelle: Instance) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(ApiError) as refused:
            kapelle.call("GET", "/tasks", headers=headers)
        assert refused.value.status == 401
    assert kapelle.get("/tasks")["tasks"] == []
    assert json.loads(kapelle.cli("list", "--json", check=True).stdout) is not None


def test_a_token_that_is_not_the_daemons_is_said_so(kapelle: Instance) -> None:
    kapelle.home.token.write_text("x" * 43, encoding="ascii")
    done = kapelle.cli("list")
    assert done.returncode == 2
    assert "did not accept the token from" in done.stderr


def test_nobody_sends_more_than_a_kilobyte_without_a_token(kapelle: Instance) -> None:
    door = Door(kapelle)
    answer = door.ask("POST", "/api/v1/login", body=b"x" * 1001)
    assert (answer.status, answer.code) == (413, "too_large")
    assert door.post_json("/api/v1/login", {"code": "x"}).status != 413
