"""The daemon's two servers: a TCP port for programs and browsers, a private socket for the CLI."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kapelle.api.errors import error_response
from kapelle.api.security import SECURITY_HEADERS
from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.home import Home, read_file_identity

# How long the head of a request may take once a connection is open or idle, and then the body.
_HEAD_S = 10.0
_BODY_S = 60.0
_MAX_FILES = 16384
_MAX_CONNECTIONS = 4096
# The number of connections that the event loop accepts at once. Between two rounds it closes those
# that are too many; the operating system queues the others.
_ACCEPTED_AT_ONCE = 64
_QUEUED_CONNECTIONS = 2048


class LimitedProtocol(H11Protocol):
    """One HTTP connection with two limits that uvicorn does not have.

    Slow requests: a timer runs while the server waits for the head or the body of a request. When
    it ends, the answer is 400 and the connection is closed.

    Too many connections: a new connection closes the one whose timer began first. A connection with
    a request in progress has no timer and stays.
    """

    def __init__(self, *args: Any, max_connections: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_connections = max_connections
        self._client_state: object = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_timer(self.conn.their_state)
        if len(self.connections) > self._max_connections:
            self._close_longest_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._update_timer(h11.CLOSED)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer(self.conn.their_state)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_timer(self.conn.their_state)

    def shutdown(self) -> None:
        super().shutdown()
        if self.cycle is not None:
            # Wakes up an event stream, which has no end of its own.
            self.cycle.message_event.set()

    def _close_longest_waiting(self) -> None:
        waiting: list[tuple[float, LimitedProtocol]] = []
        for connection in self.connections:
            if isinstance(connection, LimitedProtocol) and connection._timer is not None:
                waiting.append((connection._timer.when(), connection))
        _, longest = min(waiting, key=itemgetter(0))
        # Counted out here and not in connection_lost, which comes only after other new ones.
        self.connections.discard(longest)
        longest._update_timer(h11.CLOSED)
        longest.transport.abort()

    def _update_timer(self, client_state: object) -> None:
        """Start or stop the timer when the client enters another state of HTTP/1.1."""
        if client_state is self._client_state:
            return
        self._client_state = client_state
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if client_state is h11.IDLE:
            self._start_timer(_HEAD_S)
        elif client_state is h11.SEND_BODY:
            self._start_timer(_BODY_S)

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(
            seconds, self.send_400_response, "The request did not arrive in time."
        )

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read with an error of the API, and close."""
        # If an answer has begun, the connection can only be closed.
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            response = error_response(400, "bad_request", msg)
            response.headers.update({**SECURITY_HEADERS, "Connection": "close"})
            head = h11.Response(status_code=400, headers=response.raw_headers)
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


_log = logging.getLogger("kapelle.api")
_MAX_MESSAGE = 1 << 20
# The interval of checks that the private socket is still there.
_LOOK_S = 2.0


def _make_websocket(**settings: Any) -> asyncio.Protocol:
    """Return the protocol of a WebSocket; its library is imported when a first one is opened."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    protocol = WebSocketsSansIOProtocol(**settings)
    protocol.logger.addFilter(_without_traceback)
    return protocol


def _without_traceback(record: logging.LogRecord) -> bool:
    """Log a client's invalid UTF-8 without the traceback through the library."""
    if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        record.exc_info = None
    return True


class Door(uvicorn.Server):
    """Serves an application on a socket until it is closed."""

    def __init__(self, app: ASGIApp, listener: socket.socket, max_connections: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=partial(LimitedProtocol, max_connections=max_connections),  # type: ignore[arg-type]
                ws=_make_websocket,  # type: ignore[arg-type]
                ws_max_size=_MAX_MESSAGE,
                backlog=_ACCEPTED_AT_ONCE,
                timeout_graceful_shutdown=2,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
            )
        )
        self._listener = listener
        self._closing = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve([self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listener.listen(_QUEUED_CONNECTIONS)

    async def main_loop(self) -> None:
        # The loop of uvicorn wakes up ten times a second, to look for a stop and for the Date
        # header, which the guard adds here.
        await self._closing.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The daemon handles signals, and then closes its servers.
        yield

    def stop_listening(self) -> None:
        for server in getattr(self, "servers", ()):
            server.close()

    def close(self) -> None:
        self.should_exit = True
        self._closing.set()


class PrivateDoor:
    """Serves on the unix socket of a home, and creates a new socket when somebody removes it."""

    def __init__(self, app: ASGIApp, home: Home, max_connections: int) -> None:
        self._app = app
        self._home = home
        self._max_connections = max_connections
        self._closing = asyncio.Event()
        self._listener = listen_privately(home.socket)

    async def serve(self) -> None:
        doors: list[tuple[Door, asyncio.Task[None]]] = []
        while not self._closing.is_set():
            door = Door(self._app, self._listener, self._max_connections)
            doors.append((door, asyncio.create_task(door.serve())))
            await self._replace_lost_socket()
            # Connections through the removed socket stay open.
            door.stop_listening()
        for door, serving in doors:
            door.close()
            await serving

    async def _replace_lost_socket(self) -> None:
        """Wait until somebody removes the socket and make a new one; return early when closed."""
        own_identity = read_file_identity(self._home.socket)
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._closing.wait()
                return
            if read_file_identity(self._home.socket) == own_identity:
                continue
            try:
                self._home.create()
                self._listener = listen_privately(self._home.socket)
            except (OSError, KapelleError) as error:
                _log.error("%s was removed and cannot be created: %s", self._home.socket, error)
            else:
                _log.warning("%s was removed and has been created again", self._home.socket)
                return

    def close(self) -> None:
        self._closing.set()


def raise_file_limit() -> int:
    """Allow this process more open files than the usual 1024.

    Returns how many connections each of the two servers takes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _MAX_FILES:
        if hard == resource.RLIM_INFINITY:
            soft = _MAX_FILES
        else:
            soft = min(hard, _MAX_FILES)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    # The last third is for the database, agents, git and files.
    return min(soft // 3, _MAX_CONNECTIONS)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, ports: Sequence[int]) -> socket.socket:
    """Return a TCP socket on the first of these ports that is free; 0 is any free one."""
    if ":" in host:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    problem: OSError | None = None
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            listener.close()
            if isinstance(error, OSError):
                problem = error
            else:
                problem = OSError(0, str(error))
        else:
            return listener
    raise Unavailable(
        f"Port {ports[-1]} on {host} cannot be used: {problem and problem.strerror}.",
        hint="Choose another with --port, or 0 for any free one.",
    )


def listen_privately(path: Path) -> socket.socket:
    """Return a unix socket that only its owner can open; it replaces that of a crashed daemon."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    return listener
