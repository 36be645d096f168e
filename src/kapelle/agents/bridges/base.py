"""What bridges share: event lines, the error that ends an attempt, what an address is."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from kapelle.agents.events import AgentEvent, EventKind


def emit(
    kind: EventKind, text: str = "", name: str = "", data: Mapping[str, Any] | None = None
) -> None:
    """Print one event; ASCII only, so that neither locale nor half a surrogate pair matters."""
    print(json.dumps(AgentEvent(kind, text, name, data or {}).to_json()), flush=True)


class LinePrinter:
    """A text that comes in pieces, printed in whole lines."""

    def __init__(self) -> None:
        self._begun = ""

    def add(self, piece: str) -> None:
        lines, _, self._begun = (self._begun + piece).rpartition("\n")
        if lines:
            emit("text", lines)

    def flush(self) -> None:
        """Print the line that was not yet whole."""
        if self._begun.strip():
            emit("text", self._begun)
        self._begun = ""


class BridgeFailed(Exception):
    """Why there is no result: name is a FailureClass where that is certain, data is ErrorData."""

    def __init__(self, text: str, name: str = "", **data: Any) -> None:
        super().__init__(text)
        self.name = name
        self.data = {key: value for key, value in data.items() if value is not None}

    def emit(self) -> None:
        emit("error", str(self), self.name, self.data)


def is_address(url: str) -> bool:
    """Whether requests can go to it; a password in it is refused, for logs show addresses."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return bool(fits) and "@" not in parts.netloc and is_plain
