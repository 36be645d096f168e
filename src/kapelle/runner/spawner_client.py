"""The daemon's end of the spawner: install it, start it, send it requests, replace it."""

import asyncio
import contextlib
import hashlib
import os
import socket
import subprocess
from pathlib import Path

from kapelle.runner.shim import failpoints, files

_AT_ONCE = 16
_REPLY_LIMIT_S = 15.0
_END_LIMIT_S = 2.0
# CPython stops specializing code after about this many calls. Memory that it changes later is no
# longer shared between the forked shims.
_WARM_UPS = 8
# Variables that an interpreter may need to start; no other variable of the daemon reaches an agent
# through the spawner.
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", failpoints.VARIABLE)


class Spawner:
    """One replaceable process that forks shims; when it dies, the shims go on."""

    def __init__(self, python: str, script: Path, *, for_many: bool) -> None:
        self._command = [python, "-I", "-S", "-X", "utf8", str(script)]
        self._warm_ups = _WARM_UPS if for_many else 0
        self._log = script.parent.parent / "spawner.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)

    @property
    def pid(self) -> int | None:
        if self._process is None:
            return None
        return self._process.pid

    def ensure(self) -> None:
        """Start the spawner unless it is alive."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno()), str(self._warm_ups)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                env={name: os.environ[name] for name in _INHERITED if name in os.environ},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            os.close(log)
            theirs.close()
        self._control = ours

    async def start_shim(self, request: bytes) -> bytes:
        """Fork a shim for a request; return its reply, empty if it died or did not answer."""
        async with self._slots:
            connection = self._connect()
            try:
                async with asyncio.timeout(_REPLY_LIMIT_S):
                    return await _ask(connection, request)
            except TimeoutError:
                self._discard()
                return b""
            finally:
                connection.close()

    def close(self) -> None:
        """End the spawner; the shims it forked go on."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._discard()
            self._process = None

    def _connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            try:
                self._hand_over(theirs)
            except OSError:
                # The spawner is dying or stuck, so it is replaced.
                self._discard()
                self._hand_over(theirs)
            stack.pop_all()
        return ours

    def _hand_over(self, connection: socket.socket) -> None:
        self.ensure()
        assert self._control is not None
        socket.send_fds(self._control, [b"!"], [connection.fileno()])

    def _discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


async def _ask(connection: socket.socket, request: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    # A shim that finds its directory claimed replies before it has read the whole request.
    with contextlib.suppress(ConnectionError):
        await loop.sock_sendall(connection, request)
    reply = bytearray()
    with contextlib.suppress(ConnectionError):
        while not reply.endswith(b"\n"):
            chunk = await loop.sock_recv(connection, 4096)
            if not chunk:
                break
            reply += chunk
    return bytes(reply)


def install(home: Path) -> Path:
    """Copy the package `shim` below the home, once per content; return the spawner's path."""
    sources = sorted(Path(failpoints.__file__).parent.glob("*.py"))
    contents = {source.name: source.read_bytes() for source in sources}
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    target = home / "runner" / digest.hexdigest()[:16]
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in contents.items():
        # A power cut may have left a damaged copy under this name.
        if files.read(str(target / name)) != content:
            files.replace(str(target / name), content)
    return target / "spawner.py"
