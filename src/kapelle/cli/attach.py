"""`kapelle attach`: being in the terminal of an interactive task, and leaving it."""

import json
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import typer

from kapelle.cli.follow import follow
from kapelle.cli.format import exit_code, one_line
from kapelle.cli.ids import NewestTaskId, task_path, work_id
from kapelle.cli.output import say
from kapelle.client.http import ConnectionLost, DaemonConnection
from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.states import FINAL

_LEAVE = b"\x1d"
_LEAVE_KEY = "Ctrl-]"
# What a program may leave behind: another screen, a hidden cursor, reports of mouse, focus, paste
# and keys, colours.
_RESTORED = (
    b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l"
    b"\x1b[<u\x1b[>4m\x1b[?1l\x1b>\x1b[0m\r\n"
)


def attach(task_id: NewestTaskId = None) -> None:
    """Attach to the terminal of an interactive task; Ctrl-] leaves it running."""
    client = DaemonConnection()
    task = client.get(task_path(work_id(client, task_id, "tasks")))
    if task.get("interactive") and task["status"] in FINAL:
        raise Conflict(
            f"{task['id']} is {task['status']}: its terminal has ended.",
            hint=f"`kapelle logs {task['id']}` shows what was in it, "
            f"`kapelle resume {task['id']}` goes on in a new one.",
        )
    attach_to(client, task)


def attach_to(client: DaemonConnection, task: dict[str, Any]) -> None:
    """Be in its terminal to the end, then follow its checks; its exit code tells the outcome."""
    if not is_at_terminal():
        raise InvalidInput(
            "Standard input and output are no terminal.",
            hint=f"`kapelle logs -f {task['id']}` shows what is in it.",
        )
    place: dict[str, Any] = {}
    say(f"{_LEAVE_KEY} leaves the terminal, and the agent goes on.")
    with ExitStack() as screen:
        ended = _attached(client, task_path(task["id"], "terminal"), place, screen)
    if not ended:
        say(f"`kapelle attach {task['id']}` comes back, `kapelle cancel {task['id']}` ends it.")
        return
    raise typer.Exit(exit_code(follow(client, task, False, after=place.get("number"))))


def is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _attached(
    client: DaemonConnection, path: str, place: dict[str, Any], screen: ExitStack
) -> bool:
    """Whether the terminal has ended; else it was left. A daemon that restarts is waited for."""
    while True:
        try:
            query = {key: place.get(key) for key in ("attempt", "offset")}
            with client.websocket(path, {**query, **_size()}) as (socket, response):
                return _Talk(socket, response, place, screen).to_end()
        except ConnectionLost:
            client.wait_for_return()


class _Talk:
    """One connection to a terminal."""

    def __init__(self, socket: Any, response: Any, place: dict[str, Any], screen: ExitStack):
        from websockets.protocol import OPEN, Protocol, Side

        self._socket = socket
        self._response = response
        self._place = place
        self._screen = screen
        self._protocol = Protocol(Side.CLIENT, state=OPEN, max_size=None)
        self._resized: int | None = None

    def to_end(self) -> bool:
        # The daemon always has something to say first, which may have come with its answer.
        ready = [self._socket]
        while True:
            if self._socket in ready and self._hear():
                return True
            if self._resized in ready:
                os.read(self._resized or 0, 1000)
                self._protocol.send_text(json.dumps(_size()).encode())
            if 0 in ready and self._type():
                return False
            self._send()
            # Before there is a terminal, what is typed is not for it.
            if self._resized is None:
                others = []
            else:
                others = [0, self._resized]
            ready = select.select([self._socket, *others], [], [])[0]

    def _hear(self) -> bool:
        """Show what has come; whether that was the end."""
        data = self._response.read1(1 << 16)
        if not data:
            raise ConnectionLost("The daemon went away.")
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            frame: Any = event
            name = frame.opcode.name
            if name == "BINARY":
                _write(frame.data)
                self._place["offset"] += len(frame.data)
            elif name == "TEXT" and self._told(json.loads(frame.data)):
                return True
            elif name == "CLOSE":
                raise ConnectionLost("The daemon closes the connection.")
        return False

    def _told(self, message: dict[str, Any]) -> bool:
        if message["kind"] == "waiting":
            reason = message["reason"] or "its agent is being started"
            say(f"{message['status']}: {one_line(reason)}")
        elif message["kind"] == "opened":
            self._place |= {key: message[key] for key in ("attempt", "number", "offset")}
            if "raw" not in self._place:
                self._place["raw"] = self._screen.enter_context(_raw())
            self._resized = self._place["raw"]
        return bool(message["kind"] == "ended")

    def _type(self) -> bool:
        """Hand on what was typed; whether it was the key that leaves."""
        data = os.read(0, 1 << 16)
        typed, leaves, _ = data.partition(_LEAVE)
        if typed:
            self._protocol.send_binary(typed)
        self._send()
        return bool(leaves) or not data

    def _send(self) -> None:
        for data in self._protocol.data_to_send():
            self._socket.sendall(data)


@contextmanager
def _raw() -> Iterator[int]:
    """Every key goes to the program; gives a file that can be read after a change of the size."""
    before = termios.tcgetattr(0)
    changed, writer = os.pipe()
    os.set_blocking(writer, False)
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
    old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        tty.setraw(0)
        yield changed
    finally:
        with suppress(OSError):
            _write(_RESTORED)
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(old)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _size() -> dict[str, int]:
    with suppress(OSError):
        size = os.get_terminal_size(1)
        return {"rows": max(1, min(size.lines, 1000)), "columns": max(1, min(size.columns, 1000))}
    return {}


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
