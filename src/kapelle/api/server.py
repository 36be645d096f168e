"""The daemon's two doors: a TCP port for programs and browsers, a private socket for the CLI."""

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import h11
import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kapelle.api.errors import error_response
from kapelle.api.security import SECURITY_HEADERS
from kapelle.domain.errors import Unavailable


class Protocol(H11Protocol):
    def send_400_response(self, msg: str) -> None:
        # An answer that has begun cannot be taken back.
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            response = error_response(400, "bad_request", msg)
            response.headers.update({**SECURITY_HEADERS, "Connection": "close"})
            head = h11.Response(status_code=400, headers=response.raw_headers)
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


_TICK_S = 1.0


class Door:
    """Serves an application on a socket until it is closed."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                app,
                http=Protocol,
                server_header=False,
                proxy_headers=False,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=2,
                ws="none",
            )
        )

    async def serve(self) -> None:
        await self._server.serve(sockets=[self._listener])

    def close(self) -> None:
        # Streams have no end of their own, and would otherwise be cut off after the timeout.
        AppStatus.should_exit = True
        self._server.should_exit = True
        self._server.woken.set()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.woken = asyncio.Event()

    async def main_loop(self) -> None:
        # Its own wakes up ten times a second; the Date header needs one, and a stop none.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.woken.wait(), _TICK_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals end the daemon, which then closes its doors.
        yield


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
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    problem: OSError | None = None
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            listener.close()
            problem = error if isinstance(error, OSError) else OSError(0, str(error))
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
