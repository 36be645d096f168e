"""Blocking HTTP to the daemon: requests and event streams that outlast its restarts.

The command line uses it as it is and gets plain JSON; work.py makes typed answers of it. It is made
of the standard library, because importing httpx2 costs as much processor time as the whole of
`kapelle list`: see docs/adr/022-two-transports-of-the-client.md.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, ClassVar

from kapelle import __version__
from kapelle.client.address import Address
from kapelle.client.environment import with_shell
from kapelle.client.protocol import (
    EVENT_STREAM,
    LONG_POLL_S,
    MORE_S,
    PAUSE_S,
    REPEAT_HINT,
    RETURN_S,
    STREAM_SILENCE_S,
    TIMEOUT_S,
    TRIES,
    ConnectionLost,
    EventParser,
    LineSplitter,
    QueryParameters,
    ServerEvent,
    daemon_stopped,
    no_answer,
    nothing_listens,
    read_refusal,
    target,
)
from kapelle.domain.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

# After this time without an answer, a person gets a notice.
SLOW_S = 5.0
# Time limit for closing a WebSocket cleanly.
CLOSE_S = 2.0


class RequestCancelled(Exception):
    """Raised when a request is cancelled because nobody needs its answer any more."""


class Cancellation:
    """Breaks off, from another thread, a request of the thread that it was given to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requested = threading.Event()
        self._socket: socket.socket | None = None

    def request(self) -> None:
        """End the request and every pause before it is sent again."""
        self._requested.set()
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def ends(self, connection: socket.socket) -> Iterator[None]:
        """Let a cancellation shut down this socket; raises RequestCancelled after one."""
        with self._lock:
            self._socket = connection
        try:
            if self._requested.is_set():
                raise RequestCancelled
            yield
        finally:
            with self._lock:
                self._socket = None

    def pause(self, seconds: float) -> None:
        """Sleep; raises RequestCancelled as soon as there is a cancellation."""
        if self._requested.wait(seconds):
            raise RequestCancelled


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
    """Return a connection that is not open yet."""
    if address.url is None:
        return UnixConnection(str(address.home.socket), timeout)
    scheme, host, port = address.parts()
    if scheme == "https":
        return HTTPSConnection(host, port, timeout=timeout)
    return HTTPConnection(host, port, timeout=timeout)


class DaemonConnection:
    """Requests to one daemon, which is started when it is not there unless told otherwise.

    Threads may share it: each request has a socket of its own.
    """

    # Tells a person what is unusual; a program has nobody to tell.
    tell: ClassVar[Callable[[str], object] | None] = None
    _has_told_version: ClassVar[bool] = False

    def __init__(self, address: Address | None = None, *, autostart: bool = True) -> None:
        self.address = address or Address.find()
        self._autostart = autostart and self.address.url is None

    def get(
        self, path: str, query: QueryParameters | None = None, timeout: float = TIMEOUT_S
    ) -> Any:
        return json.loads(self.get_bytes(path, query, timeout)[0])

    def get_bytes(
        self, path: str, query: QueryParameters | None = None, timeout: float = TIMEOUT_S
    ) -> tuple[bytes, Message]:
        """Return a body as it came, and its headers."""
        answer, response = self._request("GET", target(path, query), timeout=timeout)
        return answer, response.headers

    def pages(self, path: str, query: QueryParameters) -> Generator[Any, None, None]:
        """Yield every item of a list; a page is requested when the one before it is used up."""
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
        """Request a path that waits by itself, until its answer is over or the time is up."""
        began = time.monotonic()
        while True:
            sent = time.monotonic()
            if limit_s is None:
                left = LONG_POLL_S
            else:
                left = limit_s - (sent - began)
            poll_s = round(max(0, min(left, LONG_POLL_S)), 3)
            answer = self.get(path, {**query, "timeout_s": poll_s}, poll_s + MORE_S)
            if is_over(answer) or left <= 0:
                return answer
            if time.monotonic() - sent < poll_s / 2:
                # What waits for a person is answered at once, also to whoever waits for its end.
                time.sleep(min(PAUSE_S, poll_s))

    def post(
        self, path: str, body: Any = None, timeout: float = TIMEOUT_S, *, tries: int = 1
    ) -> Any:
        """Send a write, once unless it leads to the same state: only the daemon knows whether one
        without an answer arrived."""
        try:
            answer, _ = self._request("POST", target(path), body or {}, None, timeout, tries)
        except ConnectionLost as error:
            error.hint = REPEAT_HINT
            raise
        if answer.strip():
            return json.loads(answer)
        return None

    def merge(self, path: str, body: Any, tell: Callable[[str], object] | None = None) -> Any:
        """Merge something and wait for it; tell is called with its phases."""
        while True:
            answer = self.post(path, body, tries=TRIES)
            if answer["status"] == "merged":
                return answer
            if tell is not None:
                tell(answer["phase"])

    def put(self, path: str, body: Any, query: QueryParameters | None = None) -> Any:
        """Send a write that may be sent again, because it leads to the same state."""
        return json.loads(self._request("PUT", target(path, query), body)[0])

    def delete(self, path: str, query: QueryParameters | None = None) -> Any:
        """Send a removal, which may be sent again."""
        return json.loads(self._request("DELETE", target(path, query))[0])

    def create(self, path: str, body: Any, key: str | None = None) -> Any:
        """Send a write that may be sent again, because the daemon knows its key."""
        headers = {"Idempotency-Key": key or os.urandom(16).hex()}
        if self.address.url is None:
            body = with_shell(self.address.home, path, body)
        return json.loads(self._request("POST", target(path), body, headers)[0])

    def stream(
        self, path: str, query: QueryParameters, *, endless: bool, last_id: str | None = None
    ) -> Generator[ServerEvent, None, None]:
        """Yield server-sent events; an endless stream goes on where it broke off."""
        headers = {"Accept": EVENT_STREAM}
        where = target(path, query)
        while True:
            if last_id is not None:
                headers["Last-Event-ID"] = last_id
            try:
                with self._exchange("GET", where, None, headers, STREAM_SILENCE_S) as response:
                    if not is_event_stream(response):
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
        self,
        path: str,
        body: Any,
        headers: dict[str, str],
        timeout: float,
        cancellation: Cancellation | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Send JSON to a path beside the API; yield the JSON objects of the answer, one or many."""
        with self._exchange("POST", path, body, headers, timeout, cancellation) as response:
            if is_event_stream(response):
                for event in parse(_lines(response)):
                    yield event.data
            elif content := response.read().strip():
                yield json.loads(content)

    @contextmanager
    def websocket(self, path: str, query: QueryParameters) -> Iterator["ClientConnection"]:
        """Open a WebSocket; raises ConnectionLost when the daemon goes away before it is open."""
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect

        options: dict[str, Any] = {
            "additional_headers": self.address.headers(),
            "proxy": None,
            "compression": None,
            "open_timeout": TIMEOUT_S,
            "close_timeout": CLOSE_S,
            # The daemon closes the connection when it is stopped.
            "ping_interval": None,
            "max_size": None,
        }
        where = target(path, query)
        try:
            if self.address.url is None:
                # The socket is open already: the host is there for the form.
                connection = self._new(TIMEOUT_S)
                socket = connect(f"ws://localhost{where}", sock=connection.sock, **options)
            else:
                socket = connect(self.address.websocket_url + where, **options)
        except InvalidStatus as error:
            answer = error.response
            content = bytes(answer.body or b"")
            raise read_refusal(
                self.address, answer.status_code, answer.reason_phrase, content
            ) from None
        except TimeoutError:
            raise no_answer(self.address, TIMEOUT_S) from None
        except (OSError, EOFError, InvalidHandshake) as error:
            raise ConnectionLost("The daemon went away before it answered.") from error
        with socket:
            yield socket

    def _request(
        self,
        method: str,
        where: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT_S,
        tries: int = TRIES,
    ) -> tuple[bytes, HTTPResponse]:
        """Return the whole answer; the request is repeated if the daemon went away before that."""
        while True:
            try:
                with self._exchange(method, where, body, headers or {}, timeout) as response:
                    return response.read(), response
            except ConnectionLost:
                tries -= 1
                if not tries:
                    raise
            self.wait_for_return()

    @contextmanager
    def _exchange(
        self,
        method: str,
        where: str,
        body: Any,
        headers: dict[str, str],
        timeout: float,
        cancellation: Cancellation | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send a request; its response is to be read before this is left."""
        own_headers: dict[str, str] = {}
        if self.address.url is not None:
            # Before anything is sent anywhere: there may be no token.
            own_headers = self.address.headers()
        content = None
        if body is not None:
            own_headers["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        cancellation = cancellation or Cancellation()
        connection = self._new(timeout, cancellation)
        response = None
        try:
            with cancellation.ends(connection.sock):
                if self.address.url is None:
                    # A daemon that was just started has only now written its token.
                    own_headers |= self.address.headers()
                place = self.address.base_path + where
                _send(connection, method, place, content, own_headers | headers)
                self._tell_version()
                with self._told_when_slow(timeout):
                    response = connection.getresponse()
                if response.status >= 400:
                    content = response.read()
                    raise read_refusal(self.address, response.status, response.reason, content)
                yield response
        except (OSError, HTTPException) as error:
            if response is not None:
                raise ConnectionLost("The daemon went away in the middle of its answer.") from error
            if isinstance(error, TimeoutError):
                raise no_answer(self.address, timeout) from None
            raise ConnectionLost("The daemon went away before it answered.") from error
        finally:
            if response is not None:
                response.close()
            connection.close()

    @contextmanager
    def _told_when_slow(self, timeout: float) -> Iterator[None]:
        """Tell a person that no answer comes, unless the request waits by itself."""
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

    def _new(self, timeout: float, cancellation: Cancellation | None = None) -> HTTPConnection:
        """Return an open connection; the daemon is started for it if need be."""
        connection = channel(self.address, timeout)
        try:
            try:
                connection.connect()
            except OSError:
                connection.close()
                if not self._autostart:
                    raise
                from kapelle.client.autostart import ensure_daemon

                ensure_daemon(self.address.home, (cancellation or Cancellation()).pause)
                connection.connect()
        except OSError as error:
            connection.close()
            raise nothing_listens(self.address, error.strerror or str(error)) from None
        return connection

    def wait_for_return(self, cancellation: Cancellation | None = None) -> None:
        """Return when the daemon is back after a break; start it again if it crashed.

        A daemon that was stopped takes its socket away, and is not brought back against the will
        of whoever stopped it.
        """
        cancellation = cancellation or Cancellation()
        problem = daemon_stopped()
        deadline = time.monotonic() + RETURN_S
        while time.monotonic() < deadline:
            cancellation.pause(PAUSE_S)
            if self.address.url is None and not self.address.home.socket.exists():
                continue
            try:
                self._new(5, cancellation).close()
            except Unavailable as error:
                problem = error
                continue
            return
        raise problem


def listens(address: Address) -> bool:
    """Return whether somebody accepts connections there."""
    try:
        with closing(channel(address, 2)) as connection:
            connection.connect()
    except OSError:
        return False
    return True


def parse(lines: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Yield the events in the lines of a stream."""
    parser = EventParser()
    for line in lines:
        event = parser.feed(line)
        if event is not None:
            yield event


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a body as they come; several times faster than its own readline."""
    splitter = LineSplitter()
    while block := response.read1(1 << 20):
        yield from splitter.feed(block)


def is_event_stream(response: HTTPResponse) -> bool:
    return response.headers.get("content-type", "").startswith(EVENT_STREAM)


def _send(
    connection: HTTPConnection,
    method: str,
    where: str,
    content: bytes | None,
    headers: dict[str, str],
) -> None:
    try:
        encoded_headers = {name: value.encode() for name, value in headers.items()}
        connection.request(method, where, content, encoded_headers)
    except ValueError as error:
        raise InvalidInput(f"This cannot be sent: {error}.") from None
