"""The daemon's TCP door as a program, a browser or an attacker uses it."""

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from docs.services import idle_router

from tests.e2e.support.instance import Instance

OPEN = {("GET", "/healthz"), ("GET", "/api/v1/healthz"), ("POST", "/api/v1/login")}
Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The stable code of an error, which has exactly one shape."""
        found = self.json()
        assert set(found) == {"error"}, found
        assert set(found["error"]) == {"code", "message", "hint", "fields"}, found
        assert self.headers["Content-Type"] == "application/json"
        return str(found["error"]["code"])


class Door:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        info = json.loads(instance.home.info.read_bytes())
        self.port: int = info["port"]
        self.host = f"127.0.0.1:{self.port}"
        self.origin = f"http://{self.host}"
        self.token = instance.home.token.read_text(encoding="ascii").strip()

    @property
    def bearer(self) -> tuple[str, str]:
        return ("Authorization", f"Bearer {self.token}")

    def ask(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes | None = None,
        hosts: Sequence[str] | None = None,
    ) -> Answer:
        """One request with exactly these headers, and these Host headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for host in [self.host] if hosts is None else hosts:
                connection.putheader("Host", host)
            for name, value in headers:
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def send(self, data: bytes) -> bytes:
        """Raw bytes, and the raw answer until the daemon closes or answers in full."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def log_in(self) -> tuple[str, str]:
        """A browser's session, as the header that carries it."""
        code = self.instance.post("/login-codes")["code"]
        answer = self.post_json("/api/v1/login", {"code": code}, [("Origin", self.origin)])
        assert answer.status == 204, answer.body
        return ("Cookie", answer.headers["Set-Cookie"].partition(";")[0])

    def post_json(self, path: str, body: Any, headers: Headers = ()) -> Answer:
        content = ("Content-Type", "application/json")
        return self.ask("POST", path, [content, *headers], json.dumps(body).encode())


@contextmanager
def open_door(directory: Path) -> Iterator[Door]:
    """A daemon of its own, for as long as this is open."""
    instance = Instance(directory / "home")
    instance.start()
    try:
        yield Door(instance)
    finally:
        instance.destroy()


@cache
def every_route(task_id: str = "task_0") -> list[tuple[str, str]]:
    """Every method and path that the router knows, with a task's id filled in."""
    return [
        (row.method, row.path.replace("{task_id}", task_id))
        for row in idle_router().list_operations()
        if row.method != "WEBSOCKET"
    ]
