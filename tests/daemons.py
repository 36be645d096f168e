"""Daemons and commands that are there in a moment: forked from a process that has imported
everything already. Run as a module, this is that process."""

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tests.forked import LARGEST_REQUEST, become, receive

_ROOT = Path(__file__).parents[1]


class ForkedProcess:
    """A forked process, as much like a Popen as tests need."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.returncode: int | None = None
        self.pid = int(answers.recv(100))
        try:
            self._descriptor: int | None = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._descriptor = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended, _, _ = select.select([self._answers], [], [], timeout)
            if not ended:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(self._answers.recv(100))
            self._answers.close()
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill it, unless it has ended, and leave nothing open."""
        self.kill()
        self.wait(10)

    def send_signal(self, number: int) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)


class DaemonFactory:
    """One warm process, from which daemons and commands are forked until it is closed."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._requests, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST_REQUEST)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.daemons", str(theirs.fileno())],
            cwd=_ROOT,
            env={
                **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
                "LANG": "C.UTF-8",
            },
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start_daemon(
        self, env: dict[str, str], log: Path, arguments: Sequence[str] = ()
    ) -> ForkedProcess:
        """A daemon in a session of its own that writes to a log."""
        with open(os.devnull, "rb") as nothing, log.open("ab") as file:
            return self._fork("daemon", arguments, env, "/", (nothing, file, file))

    def run_command(
        self,
        arguments: Sequence[str],
        env: dict[str, str],
        cwd: Path | str,
        input: str | None = None,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """What the command line says and how it ends."""
        pipes = [os.pipe() for _ in range(3)]
        stdin, stdout, stderr = (_open(reading, "rb") for reading, _ in pipes)
        feed, *told = (_open(writing, "wb") for _, writing in pipes)
        with contextlib.ExitStack() as stack:
            nothing = stack.enter_context(open(os.devnull, "rb"))
            theirs = (nothing if input is None else stdin, *told)
            process = self._fork("command", arguments, env, str(cwd), theirs)
            for file in (stdin, *told):
                file.close()
            writer = threading.Thread(target=_write, args=(feed, (input or "").encode()))
            writer.start()
            found: dict[int, bytes] = {}
            readers = [
                threading.Thread(target=_read, args=(found, number, file))
                for number, file in enumerate((stdout, stderr))
            ]
            for reader in readers:
                reader.start()
            stack.callback(process.end)
            for thread in (writer, *readers):
                thread.join(timeout_s)
            code = process.wait(timeout_s)
        out, err = (found[number].decode().replace("\r\n", "\n") for number in range(2))
        return subprocess.CompletedProcess(["kapelle", *arguments], code, out, err)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()

    def _fork(
        self,
        kind: str,
        arguments: Sequence[str],
        env: dict[str, str],
        cwd: str,
        streams: Sequence[IO[bytes]],
    ) -> ForkedProcess:
        # Its number and how it ended are two messages, however soon it ends.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"kind": kind, "arguments": list(arguments), "env": env, "cwd": cwd}
        descriptors = [*(stream.fileno() for stream in streams), theirs.fileno()]
        socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
        theirs.close()
        return ForkedProcess(ours)


@functools.cache
def daemon_factory() -> DaemonFactory:
    """The factory of this test process."""
    factory = DaemonFactory()
    atexit.register(factory.close)
    return factory


def _open(descriptor: int, mode: str) -> IO[bytes]:
    return os.fdopen(descriptor, mode)


def _write(file: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), file:
        file.write(data)


def _read(found: dict[int, bytes], number: int, file: IO[bytes]) -> None:
    with file:
        found[number] = file.read()


def _entry_points() -> dict[str, Callable[[], object]]:
    """The functions that the forked processes execute; to import them is what makes them quick."""
    from docs.services import idle_router, idle_services

    from kapelle.cli.commands import command_names, load
    from kapelle.cli.main import main as command
    from kapelle.daemon import main as daemon

    # What daemons make of their operations when these are first called.
    for operation in idle_router().list_operations():
        operation.bind(idle_services())
    for name in command_names():
        load(name)
    return {"daemon": daemon, "command": command}


def _serve(requests: socket.socket) -> Callable[[], object]:
    """Fork a process for every request until there are no more. Returns in the forked process,
    with what it is to execute."""
    entry_points = _entry_points()
    gc.collect()
    gc.freeze()
    woken, wakeup = socket.socketpair()
    woken.setblocking(False)
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            woken.recv(1000)
            _report_ended(children)
        if requests not in ready:
            continue
        request, descriptors = receive(requests, 4)
        if not request:
            # Whoever asked is gone, perhaps killed: nobody else would end them.
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        *streams, answers = descriptors
        pid = os.fork()
        if pid == 0:
            if request["kind"] == "daemon":
                os.setsid()
            become(request, streams)
            sys.argv = ["kapelle", *request["arguments"]]
            return entry_points[request["kind"]]
        for descriptor in streams:
            os.close(descriptor)
        children[pid] = socket.socket(fileno=answers)
        children[pid].send(str(pid).encode())


def _report_ended(children: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = found
            with children.pop(pid) as answers, contextlib.suppress(OSError):
                answers.send(str(os.waitstatus_to_exitcode(status)).encode())


def _leave(code: int) -> None:
    """End at once: taking down all that was imported is three quarters of a short command."""
    if threading.active_count() == 1:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


if __name__ == "__main__":
    try:
        _serve(socket.socket(fileno=int(sys.argv[1])))()
    except SystemExit as end:
        if isinstance(end.code, int | None):
            _leave(end.code or 0)
        raise
    _leave(0)
