"""The small ACP agent without its second of imports: a process that has the protocol's package
already is forked for each who hands it its streams. Run as a program, this hands over its own."""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AGENT = Path(__file__).with_name("acp_agent.py")
_ROOT = Path(__file__).parents[2]


@contextmanager
def warm_agent(directory: Path) -> Iterator[list[str]]:
    """The command by which an agent is begun, while this is open."""
    path = directory / "agents"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(10)
        argv = [sys.executable, "-m", "tests.integration.warm_agent", "serve"]
        server = subprocess.Popen(
            [*argv, str(listener.fileno())],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
    with server:
        yield [sys.executable, "-I", "-S", __file__, str(path)]


def _serve(listener: socket.socket) -> None:
    """Returns in the forked process of an agent."""
    import acp  # noqa: F401

    while True:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            sys.exit()
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _be_one(connection)
        connection.close()


def _be_one(connection: socket.socket) -> None:
    # Not where it hands over its streams: that has neither the packages nor the time.
    from tests.forked import become, receive

    request, streams = receive(connection, 3)
    agent = os.fork()
    if agent:
        _look_after(agent, connection)
    os.setsid()
    become(request, streams)


def _look_after(agent: int, connection: socket.socket) -> None:
    """Tell how it ended, or end it when whoever it is for is gone."""
    ended = os.pidfd_open(agent)
    waited: list[int | socket.socket] = [ended, connection]
    ready, _, _ = select.select(waited, [], [])
    if ended not in ready:
        os.kill(agent, signal.SIGKILL)
    _, status = os.waitpid(agent, 0)
    connection.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def _hand_over(path: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        request = json.dumps({"cwd": os.getcwd(), "env": dict(os.environ)})
        socket.send_fds(connection, [request.encode()], [0, 1, 2])
        return int(connection.recv(100))


if __name__ == "__main__":
    if sys.argv[1] != "serve":
        sys.exit(_hand_over(sys.argv[1]))
    _serve(socket.socket(fileno=int(sys.argv[2])))
    runpy.run_path(str(_AGENT), run_name="__main__")
