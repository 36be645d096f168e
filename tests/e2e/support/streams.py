"""Server-sent events as a client reads them, and stops reading them."""

import http.client
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from tests.e2e.support.instance import Instance


@dataclass(frozen=True)
class Sent:
    id: str
    kind: str
    data: str


class Stream:
    """One connection to a stream, over the unix socket; iterate over what it sends."""

    def __init__(
        self, instance: Instance, path: str, last_id: str | None = None, timeout_s: float = 20
    ) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        (token,) = instance.bearer.values()
        extra = f"Authorization: {token}\r\n"
        extra += f"Last-Event-ID: {last_id}\r\n" if last_id else ""
        request = f"GET /api/v1{path} HTTP/1.1\r\nHost: kapelle\r\n{extra}\r\n"
        try:
            self._socket.connect(str(instance.home.socket))
            self._socket.sendall(request.encode("latin-1"))
            self.response = http.client.HTTPResponse(self._socket)
            self.response.begin()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.response.close()
        self._socket.close()

    def __iter__(self) -> Iterator[Sent]:
        fields: dict[str, str] = {}
        while line := self.response.readline():
            text = line.decode().rstrip("\n").rstrip("\r")
            if text:
                name, _, value = text.partition(": ")
                fields[name] = value
            elif "data" in fields:
                yield Sent(fields.get("id", ""), fields["event"], fields["data"])
                fields = {}


def everything(instance: Instance, path: str) -> list[Sent]:
    """A stream that ends by itself, from beginning to end."""
    with Stream(instance, path) as stream:
        assert stream.response.status == 200, stream.response.read()
        return list(stream)
