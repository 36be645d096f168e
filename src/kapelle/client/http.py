"""HTTP to the daemon: requests and event streams that outlast its restarts.

The command line uses it as it is and gets plain JSON; client.py makes typed answers of it.
"""

import json
import os
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, ClassVar
from urllib.parse import urlencode

from kapelle import __version__
from kapelle.client.address import Address
from kapelle.client.environment import with_shell
from kapelle.domain.errors import (
    FieldProblem,
    InvalidInput,
    KapelleError,
    Unauthorized,
    Unavailable,
    class_of,
)

TIMEOUT_S = 60.0
# A person is told after so long that no answer has come.
SLOW_S = 5.0
# The daemon sends a comment every few seconds when there is nothing to tell.
STREAM_SILENCE_S = 90.0
LONG_POLL_S = 25.0
RETURN_S = 10.0
PAUSE_S = 0.2
TRIES = 4
EVENT_STREAM = "text/event-stream"

QueryParameters = dict[str, Any]


class ConnectionLost(Unavailable):
    """The daemon went away before it answered."""

    code = "connection_lost"


class RequestCancelled(Exception):
    """The request was broken off because nobody wants its answer any more."""


class Cancellation:
    """Breaks off, from another thread, what the thread that holds it asks of the daemon."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requested = threading.Event()
        self._socket: socket.socket | None = None

    def request(self) -> None:
        self._requested.set()
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def hold(self, used: socket.socket | None) -> None:
        """Name the socket that is waited at, or None when it is given back."""
        with self._lock:
            self._socket = used
        if used is not None and self._requested.is_set():
            raise RequestCancelled

    def sleep(self, seconds: float) -> None:
        if self._requested.wait(seconds):
            raise RequestCancelled


# A thread that works for a coroutine has one of its own; any other thread has none to share.
cancellation: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def pause(seconds: float) -> None:
    """Sleep, unless what it is done for is broken off."""
    scope = cancellation.get()
    (time.sleep if scope is None else scope.sleep)(seconds)


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event."""

    kind: str
    data: dict[str, Any]
    id: str | None


class UnixConnection(HTTPConnection):
    """HTTP over the socket of a home."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def channel(address: Address, timeout: float) -> HTTPConnection:
    """A connection that is not open yet, over which requests go one after another."""
    if address.url is None:
        return UnixConnection(str(address.home.socket), timeout)
    scheme, host, port = address.parts()
    return (HTTPSConnection if scheme == "https" else HTTPConnection)(host, port, timeout=timeout)


class DaemonConnection:
    """Requests to one daemon, which is started when it is not there unless told otherwise.

    Threads may share it: each request has a socket of its own.
    """

    # Where a person is told what is unusual; a program has nobody to tell.
    tell: ClassVar[Callable[[str], object] | None] = None
    _has_told_version: ClassVar[bool] = False

    def __init__(self, address: Address | None = None, *, autostart: bool = True) -> None:
        self.address = address or Address.given()
        self._autostart = autostart and self.address.url is None

    def get(
        self, path: str, query: QueryParameters | None = None, timeout: float = TIMEOUT_S
    ) -> Any:
        return json.loads(self.get_bytes(path, query, timeout)[0])

    def get_bytes(
        self, path: str, query: QueryParameters | None = None, timeout: float = TIMEOUT_S
    ) -> tuple[bytes, Message]:
        """A body as it came, and its headers."""
        answer, response = self._ask("GET", target(path, query), timeout=timeout)
        return answer, response.headers

    def pages(self, path: str, query: QueryParameters) -> Generator[dict[str, Any], None, None]:
        """Every item of a list; a page is asked for when the one before it is used up."""
        cursor: str | None = None
        while True:
            page = self.get(path, {**query, "cursor": cursor})
            yield from page[path.rpartition("/")[2]]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def wait(
        self,
        path: str,
        query: QueryParameters,
        is_over: Callable[[Any], bool],
        limit_s: float | None,
    ) -> Any:
        """What a path tells that waits by itself, asked for until it is over or the time is up."""
        began = time.monotonic()
        while True:
            asked = time.monotonic()
            if limit_s is None:
                left = LONG_POLL_S
            else:
                left = limit_s - (asked - began)
            poll_s = round(max(0, min(left, LONG_POLL_S)), 3)
            found = self.get(path, {**query, "timeout_s": poll_s}, poll_s + 30)
            if is_over(found) or left <= 0:
                return found
            if time.monotonic() - asked < poll_s / 2:
                # What rests is told at once, also to whoever waits for its end.
                pause(min(PAUSE_S, poll_s))

    def post(
        self, path: str, body: Any = None, timeout: float = TIMEOUT_S, *, tries: int = 1
    ) -> Any:
        """A write is sent once, unless it leads to the same state: whether a lost one arrived, only
        the daemon knows."""
        try:
            answer, _ = self._ask("POST", target(path), body or {}, timeout=timeout, tries=tries)
        except ConnectionLost as error:
            error.hint = "It may have been done all the same: look before you ask again."
            raise
        if answer.strip():
            return json.loads(answer)
        return None

    def merge(self, path: str, body: Any, tell: Callable[[str], object] = str) -> Any:
        """Have something merged and wait for it, however long it takes; tell is told its phases."""
        while True:
            found = self.post(path, body, tries=TRIES)
            if found["status"] == "merged":
                return found
            tell(found["phase"])

    def put(self, path: str, body: Any, query: QueryParameters | None = None) -> Any:
        """A write that may be sent again, because it leads to the same state."""
        return json.loads(self._ask("PUT", target(path, query), body)[0])

    def delete(self, path: str, query: QueryParameters | None = None) -> Any:
        """A removal, which may be sent again."""
        return json.loads(self._ask("DELETE", target(path, query))[0])

    def create(self, path: str, body: Any, key: str | None = None) -> Any:
        """A write that may be sent again, because its key lets the daemon know it."""
        headers = {"Idempotency-Key": key or os.urandom(16).hex()}
        if self.address.url is None:
            body = with_shell(self.address.home, path, body)
        return json.loads(self._ask("POST", target(path), body, headers)[0])

    def stream(
        self, path: str, query: QueryParameters, *, endless: bool, last_id: str | None = None
    ) -> Generator[ServerEvent, None, None]:
        """Server-sent events; an endless stream is taken up again where it broke off."""
        headers = {"Accept": EVENT_STREAM}
        while True:
            if last_id is not None:
                headers["Last-Event-ID"] = last_id
            try:
                asked = ("GET", target(path, query), None, headers)
                with self._exchange(*asked, STREAM_SILENCE_S) as (response, _):
                    if not response.headers.get("content-type", "").startswith(EVENT_STREAM):
                        raise Unavailable(f"{self.address} does not send events.")
                    # Where the stream begins, should it break before its first event.
                    last_id = last_id or response.headers.get("x-last-event-id")
                    for event in parse(_lines(response)):
                        last_id = event.id or last_id
                        yield event
                        if event.kind == "end":
                            return
                if not endless:
                    return
            except ConnectionLost:
                if not endless:
                    raise
            self.wait_for_return()

    def exchange(
        self, path: str, body: Any, headers: dict[str, str], timeout: float
    ) -> Iterator[dict[str, Any]]:
        """The JSON objects that answer one, beside the API: none, one, or a stream of them."""
        with self._exchange("POST", path, body, headers, timeout) as (response, _):
            if response.headers.get("content-type", "").startswith(EVENT_STREAM):
                yield from (event.data for event in parse(_lines(response)))
            elif content := response.read().strip():
                yield json.loads(content)

    @contextmanager
    def websocket(self, path: str, query: QueryParameters) -> Iterator[tuple[socket.socket, Any]]:
        """A WebSocket behind its handshake: where frames are sent to, and where they come from."""
        headers = {
            "DaemonConnection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": b64encode(os.urandom(16)).decode(),
        }
        where = target(path, query)
        with self._exchange("GET", where, None, headers, TIMEOUT_S) as (response, used):
            yield used, response.fp

    def _ask(
        self,
        method: str,
        where: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT_S,
        tries: int = TRIES,
    ) -> tuple[bytes, HTTPResponse]:
        """The whole answer; asked for again when the daemon went away before it was there."""
        while True:
            try:
                with self._exchange(method, where, body, headers or {}, timeout) as (response, _):
                    return response.read(), response
            except ConnectionLost:
                tries -= 1
                if not tries:
                    raise
            self.wait_for_return()

    @contextmanager
    def _exchange(
        self, method: str, where: str, body: Any, headers: dict[str, str], timeout: float
    ) -> Iterator[tuple[HTTPResponse, Any]]:
        """A request, its response, which is read before this is left, and their socket."""
        if self.address.url is None:
            given = {}
        else:
            given = self.address.headers()
        content = None
        if body is not None:
            given["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        connection = self._new(timeout)
        response = None
        try:
            _hold(connection.sock)
            if self.address.url is None:
                given |= self.address.headers()  # which a daemon that was just started has made
            place = self.address.base_path + where
            _send(connection, method, place, content, given | headers)
            self._tell_version()
            with self._told_when_slow(timeout):
                response = connection.getresponse()
            if response.status >= 400:
                raise _refusal(self.address, response)
            yield response, connection.sock
        except (OSError, HTTPException) as error:
            if response is not None:
                raise ConnectionLost("The daemon went away in the middle of its answer.") from error
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"The daemon at {self.address} did not answer within {timeout:.0f} s.",
                    hint="`kapelle doctor` looks for the cause.",
                ) from None
            raise ConnectionLost("The daemon went away before it answered.") from error
        finally:
            _hold(None)
            if response is not None:
                response.close()
            connection.close()

    @contextmanager
    def _told_when_slow(self, timeout: float) -> Iterator[None]:
        """Tell a person that no answer comes, unless the request is one that waits by itself."""
        tell = DaemonConnection.tell
        if tell is None or timeout != TIMEOUT_S:
            yield
            return
        words = f"The daemon has not answered for {SLOW_S:.0f} s; still waiting."
        timer = threading.Timer(SLOW_S, tell, [words])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _tell_version(self) -> None:
        """Tell a person once that the daemon is of another version than this program."""
        if (
            DaemonConnection.tell is None
            or DaemonConnection._has_told_version
            or self.address.url is not None
        ):
            return
        DaemonConnection._has_told_version = True
        try:
            version = json.loads(self.address.home.info.read_bytes())["version"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if version != __version__:
            DaemonConnection.tell(
                f"The daemon is Kapelle {version}, this command {__version__}: `kapelle stop`, and "
                "the next command starts the new one; running agents go on."
            )

    def _new(self, timeout: float) -> HTTPConnection:
        """A connection that is open; the daemon is started for it if need be."""
        connection = channel(self.address, timeout)
        try:
            try:
                connection.connect()
            except OSError:
                connection.close()
                if not self._autostart:
                    raise
                from kapelle.client.autostart import ensure_daemon

                ensure_daemon(self.address.home)
                connection.connect()
        except OSError as error:
            connection.close()
            raise _nobody_there(self.address, error) from None
        return connection

    def wait_for_return(self) -> None:
        """After a break: go on when the daemon is back; start it again if it crashed.

        A daemon that was told to stop takes its socket away, and is not brought back behind
        the back of whoever stopped it.
        """
        problem = Unavailable(
            "The daemon was stopped; running agents go on without it.",
            hint="`kapelle serve` starts it again, and so does the next command.",
        )
        deadline = time.monotonic() + RETURN_S
        while time.monotonic() < deadline:
            pause(PAUSE_S)
            if self.address.url is None and not self.address.home.socket.exists():
                continue
            try:
                self._new(5).close()
            except Unavailable as error:
                problem = error
                continue
            return
        raise problem


def listens(address: Address) -> bool:
    """Whether somebody accepts connections there."""
    try:
        with closing(channel(address, 2)) as connection:
            connection.connect()
    except OSError:
        return False
    return True


def target(path: str, query: QueryParameters | None = None) -> str:
    """What is asked for, as it is sent; queries without a value are left out."""
    given = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in (query or {}).items()
        if value is not None
    }
    return f"/api/v1{path}" + ("?" + urlencode(given, doseq=True) if given else "")


def parse(lines: Iterable[bytes]) -> Iterator[ServerEvent]:
    """The events in a stream; one cut off in the middle is dropped, as the standard asks."""
    fields: dict[str, str] = {}
    last_id: str | None = None
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if "data" in fields:
                last_id = fields.get("id", last_id)
                yield ServerEvent(fields.get("event", "message"), _data(fields["data"]), last_id)
            fields = {}
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and "data" in fields:
            fields["data"] += "\n" + value
        elif name:
            fields[name] = value


def _data(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"text": text}
    if isinstance(value, dict):
        return value
    return {"value": value}


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    """The lines of a body as they come; several times faster than the response's own readline."""
    rest = b""
    while block := response.read1(1 << 20):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def _hold(used: socket.socket | None) -> None:
    """Let a cancellation know the socket that is waited at, or that there is none."""
    if (scope := cancellation.get()) is not None:
        scope.hold(used)


def _send(
    used: HTTPConnection, method: str, where: str, content: bytes | None, headers: dict[str, str]
) -> None:
    try:
        sent = {name: value.encode() for name, value in headers.items()}
        used.request(method, where, content, sent)
    except ValueError as error:
        raise InvalidInput(f"This cannot be sent: {error}.") from None


def _refusal(address: Address, response: HTTPResponse) -> KapelleError:
    """The error in an answer; its code says which class it has."""
    try:
        told = json.loads(response.read())["error"]
        code = str(told["code"])
        message = str(told["message"])
        hint = told.get("hint")
        fields = [_field_problem(one) for one in told.get("fields", ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        said = f"The daemon answered {response.status} {response.reason}."
        # Its web server breaks off what is still open when the daemon is stopped.
        if response.status >= 500:
            return ConnectionLost(said)
        return KapelleError(said)
    error = class_of(code)(message, hint=hint, fields=fields)
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


def _field_problem(answer: dict[str, Any]) -> FieldProblem:
    return FieldProblem(
        tuple(answer["path"]), answer["message"], answer["kind"], tuple(answer["names"])
    )


def _nobody_there(address: Address, error: OSError) -> Unavailable:
    if address.url:
        return Unavailable(
            f"Nothing answers at {address.url_origin} {address} ({error.strerror or error}).",
            hint=f"Check the address, or unset {address.url_origin} to use the local daemon.",
        )
    return Unavailable(
        "No daemon is running.",
        hint="`kapelle serve` starts it, and so does any command that needs it.",
    )
