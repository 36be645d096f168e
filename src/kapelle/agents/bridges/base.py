"""Code that bridges share: printing events, the error that ends an attempt, checking URLs."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from kapelle.agents.events import AgentEvent, EventKind


def emit(
    kind: EventKind, text: str = "", name: str = "", data: Mapping[str, Any] | None = None
) -> None:
    """Print one event, in ASCII, so that no locale and no half of a surrogate pair can break it."""
    print(json.dumps(AgentEvent(kind, text, name, data or {}).to_json()), flush=True)


class LinePrinter:
    """Prints a text that arrives in pieces in whole lines."""

    def __init__(self) -> None:
        self._rest = ""

    def add(self, piece: str) -> None:
        lines, _, self._rest = (self._rest + piece).rpartition("\n")
        if lines:
            emit("text", lines)

    def flush(self) -> None:
        """Print the incomplete last line."""
        if self._rest.strip():
            emit("text", self._rest)
        self._rest = ""


class BridgeFailed(Exception):
    """The error that ends an attempt; name is a FailureClass if it is known, data is ErrorData."""

    def __init__(self, text: str, name: str = "", **data: Any) -> None:
        super().__init__(text)
        self.name = name
        self.data = {key: value for key, value in data.items() if value is not None}

    def emit(self) -> None:
        emit("error", str(self), self.name, self.data)


def is_address(url: str) -> bool:
    """Tell whether a URL can be used for requests.

    A URL with a password is refused, because logs show URLs.
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        return False
    is_http = parts.scheme in {"http", "https"} and bool(parts.hostname)
    return is_http and has_port and "@" not in parts.netloc
