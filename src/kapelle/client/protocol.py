"""The protocol between client and daemon, shared by both transports.

`http.py` sends requests blocking and with the standard library alone, `async_http.py` with httpx2
for asyncio.
"""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from kapelle.client.address import Address
from kapelle.domain.errors import (
    FieldProblem,
    KapelleError,
    Unauthorized,
    Unavailable,
    find_error_class,
)

TIMEOUT_S = 60.0
# The daemon sends a comment every few seconds when a stream has no events.
STREAM_SILENCE_S = 90.0
# Maximum time that one request waits for the end of a task or run.
LONG_POLL_S = 25.0
# Time that a waiting request may take in addition to the daemon's waiting time.
MORE_S = 30.0
# How long to wait for a daemon that went away, and the pause between two polls.
RETURN_S = 10.0
PAUSE_S = 0.2
# How often an idempotent request is sent.
TRIES = 4
EVENT_STREAM = "text/event-stream"
REPEAT_HINT = "The daemon may have done it: check before you repeat the request."

QueryParameters = dict[str, Any]


class ConnectionLost(Unavailable):
    """The daemon went away before it answered."""

    code = "connection_lost"


class NothingListens(Unavailable):
    """Nothing accepts connections at the address."""


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event."""

    kind: str
    data: dict[str, Any]
    id: str | None


class EventParser:
    """Parses the lines of a stream into events, by the rules of the HTML standard.

    An incomplete event at the end is dropped, as the standard demands.
    """

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._last_id: str | None = None

    def feed(self, raw: bytes) -> ServerEvent | None:
        """Parse one line; return the event that it completes, if any."""
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and "data" in self._fields:
            self._fields["data"] += "\n" + value
        elif name:
            self._fields[name] = value
        return None

    def _end(self) -> ServerEvent | None:
        fields = self._fields
        self._fields = {}
        if "data" not in fields:
            return None
        self._last_id = fields.get("id", self._last_id)
        kind = fields.get("event", "message")
        return ServerEvent(kind, _parse_data(fields["data"]), self._last_id)


def _parse_data(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"text": text}
    if isinstance(value, dict):
        return value
    return {"value": value}


class LineSplitter:
    """Splits the blocks of a body into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, block: bytes) -> list[bytes]:
        """Add a block; return the lines that are complete now."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        return lines


def target(path: str, query: QueryParameters | None = None) -> str:
    """Return the target of a request; parameters that are None are left out."""
    parameters: QueryParameters = {}
    for name, value in (query or {}).items():
        if isinstance(value, bool):
            parameters[name] = str(value).lower()
        elif value is not None:
            parameters[name] = value
    if not parameters:
        return f"/api/v1{path}"
    return f"/api/v1{path}?{urlencode(parameters, doseq=True)}"


def read_refusal(address: Address, status: int, reason: str, content: bytes) -> KapelleError:
    """Return the error in an answer; its code determines the class."""
    try:
        body = json.loads(content)["error"]
        code = str(body["code"])
        message = str(body["message"])
        hint = body.get("hint")
        fields = [_read_problem(one) for one in body.get("fields", ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        text = f"The daemon answered {status} {reason}."
        # When the daemon is stopped, its web server answers pending requests like this.
        if status >= 500:
            return ConnectionLost(text)
        return KapelleError(text)
    error = find_error_class(code)(message, hint=hint, fields=fields)
    error.code = code
    if isinstance(error, Unauthorized):
        error.args = (f"{address} did not accept the token from {address.token_origin}.",)
        error.hint = "`kapelle stop`, and the next command starts a daemon that knows it."
        if address.url is not None:
            error.hint = (
                "Set KAPELLE_TOKEN to that daemon's own, which is in the file `token` of its home,"
                " or unset KAPELLE_URL to use the local daemon."
            )
    return error


def _read_problem(field: dict[str, Any]) -> FieldProblem:
    return FieldProblem(
        tuple(field["path"]), field["message"], field["kind"], tuple(field["names"])
    )


def nothing_listens(address: Address, reason: str) -> NothingListens:
    """Return the error for an address that accepts no connections."""
    if address.url:
        return NothingListens(
            f"Nothing answers at {address.url_origin} {address} ({reason}).",
            hint=f"Check the address, or unset {address.url_origin} to use the local daemon.",
        )
    return NothingListens(
        "No daemon is running.",
        hint="`kapelle serve` starts it, and so does any command that needs it.",
    )


def no_answer(address: Address, timeout: float) -> Unavailable:
    """Return the error for a daemon that does not answer in time."""
    return Unavailable(
        f"The daemon at {address} did not answer within {timeout:.0f} s.",
        hint="`kapelle doctor` looks for the cause.",
    )


def daemon_stopped() -> Unavailable:
    """Return the error for a daemon that went away and did not come back."""
    return Unavailable(
        "The daemon was stopped; running agents go on without it.",
        hint="`kapelle serve` starts it again, and so does the next command.",
    )
