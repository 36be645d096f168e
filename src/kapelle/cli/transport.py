"""Connections of the command line to the daemon: its unix socket, or a URL."""

import http.client
import socket
import ssl

from kapelle.client.address import Address


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connection_to(address: Address, timeout: float) -> http.client.HTTPConnection:
    """A connection that is not open yet."""
    if address.url is None:
        return UnixConnection(str(address.home.socket), timeout)
    scheme, host, port = address.parts()
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    return http.client.HTTPConnection(host, port, timeout=timeout)
