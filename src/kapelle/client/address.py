"""The address of a daemon: the unix socket of its home, or a URL with a token."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kapelle.domain.errors import InvalidInput, Unauthorized
from kapelle.home import Home, read_own


@dataclass(frozen=True)
class Address:
    """The address of a daemon; without a URL, the socket of the home.

    The token defaults to KAPELLE_TOKEN for a URL, and to the one in the home otherwise.
    """

    home: Home
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    url_origin: str = "KAPELLE_URL"

    @classmethod
    def find(
        cls,
        url: str | None = None,
        token: str | None = None,
        home: str | os.PathLike[str] | None = None,
    ) -> "Address":
        """Return the address from arguments, else from the environment.

        A home as an argument means its socket, whatever KAPELLE_URL is.
        """
        if home is None:
            place = Home.default()
        else:
            place = Home(Path(home).expanduser().absolute())
        if url is not None:
            return cls(place, url, token, url_origin="url")
        return cls(place, None if home else os.environ.get("KAPELLE_URL") or None, token)

    def __str__(self) -> str:
        return self.url or str(self.home.socket)

    def parts(self) -> tuple[str, str, int | None]:
        """Return scheme, host and port of the URL; raise InvalidInput if it has none."""
        try:
            parts = urlsplit(self.url or "")
            scheme = parts.scheme
            host = parts.hostname
            port = parts.port
        except ValueError:
            scheme = ""
            host = None
            port = None
        if scheme not in {"http", "https"} or not host:
            raise InvalidInput(
                f"{self.url_origin} is not an address: {self.url!r}.",
                hint="Write it like http://127.0.0.1:8470, or unset it to use the local socket.",
            )
        return scheme, host, port

    @property
    def base_path(self) -> str:
        if self.url:
            return urlsplit(self.url).path.rstrip("/")
        return ""

    @property
    def websocket_url(self) -> str:
        """Return the URL for WebSockets, without credentials, query and fragment."""
        parts = urlsplit(self.url or "")
        scheme = "wss" if parts.scheme == "https" else "ws"
        host = parts.netloc.rpartition("@")[2]
        return f"{scheme}://{host}{self.base_path}"

    def headers(self) -> dict[str, str]:
        token = self._explicit_token() or self._stored_token()
        if not (token.isascii() and token.isprintable()):
            raise InvalidInput(
                f"The token from {self.token_origin} contains characters that no token has.",
                hint="Copy it anew; it is one line of letters and digits.",
            )
        return {"Authorization": f"Bearer {token}"}

    @property
    def token_origin(self) -> str:
        """Return the source of the token: an argument, a variable or a file."""
        if self.token:
            return "token"
        if self._explicit_token():
            return "KAPELLE_TOKEN"
        return str(self.home.token)

    def _explicit_token(self) -> str:
        """Return the token argument, or for a URL the one in KAPELLE_TOKEN."""
        token = self.token
        if not token and self.url:
            token = os.environ.get("KAPELLE_TOKEN")
        return (token or "").strip()

    def _stored_token(self) -> str:
        try:
            return read_own(self.home.token).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            text = f"The daemon's token in {self.home.token} cannot be read."
            hint = "A running daemon writes it anew within seconds; only its owner may."
            if self.url is not None:
                text = f"{self.url_origin} is set, but there is no token for {self.url}."
                hint = "Set KAPELLE_TOKEN, or unset KAPELLE_URL to use the local daemon."
            raise Unauthorized(text, hint=hint) from None
