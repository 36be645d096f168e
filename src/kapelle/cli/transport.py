"""Connections to the daemon: its unix socket, or a URL with a token."""

import http.client
import os
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from kapelle.domain.errors import InvalidInput, Unauthorized
from kapelle.home import Home


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True)
class Address:
    """Where the daemon listens; without a URL it is the home's own socket."""

    home: Home
    url: str | None = None

    @classmethod
    def from_environment(cls) -> "Address":
        return cls(Home.default(), os.environ.get("KAPELLE_URL") or None)

    def __str__(self) -> str:
        return self.url or str(self.home.socket)

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        if self.url is None:
            return UnixConnection(str(self.home.socket), timeout)
        scheme, host, port = self._parts()
        if scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _parts(self) -> tuple[str, str, int | None]:
        try:
            parts = urlsplit(self.url or "")
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError:
            scheme, host, port = "", None, None
        if scheme not in {"http", "https"} or not host:
            raise InvalidInput(
                f"KAPELLE_URL is not an address: {self.url!r}.",
                hint="Write it like http://127.0.0.1:8470, or unset it to use the local socket.",
            )
        return scheme, host, port

    @property
    def base_path(self) -> str:
        return urlsplit(self.url).path.rstrip("/") if self.url else ""

    def headers(self) -> dict[str, str]:
        """The socket's file mode is its key; a URL needs a token."""
        if self.url is None:
            return {}
        token = os.environ.get("KAPELLE_TOKEN", "").strip() or self._stored_token()
        if not (token.isascii() and token.isprintable()):
            raise InvalidInput(
                f"The token from {self.token_origin} holds characters that no token has.",
                hint="Copy it anew; it is one line of letters and digits.",
            )
        return {"Authorization": f"Bearer {token}"}

    @property
    def token_origin(self) -> str:
        """Where the token comes from, in words that do not show it."""
        named = os.environ.get("KAPELLE_TOKEN", "").strip()
        return "KAPELLE_TOKEN" if named else str(self.home.token)

    def _stored_token(self) -> str:
        try:
            return self.home.token.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise Unauthorized(
                f"KAPELLE_URL is set, but there is no token for {self.url}.",
                hint="Set KAPELLE_TOKEN, or unset KAPELLE_URL to use the local daemon.",
            ) from None
