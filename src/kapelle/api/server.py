"""The daemon's two doors: a TCP port for programs and browsers, a private socket for the CLI."""

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
from kapelle.api.sse import PUSH
from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.home import Home, read_file_identity

# How long a request's head and body may take to arrive, from the first byte of each.
_HEAD_S = 10.0
_BODY_S = 60.0
_MOST_FILES = 16384
_MOST_CONNECTIONS = 4096
# How many connections are accepted in one go, before those too many are closed; the others wait.
_AT_ONCE = 64
_WAITING = 2048


class Protocol(H11Protocol):
    """One connection, which is closed when a request does not arrive in time.

    Beyond the most that there may be, the one that has kept us waiting longest gives way.
    """

    def __init__(self, *args: Any, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most = most
        self._awaited: object = None
        self._timer: asyncio.TimerHandle | None = None
        served = self.app

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if (scope["method"], scope["http_version"]) == ("GET", "1.1"):
                scope["extensions"] = {PUSH: self._push}
            await served(scope, receive, send)

        self.app = app

    def _push(self, data: bytes) -> bool:
        """Write a piece of a body that is being sent in chunks, past all that `send` goes through;
        False where that has to wait."""
        if not data or self.flow.write_paused or self.transport.is_closing():
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > self._most:
            waiting = ((c._timer.when(), c) for c in self.connections
                       if isinstance(c, Protocol) and c._timer)  # fmt: skip
            oldest = min(waiting, key=itemgetter(0))[1]
            # At once, for many may come before the loop tells this one that it is lost.
            self.connections.discard(oldest)
            oldest._await_request(h11.CLOSED)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_request(h11.CLOSED)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def shutdown(self) -> None:
        super().shutdown()
        if self.cycle is not None:
            # Ends a stream, which has no end of its own and would be cut off after the timeout.
            self.cycle.message_event.set()

    def _await_request(self, state: object = None) -> None:
        """Give what is missing of a request its time, once."""
        state = state or self.conn.their_state
        if state is self._awaited:
            return
        self._awaited = state
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state in {h11.IDLE, h11.SEND_BODY}:
            if state is h11.IDLE:
                seconds = _HEAD_S
            else:
                seconds = _BODY_S
            late = partial(self.send_400_response, "The request did not arrive in time.")
            self._timer = self.loop.call_later(seconds, late)

    def send_400_response(self, msg: str) -> None:
        # An answer that has begun cannot be taken back.
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            response = error_response(400, "bad_request", msg)
            response.headers.update({**SECURITY_HEADERS, "Connection": "close"})
            head = h11.Response(status_code=400, headers=response.raw_headers)
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


_log = logging.getLogger("kapelle.api")
_LONGEST_MESSAGE = 1 << 20
_LOOK_S = 2.0


def _websocket(**settings: Any) -> asyncio.Protocol:
    """The protocol of a terminal's connection, imported once somebody attaches to one."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    protocol = WebSocketsSansIOProtocol(**settings)
    protocol.logger.addFilter(_without_traceback)
    return protocol


def _without_traceback(record: logging.LogRecord) -> bool:
    """Leave out where in the library a client's invalid text was found."""
    if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        record.exc_info = None
    return True


class Door(uvicorn.Server):
    """Serves an application on a socket until it is closed."""

    def __init__(self, app: ASGIApp, listener: socket.socket, most: int) -> None:
        super().__init__(
            uvicorn.Config(
                app, backlog=_AT_ONCE, http=partial(Protocol, most=most),  # type: ignore[arg-type]
                server_header=False, proxy_headers=False, log_config=None, access_log=False,
                lifespan="off", timeout_graceful_shutdown=2, ws=_websocket,  # type: ignore[arg-type]
                ws_max_size=_LONGEST_MESSAGE, date_header=False, interface="asgi3",
            )
        )  # fmt: skip
        self._listener, self._closing = listener, asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve([self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listener.listen(_WAITING)

    async def main_loop(self) -> None:
        # Its own wakes up ten times a second, for the Date header, which we add, and for a stop.
        await self._closing.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals end the daemon, which then closes its doors.
        yield

    def stop_listening(self) -> None:
        for server in getattr(self, "servers", ()):
            server.close()

    def close(self) -> None:
        self.should_exit = True
        self._closing.set()


class PrivateDoor:
    """Serves on the unix socket of a home, which is made anew when somebody took it away."""

    def __init__(self, app: ASGIApp, home: Home, most: int) -> None:
        self._app = app
        self._home = home
        self._most = most
        self._closing = asyncio.Event()
        self._listener = listen_privately(home.socket)

    async def serve(self) -> None:
        doors: list[tuple[Door, asyncio.Task[None]]] = []
        while not self._closing.is_set():
            door = Door(self._app, self._listener, self._most)
            doors.append((door, asyncio.create_task(door.serve())))
            await self._until_lost()
            # Whoever is connected through a socket that is lost stays so.
            door.stop_listening()
        for door, serving in doors:
            door.close()
            await serving

    async def _until_lost(self) -> None:
        """Return when a new socket listens in the place of a lost one, or at the end."""
        opened = read_file_identity(self._home.socket)
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._closing.wait()
                return
            if read_file_identity(self._home.socket) == opened:
                continue
            try:
                self._home.create()
                self._listener = listen_privately(self._home.socket)
            except (OSError, KapelleError) as error:
                _log.error("%s is lost and cannot be made anew: %s", self._home.socket, error)
            else:
                _log.warning("%s was lost and is made anew", self._home.socket)
                return

    def close(self) -> None:
        self._closing.set()


def raise_file_limit() -> int:
    """Allow this process more open files than the usual 1024; how many connections a door takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _MOST_FILES:
        if hard == resource.RLIM_INFINITY:
            soft = _MOST_FILES
        else:
            soft = min(hard, _MOST_FILES)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # Two doors take two thirds; the rest is for the database, agents, git and files.
    if soft < 0:
        return _MOST_CONNECTIONS
    return min(soft // 3, _MOST_CONNECTIONS)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, ports: Sequence[int]) -> socket.socket:
    """A TCP socket on the first of these ports that can be had; 0 is any free one."""
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
    """A unix socket that only its owner can open; one left by a dead daemon is replaced."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    return listener
